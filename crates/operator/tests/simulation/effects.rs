//! The operator's effects in the simulation: how the API server and Slurm handle its writes, and faults.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use engine::{
    plan::{
        ClusterKey, Desired, Event, Fingerprint, FromTemplate, GeneratedSecret, MetadataPatch, ObjectVersion,
        PodConditionPatch, ReadKeys, RegisterWorker, RereadFiles, ServiceState, SlurmWrite,
    },
    podset::{self, AttemptResult},
};
use k8s_openapi::{
    api::{apps::v1::ControllerRevision, core::v1::ObjectReference},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference},
};
use kube::{
    ResourceExt,
    core::{ApiResource, Status},
};
use serde_json::{Value, json};
use slurm_operator::{
    failure::{Failure, FailureSource},
    frontends::slinky::nodeset::plan::{self, LiveChildren},
    machine::Effects,
};

use slurm_operator_api::slinky::{NodeSet, names::annotation};

use crate::{
    api::{Api, Claim, Container, NAMESPACE, Pod, Power, Revision, SETS, StringMap, Truth},
    bugs::Bug,
    fake_cluster::FakeCluster,
};

/// The timeout of a call.
const CALL: Duration = Duration::from_secs(10);

/// For how long a process leads without renewing its lease.
const LEASE: i64 = 10;

/// The operator's effects on the fake cluster.
pub struct SimulatedEffects<'a>(pub Mutex<&'a mut FakeCluster>);

type Answer<T> = Result<T, Failure>;

fn no(why: &str) -> FailureSource {
    FailureSource::NoSlurm(why.to_owned())
}

/// The object has changed since it was observed.
fn conflict() -> FailureSource {
    FailureSource::Kube(Box::new(kube::Error::Api(Box::new(Status::failure("conflict", "Conflict").with_code(409)))))
}

impl<'a> SimulatedEffects<'a> {
    fn cluster(&self) -> MutexGuard<'_, &'a mut FakeCluster> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write: the process may crash before it, time may pass before it, it may fail, and its response may be lost.
    fn write<T>(
        &self,
        what: impl Fn() -> String,
        write: impl FnOnce(&mut FakeCluster) -> Result<T, FailureSource>,
    ) -> Answer<T> {
        let mut guard = self.cluster();
        let cluster: &mut FakeCluster = &mut guard;
        let failure = |source| Failure { action: "writing", object: String::new(), source };
        if cluster.operator.crash_in == Some(0) {
            cluster.operator.has_crashed = true;
        }
        if cluster.operator.has_crashed || cluster.violation.is_some() {
            return Err(failure(FailureSource::Timeout(CALL)));
        }
        cluster.operator.crash_in = cluster.operator.crash_in.map(|left| left - 1);
        if cluster.operator.is_deposed {
            cluster.violate("one-leader", || format!("a process without a lease writes: {}", what()));
        }
        if !cluster.is_calm && cluster.rng.percent(15) {
            let seconds = cluster.rng.between(0, 2);
            cluster.drift(seconds);
            // The poller goes on meanwhile: what the plan saw may no longer be what the view shows.
            cluster.poll();
        }
        let fault = if cluster.is_calm { 0 } else { cluster.traits.api_faults };
        if cluster.rng.percent(fault) {
            cluster.log(|| format!("request lost: {}", what()));
            return Err(failure(FailureSource::Timeout(CALL)));
        }
        let done = write(cluster);
        cluster.operator.writes += 1;
        cluster.operator.last_write = cluster.now;
        cluster.log(|| {
            let result = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
            format!("  {} {result}", what())
        });
        cluster.check();
        if cluster.rng.percent(fault) {
            cluster.log(|| "  … response lost".to_owned());
            return Err(failure(FailureSource::Timeout(CALL)));
        }
        done.map_err(failure)
    }
}

impl SimulatedEffects<'_> {
    /// Whether the process still leads. It may be paused at any time; if for longer than its lease, another one has taken over.
    pub fn leads(&self) -> bool {
        let mut guard = self.cluster();
        let cluster: &mut FakeCluster = &mut guard;
        if cluster.operator.pause_in == Some(0) {
            cluster.operator.pause_in = None;
            let seconds = cluster.rng.between(1, 2 * LEASE);
            cluster.log(|| format!("the operator is paused for {seconds} seconds"));
            cluster.drift(seconds.min(LEASE));
            if seconds > LEASE {
                cluster.take_over(seconds - LEASE);
            }
        }
        cluster.operator.pause_in = cluster.operator.pause_in.map(|left| left - 1);
        !cluster.operator.is_deposed || cluster.bug == Some(Bug::IgnoreLease)
    }
}

impl Effects for SimulatedEffects<'_> {
    async fn apply(&self, _: &str, desired: &Desired) -> Answer<Fingerprint> {
        let name = desired.object.name_any();
        self.write(
            || format!("apply {} {name}", desired.resource.kind),
            |cluster| Ok(cluster.api.apply(&desired.resource.kind, &name, desired)),
        )
    }

    async fn generate_secret(&self, _: &str, _: &GeneratedSecret) -> Answer<()> {
        Ok(())
    }

    async fn set_owners(&self, child: &ObjectVersion, owners: &[OwnerReference]) -> Answer<()> {
        self.write(
            || format!("set owners of {}", child.name),
            |cluster| {
                if child.resource.kind == "Pod" {
                    return cluster.adopt(child, owners);
                }
                let version = cluster.api.next();
                if child.resource.kind != "PersistentVolumeClaim" {
                    let shared = match child.resource.kind.as_str() {
                        "Service" => cluster.api.service.as_mut().map(|service| &mut service.metadata),
                        _ => cluster.api.budget.as_mut().map(|budget| &mut budget.metadata),
                    };
                    let shared = shared.ok_or_else(|| no("not found"))?;
                    if shared.resource_version.as_ref() != Some(&child.resource_version) {
                        return Err(conflict());
                    }
                    shared.owner_references = Some(owners.to_vec());
                    shared.resource_version = Some(version.to_string());
                    return Ok(());
                }
                let claim = cluster.api.claims.get_mut(&child.name).filter(|claim| claim.uid == child.uid);
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

    async fn delete(&self, object: &ObjectVersion) -> Answer<()> {
        self.write(
            || format!("delete {} {}", object.resource.kind, object.name),
            |cluster| {
                if object.resource.kind != "Pod" {
                    cluster.check_other_delete(object);
                    match object.resource.kind.as_str() {
                        "Service" => cluster.api.service = None,
                        "PodDisruptionBudget" => cluster.api.budget = None,
                        _ => drop(cluster.api.revisions.remove(&object.name)),
                    }
                    return Ok(());
                }
                let Some(pod) = cluster.api.pods.get(&object.name) else { return Ok(()) };
                if pod.uid != object.uid || pod.version.to_string() != object.resource_version {
                    return Err(conflict());
                }
                cluster.check_delete(&object.name);
                let killer = cluster.killer_of(&object.name);
                cluster.delete_pod(&object.name, killer);
                Ok(())
            },
        )
    }

    async fn create(&self, object: &FromTemplate) -> Answer<Option<String>> {
        self.write(
            || format!("create {} {}", object.resource.kind, object.name()),
            |cluster| {
                cluster.check_create(object.name());
                cluster.create(&object.resource.kind, &object.render())
            },
        )
    }

    async fn patch_metadata(&self, patch: &MetadataPatch) -> Answer<String> {
        let what = || format!("patch metadata of {} {:?} {:?}", patch.target.name, patch.labels, patch.annotations);
        self.write(what, |cluster| {
            cluster.find(&patch.target)?;
            let version = cluster.api.edit(&patch.target.name, |pod| {
                merge(&mut pod.labels, patch.labels.iter());
                // The API server records as written what a patch changes, not what was there already.
                for (key, value) in &patch.annotations {
                    match value {
                        Some(value) if pod.annotations.get(key) != Some(value) => drop(pod.written.insert(key.clone())),
                        Some(_) => {}
                        None => drop(pod.written.remove(key)),
                    }
                }
                merge(&mut pod.annotations, patch.annotations.iter());
            });
            cluster.check_user_annotations(&patch.target.uid);
            Ok(version.unwrap_or_default().to_string())
        })
    }

    async fn grow_claim(&self, _: &ObjectVersion, _: &Quantity) -> Answer<()> {
        Ok(())
    }

    async fn patch_conditions(&self, patch: &PodConditionPatch) -> Answer<String> {
        let what = || format!("patch conditions of {} {:?} -{:?}", patch.target.name, patch.set, patch.remove);
        self.write(what, |cluster| {
            cluster.find(&patch.target)?;
            let version = cluster.api.edit(&patch.target.name, |pod| {
                pod.conditions.retain(|type_, _| !patch.remove.contains(type_));
                pod.conditions.extend(patch.set.iter().cloned());
            });
            Ok(version.unwrap_or_default().to_string())
        })
    }

    async fn still_drained(&self, _: &ClusterKey, nodes: BTreeMap<&str, &ServiceState>) -> Answer<HashSet<String>> {
        let mut guard = self.cluster();
        let cluster: &mut FakeCluster = &mut guard;
        if cluster.slurm.is_away || !cluster.slurm.cluster.is_up() {
            let source = no("slurmrestd is unreachable");
            return Err(Failure { action: "reading", object: String::new(), source });
        }
        cluster.guard.looked = cluster.order;
        let is_buggy = cluster.bug == Some(Bug::DeleteUnseen);
        let still = nodes.iter().filter(|(node, state)| is_buggy || cluster.slurm.is_still_drained(node, state));
        Ok(still.map(|(node, _)| (*node).to_owned()).collect())
    }

    async fn slurm(&self, write: &SlurmWrite) -> Answer<()> {
        self.write(
            || format!("write to Slurm of {}: {:?}", write.cluster, write.call),
            |cluster| {
                if let Some(why) = cluster.slurm.problem() {
                    return Err(no(why));
                }
                let now = cluster.now;
                if cluster.slurm.is_away || !cluster.slurm.cluster.is_up() {
                    cluster.slurm.mark_pending(&write.call);
                    cluster.slurm.failed(now, "slurmrestd is unreachable");
                    return Err(no("slurmrestd is unreachable"));
                }
                let looks_again = cluster.bug != Some(Bug::WriteUnseen);
                // These two are bugs of the plan, and of the client as well.
                let is_forced = matches!(cluster.bug, Some(Bug::ForgetLive | Bug::ForgetNamed));
                if looks_again && !is_forced && cluster.slurm.is_outdated(&write.call) {
                    return Err(FailureSource::Changed);
                }
                let before = cluster.before_slurm_write(&write.call);
                let done = cluster.slurm.perform(&write.call, looks_again);
                cluster.slurm.mark_pending(&write.call);
                cluster.check_slurm_write(&write.call, before);
                if !cluster.is_calm && cluster.rng.percent(cluster.traits.slurm_faults) {
                    cluster.slurm.failed(now, "timeout");
                    return Err(no("timeout, although the write was performed"));
                }
                done.map_err(|refusal| no(refusal.text))
            },
        )
    }

    async fn register(&self, worker: &RegisterWorker) -> AttemptResult {
        let what = || format!("ask {} to register", worker.node);
        let asked = self.write(what, |cluster| cluster.ask_to_register(&worker.pod.name));
        asked.unwrap_or_else(|failure| AttemptResult::Failed(failure.text()))
    }

    async fn reread(&self, _: &RereadFiles) -> Answer<bool> {
        // Only Controllers do.
        Ok(true)
    }

    async fn read_keys(&self, _: &ReadKeys) -> Answer<bool> {
        // Only Controllers do.
        Ok(true)
    }

    async fn add_finalizer(&self, object: &ObjectVersion, name: &str) -> Answer<()> {
        self.write(
            || format!("add the finalizer {name}"),
            |cluster| {
                let set = cluster.api.set().ok_or_else(|| no("not found"))?;
                if set.metadata.uid.as_deref() != Some(&object.uid) {
                    return Err(conflict());
                }
                if set.metadata.deletion_timestamp.is_some() {
                    return Err(no("no new finalizers can be added if the object is being deleted"));
                }
                cluster.api.edit_set(false, |set| {
                    let all = set.metadata.finalizers.get_or_insert_default();
                    if !all.iter().any(|there| there == name) {
                        all.push(name.to_owned());
                    }
                });
                Ok(())
            },
        )
    }

    async fn keep_finalizers(&self, object: &ObjectVersion, finalizers: &[String]) -> Answer<()> {
        self.write(
            || format!("finalizers {finalizers:?}"),
            |cluster| {
                let set = cluster.api.set().ok_or_else(|| no("not found"))?;
                if set.metadata.resource_version.as_deref() != Some(&object.resource_version) {
                    return Err(conflict());
                }
                let finalizers = Some(finalizers.to_vec()).filter(|all| !all.is_empty());
                cluster.api.edit_set(false, |set| set.metadata.finalizers = finalizers);
                Ok(())
            },
        )
    }

    async fn status(&self, _: &str, _: &ApiResource, _: &ObjectReference, status: Value) -> Answer<()> {
        self.write(
            || format!("status {status}"),
            |cluster| {
                let status = serde_json::from_value(status.clone()).unwrap();
                cluster.api.edit_set(false, |set| set.status = Some(status));
                Ok(())
            },
        )
    }

    async fn publish(&self, _: &ObjectReference, _: &Event) {}
}

fn merge<'a>(into: &mut StringMap, changes: impl Iterator<Item = (&'a String, &'a Option<String>)>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(into.insert(key.clone(), value.clone())),
            None => drop(into.remove(key)),
        }
    }
}

impl FakeCluster {
    fn find(&self, target: &ObjectVersion) -> Result<(), FailureSource> {
        match self.api.pods.get(&target.name) {
            Some(pod) if pod.uid == target.uid => Ok(()),
            Some(_) => Err(conflict()),
            None => Err(no("not found")),
        }
    }

    /// Sets the owner of a pod.
    fn adopt(&mut self, pod: &ObjectVersion, owners: &[OwnerReference]) -> Result<(), FailureSource> {
        self.find(pod)?;
        let found = self.api.pods.get(&pod.name).ok_or_else(|| no("not found"))?;
        if found.version.to_string() != pod.resource_version {
            return Err(conflict());
        }
        if !found.owner.is_empty() {
            let (name, owner) = (pod.name.clone(), found.owner.clone());
            self.violate("owned-only", || format!("pod {name} belongs to {owner}"));
        }
        let owner = owners.first().map(|owner| owner.uid.clone()).unwrap_or_default();
        self.api.edit(&pod.name, |pod| pod.owner = owner);
        Ok(())
    }

    /// SIGHUP to slurmd, unless steps run there.
    fn ask_to_register(&mut self, name: &str) -> Result<AttemptResult, FailureSource> {
        let pod = self.api.pods.get(name).filter(|pod| pod.truth.alive);
        let pod =
            pod.filter(|pod| self.power_of(pod) == Some(Power::On)).ok_or_else(|| no("the command was not run"))?;
        let node = self.slurm.cluster.node(pod.node_name());
        let jobs = node.map(|node| &node.jobs | &node.suspended).unwrap_or_default();
        let has_steps = !jobs.is_empty() || pod.truth.ghost_until > self.now;
        // One that slurmctld knows all the same only tells it its configuration again.
        let is_known = node.is_some();
        let now = self.now;
        if has_steps && self.bug != Some(Bug::RegisterBusy) {
            return Ok(AttemptResult::HasSteps);
        }
        if has_steps {
            self.violate("no-job-lost", || format!("{name} registers again while jobs run there"));
        }
        if let Some(pod) = self.api.pods.get_mut(name).filter(|_| !is_known) {
            pod.truth.register_at = Some(now);
        }
        Ok(AttemptResult::Asked)
    }

    /// Creates an object from the manifest that the operator rendered.
    fn create(&mut self, kind: &str, whole: &Value) -> Result<Option<String>, FailureSource> {
        let text = |pointer: &str| whole.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let texts = |pointer: &str| -> StringMap {
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
            let set = self.api.focus;
            let claim = self.api.claims.entry(name).or_insert(Claim { set, uid, version, owners, deleting: false });
            return Ok(Some(claim.version.to_string()));
        }
        let owner = owners.first().map(|owner| owner.uid.clone()).unwrap_or_default();
        if let Some(there) = self.api.pods.get(&name) {
            if there.owner != owner {
                return Err(FailureSource::Taken);
            }
            return Ok(Some(there.version.to_string()));
        }
        let host = text("/spec/hostname").unwrap();
        if self.neighbours.contains(&host) {
            self.violate("unique-node", || format!("{name} is created although another set uses {host}"));
        }
        // Workers from before the operator set their names.
        let is_odd = self.traits.odd_names && !self.is_calm;
        let other_name = is_odd.then(|| format!("old-{name}"));
        let feature = self.api.set().map(NodeSet::slurm_name).unwrap_or_default();
        let claims = whole.pointer("/spec/volumes").and_then(Value::as_array).into_iter().flatten();
        let claims = claims.filter_map(|volume| volume.pointer("/persistentVolumeClaim/claimName"));
        let terms = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
        let version = self.api.add_pod(Pod {
            hostname: host,
            target: text(&format!("{terms}/0/matchFields/0/values/0")),
            image: text("/spec/containers/0/image").unwrap(),
            is_alone: whole.pointer("/spec/affinity/podAntiAffinity").is_some(),
            claims: claims.filter_map(Value::as_str).map(str::to_owned).collect(),
            labels: texts("/metadata/labels"),
            annotations: texts("/metadata/annotations"),
            written: std::collections::BTreeSet::new(),
            name,
            uid,
            version: 0,
            created: self.now,
            terminating: false,
            owner,
            node: None,
            waits_for: None,
            phase: "Pending",
            ready: None,
            slurmd: Container::Creating,
            conditions: StringMap::new(),
            truth: Truth { feature, other_name, ..Truth::default() },
        });
        Ok(Some(version.to_string()))
    }
}

impl Api {
    /// Server-side apply of the few children that are applied.
    fn apply(&mut self, kind: &str, name: &str, desired: &Desired) -> Fingerprint {
        let version = self.next();
        let mut whole = json!({"metadata": desired.object.metadata, "spec": desired.object.data.get("spec")});
        whole["metadata"]["uid"] = json!(format!("uid-of-{name}"));
        whole["metadata"]["resourceVersion"] = json!(version.to_string());
        match kind {
            "ControllerRevision" => {
                let number = desired.object.data.get("revision").and_then(Value::as_i64).unwrap();
                let data = desired.object.data.get("data").cloned().unwrap();
                let uid = self.revisions.get(name).map_or_else(|| format!("uid-{version}"), |old| old.uid.clone());
                let annotations = desired.object.metadata.annotations.clone().unwrap_or_default();
                let revision = Revision { set: self.focus, uid, version, number, data, annotations };
                self.revisions.insert(name.to_owned(), revision);
                desired.fingerprint()
            }
            "Service" => {
                let service = serde_json::from_value(whole).unwrap();
                Fingerprint::of(self.service.insert(service))
            }
            "PodDisruptionBudget" => {
                let budget = serde_json::from_value(whole).unwrap();
                Fingerprint::of(self.budget.insert(budget))
            }
            other => unreachable!("unexpected apply of a {other}"),
        }
    }

    /// The child objects other than workers.
    pub fn live(&self) -> LiveChildren {
        LiveChildren { service: self.service.clone(), budget: self.budget.clone(), ssh_config: None }
    }
}

impl Claim {
    /// As the operator reads it.
    pub fn facts(&self, name: &str) -> podset::Claim {
        let object = ObjectVersion {
            resource: ApiResource::erase::<k8s_openapi::api::core::v1::PersistentVolumeClaim>(&()),
            namespace: Some(NAMESPACE.to_owned()),
            name: name.to_owned(),
            uid: self.uid.clone(),
            resource_version: self.version.to_string(),
        };
        podset::Claim { object, owners: self.owners.clone(), deleting: self.deleting }
    }
}

impl Revision {
    /// As the operator reads it.
    pub fn facts(&self, name: &str) -> plan::Revision {
        let object = ObjectVersion {
            resource: ApiResource::erase::<ControllerRevision>(&()),
            namespace: Some(NAMESPACE.to_owned()),
            name: name.to_owned(),
            uid: self.uid.clone(),
            resource_version: self.version.to_string(),
        };
        plan::Revision {
            object,
            hash: hash_of(name, self.set),
            number: self.number,
            data: self.data.clone(),
            claim_templates: self.annotations.get(annotation::CLAIM_TEMPLATES).cloned(),
        }
    }
}

/// The revision label of pods, from the name of the revision.
pub fn hash_of(name: &str, set: usize) -> String {
    name.strip_prefix(&format!("{}-", SETS[set])).unwrap_or(name).to_owned()
}
