//! The operator's hands in this world: what the API server and Slurm do with its writes, and what goes wrong with them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::ObjectReference},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    ResourceExt,
    core::{ApiResource, Status},
};
use serde_json::{Value, json};
use slurm_operator::{
    kinds::nodeset::plan::{self, ClaimSeen, Live},
    machine::{Amend, Desired, Doomed, Effects, Errand, Failure, FailureSource, Mint, Note, PodMarks, Print, Stamp},
};

use crate::{
    api::{Api, Claim, Container, NAMESPACE, Pod, Revision, SET, SET_UID, Texts, Truth},
    world::World,
};

/// The way from the operator into the world.
pub struct Hands<'a>(pub Mutex<&'a mut World>);

/// What comes back.
type Answer<T> = Result<T, Failure>;

fn no(why: &str) -> FailureSource {
    FailureSource::NoSlurm(why.to_owned())
}

/// What was seen is not what is there.
fn conflict() -> FailureSource {
    FailureSource::Kube(Box::new(kube::Error::Api(Box::new(Status::failure("conflict", "Conflict").with_code(409)))))
}

impl<'a> Hands<'a> {
    fn world(&self) -> MutexGuard<'_, &'a mut World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write: the process may end before it, the world may go on before it, it may fail, and its answer may be lost.
    fn write<T>(
        &self,
        what: impl Fn() -> String,
        write: impl FnOnce(&mut World) -> Result<T, FailureSource>,
    ) -> Answer<T> {
        let mut guard = self.world();
        let world: &mut World = &mut guard;
        let failure = |source| Failure { action: "writing", object: String::new(), source };
        if world.operator.crash_in == Some(0) {
            world.operator.has_crashed = true;
        }
        if world.operator.has_crashed || world.violation.is_some() {
            return Err(failure(FailureSource::Timeout));
        }
        world.operator.crash_in = world.operator.crash_in.map(|left| left - 1);
        if !world.is_calm && world.rng.percent(15) {
            let seconds = world.rng.between(0, 2);
            world.drift(seconds);
        }
        let fault = if world.is_calm { 0 } else { world.traits.api_faults };
        if world.rng.percent(fault) {
            world.tell(|| format!("lost: {}", what()));
            return Err(failure(FailureSource::Timeout));
        }
        let done = write(world);
        world.operator.writes += 1;
        world.operator.last_write = world.now;
        world.tell(|| {
            let result = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
            format!("  {} {result}", what())
        });
        world.check();
        if world.rng.percent(fault) {
            world.tell(|| "  … and its answer is lost".to_owned());
            return Err(failure(FailureSource::Timeout));
        }
        done.map_err(failure)
    }
}

impl Effects for Hands<'_> {
    async fn apply(&self, _: &str, desired: &Desired) -> Answer<Print> {
        let name = desired.object.name_any();
        self.write(
            || format!("apply {} {name}", desired.resource.kind),
            |world| Ok(world.api.apply(&desired.resource.kind, &name, desired)),
        )
    }

    async fn mint(&self, _: &str, _: &Mint) -> Answer<()> {
        Ok(())
    }

    async fn own(&self, child: &Doomed, owners: &[OwnerReference]) -> Answer<()> {
        self.write(
            || format!("own {}", child.name),
            |world| {
                let version = world.api.next();
                let claim = world.api.claims.get_mut(&child.name).filter(|claim| claim.uid == child.uid);
                let claim = claim.ok_or_else(|| no("not found"))?;
                if claim.version.to_string() != child.resource_version {
                    return Err(conflict());
                }
                claim.owners = owners.to_vec();
                claim.version = version;
                Ok(())
            },
        )
    }

    async fn delete(&self, doomed: &Doomed) -> Answer<()> {
        self.write(
            || format!("delete {} {}", doomed.resource.kind, doomed.name),
            |world| {
                if doomed.resource.kind != "Pod" {
                    world.check_other_delete(doomed);
                    world.api.revisions.remove(&doomed.name);
                    return Ok(());
                }
                let Some(pod) = world.api.pods.get(&doomed.name) else { return Ok(()) };
                if pod.uid != doomed.uid || pod.version.to_string() != doomed.resource_version {
                    return Err(conflict());
                }
                world.check_delete(&doomed.name);
                let killer = world.killer_of(&doomed.name);
                world.delete_pod(&doomed.name, killer);
                Ok(())
            },
        )
    }

    async fn create(&self, stamp: &Stamp) -> Answer<Option<String>> {
        self.write(
            || format!("create {} {}", stamp.resource.kind, stamp.name()),
            |world| {
                world.check_create(stamp.name());
                world.create(&stamp.resource.kind, &stamp.render())
            },
        )
    }

    async fn amend(&self, amend: &Amend) -> Answer<String> {
        let what = || format!("amend {} {:?} {:?}", amend.target.name, amend.labels, amend.annotations);
        self.write(what, |world| {
            world.find(&amend.target)?;
            let version = world.api.edit(&amend.target.name, |pod| {
                merge(&mut pod.labels, amend.labels.iter());
                merge(&mut pod.annotations, amend.annotations.iter());
            });
            world.check_notes(&amend.target.uid);
            Ok(version.unwrap_or_default().to_string())
        })
    }

    async fn mark(&self, marks: &PodMarks) -> Answer<String> {
        let what = || format!("mark {} {:?} -{:?}", marks.target.name, marks.set, marks.remove);
        self.write(what, |world| {
            world.find(&marks.target)?;
            let version = world.api.edit(&marks.target.name, |pod| {
                pod.marks.retain(|about, _| !marks.remove.contains(about));
                pod.marks.extend(marks.set.iter().cloned());
            });
            Ok(version.unwrap_or_default().to_string())
        })
    }

    async fn slurm(&self, namespace: &str, errand: &Errand) -> Answer<()> {
        self.write(
            || format!("in Slurm of {namespace}: {:?}", errand.deed),
            |world| {
                if let Some(why) = world.slurm.trouble() {
                    return Err(no(why));
                }
                let now = world.now;
                if world.slurm.is_away || !world.slurm.cluster.is_up() {
                    world.slurm.mark(&errand.deed);
                    world.slurm.failed(now, "slurmrestd does not answer");
                    return Err(no("slurmrestd does not answer"));
                }
                let before = world.before_errand(&errand.deed);
                let done = world.slurm.perform(&errand.deed);
                world.slurm.mark(&errand.deed);
                world.check_errand(&errand.deed, before);
                if !world.is_calm && world.rng.percent(world.traits.slurm_faults) {
                    world.slurm.failed(now, "no answer in time");
                    return Err(no("no answer in time, though it was done"));
                }
                done.map_err(|refusal| no(refusal.text))
            },
        )
    }

    async fn finalizers(&self, object: &Doomed, finalizers: &[String]) -> Answer<()> {
        self.write(
            || format!("finalizers {finalizers:?}"),
            |world| {
                let set = world.api.set.as_ref().ok_or_else(|| no("not found"))?;
                if set.metadata.resource_version.as_deref() != Some(&object.resource_version) {
                    return Err(conflict());
                }
                let finalizers = Some(finalizers.to_vec()).filter(|all| !all.is_empty());
                world.api.edit_set(false, |set| set.metadata.finalizers = finalizers);
                Ok(())
            },
        )
    }

    async fn status(&self, _: &str, _: &ApiResource, _: &ObjectReference, status: Value) -> Answer<()> {
        self.write(
            || format!("status {status}"),
            |world| {
                let status = serde_json::from_value(status.clone()).unwrap();
                world.api.edit_set(false, |set| set.status = Some(status));
                Ok(())
            },
        )
    }

    async fn note(&self, _: &ObjectReference, _: &Note) {}
}

fn merge<'a>(into: &mut Texts, changes: impl Iterator<Item = (&'a String, &'a Option<String>)>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(into.insert(key.clone(), value.clone())),
            None => drop(into.remove(key)),
        }
    }
}

impl World {
    fn find(&self, target: &Doomed) -> Result<(), FailureSource> {
        match self.api.pods.get(&target.name) {
            Some(pod) if pod.uid == target.uid => Ok(()),
            Some(_) => Err(conflict()),
            None => Err(no("not found")),
        }
    }

    /// Makes an object of the whole that the operator rendered.
    fn create(&mut self, kind: &str, whole: &Value) -> Result<Option<String>, FailureSource> {
        let text = |pointer: &str| whole.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let texts = |pointer: &str| -> Texts {
            whole.pointer(pointer).map(|texts| serde_json::from_value(texts.clone()).unwrap()).unwrap_or_default()
        };
        let name = text("/metadata/name").unwrap();
        let uid = format!("uid-{}", self.api.next());
        let owners: Vec<OwnerReference> = whole
            .pointer("/metadata/ownerReferences")
            .map(|owners| serde_json::from_value(owners.clone()).unwrap())
            .unwrap_or_default();
        if kind == "PersistentVolumeClaim" {
            let version = self.api.next();
            let claim = self.api.claims.entry(name).or_insert(Claim { uid, version, owners });
            return Ok(Some(claim.version.to_string()));
        }
        let owner = owners.first().map(|owner| owner.uid.clone()).unwrap_or_default();
        if let Some(there) = self.api.pods.get(&name) {
            return if there.owner == owner { Ok(Some(there.version.to_string())) } else { Err(FailureSource::Taken) };
        }
        let claims = whole.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
        let claims = claims.filter_map(|volume| volume.pointer("/persistentVolumeClaim/claimName"));
        let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let version = self.api.add_pod(Pod {
            hostname: text("/spec/hostname").unwrap(),
            target: text(&format!("{terms}/0/matchFields/0/values/0")),
            image: text("/spec/containers/0/image").unwrap(),
            is_alone: whole.pointer("/spec/affinity/podAntiAffinity").is_some(),
            claims: claims.filter_map(Value::as_str).map(str::to_owned).collect(),
            labels: texts("/metadata/labels"),
            annotations: texts("/metadata/annotations"),
            name,
            uid,
            version: 0,
            created: self.now,
            going: false,
            owner,
            node: None,
            phase: "Pending",
            ready: None,
            slurmd: Container::Creating,
            marks: Texts::new(),
            truth: Truth::default(),
        });
        Ok(Some(version.to_string()))
    }
}

impl Api {
    /// Server-side apply of the few children that are applied.
    fn apply(&mut self, kind: &str, name: &str, desired: &Desired) -> Print {
        let version = self.next();
        let whole = json!({"metadata": desired.object.metadata, "spec": desired.object.data.get("spec")});
        match kind {
            "ControllerRevision" => {
                let number = desired.object.data.get("revision").and_then(Value::as_i64).unwrap();
                let data = desired.object.data.get("data").cloned().unwrap();
                let uid = self.revisions.get(name).map_or_else(|| format!("uid-{version}"), |old| old.uid.clone());
                self.revisions.insert(name.to_owned(), Revision { uid, version, number, data });
                desired.print()
            }
            "Service" => {
                let service = serde_json::from_value(whole).unwrap();
                Print::of(self.service.insert(service))
            }
            "PodDisruptionBudget" => {
                let budget = serde_json::from_value(whole).unwrap();
                Print::of(self.budget.insert(budget))
            }
            other => unreachable!("nobody applies a {other}"),
        }
    }

    /// The children that are not workers.
    pub fn live(&self) -> Live {
        Live { service: self.service.clone(), budget: self.budget.clone(), ssh_config: None }
    }
}

impl Claim {
    /// As the operator reads it.
    pub fn seen(&self, name: &str) -> ClaimSeen {
        let doomed = Doomed {
            resource: ApiResource::erase::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(&()),
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            uid: self.uid.clone(),
            resource_version: self.version.to_string(),
        };
        ClaimSeen { doomed, owners: self.owners.clone(), deleting: false }
    }
}

impl Revision {
    /// As the operator reads it.
    pub fn seen(&self, name: &str) -> plan::Revision {
        let doomed = Doomed {
            resource: ApiResource::erase::<ControllerRevision>(&()),
            namespace: NAMESPACE.to_owned(),
            name: name.to_owned(),
            uid: self.uid.clone(),
            resource_version: self.version.to_string(),
        };
        let hash = name.strip_prefix(&format!("{SET}-")).unwrap_or(name).to_owned();
        plan::Revision { doomed, hash, number: self.number, data: self.data.clone() }
    }
}

/// Whether a pod is one of the set.
pub fn is_ours(pod: &Pod) -> bool {
    pod.owner == SET_UID
}
