//! Whether a change may reach a running cluster: what it depends on must not be swapped, and jobs must not be lost.

use engine::{
    daemons::{keyring::KEY, progress::Problem, shared::is_applied},
    plan::Desired,
};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::{
    common::vocabulary::TRUE,
    slinky::{Controller, VOCABULARY, names::annotation},
};

use super::{
    plan::Facts,
    plan_trial::{Outcome, Trial},
};

/// A change of slurmctld or of the files that it distributes.
pub(super) struct Change<'a> {
    pub(super) controller: &'a Controller,
    pub(super) facts: &'a Facts,
    /// slurmctld as it should be.
    pub(super) wanted: &'a Desired,
    /// Hash of the files that only slurmd reads, as they are now.
    pub(super) slurmd_files: &'a str,
    /// What is known of the files.
    pub(super) trial: &'a Trial,
}

/// The jobs of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jobs {
    None,
    Some,
    Unknown,
}

impl Change<'_> {
    /// Returns why the change must wait. Sets `needs_jobs` if jobs decide.
    pub(super) fn check(&self, needs_jobs: &mut bool) -> Result<(), Problem> {
        let Some(live) = &self.facts.stateful_set else { return Ok(()) };
        self.check_cluster_name(live)?;
        self.check_keys(live)?;
        self.check_backups(live)?;
        let risks = [self.loses_state(live).map(str::to_owned), self.is_not_tried(), self.changes_slurmd_files()];
        let Some(what) = risks.into_iter().flatten().next().filter(|_| self.has_worked(live)) else { return Ok(()) };
        if allows_job_loss(self.controller) {
            return Ok(());
        }
        *needs_jobs = true;
        let why = match self.jobs() {
            Jobs::None => return Ok(()),
            Jobs::Some => "there are jobs",
            Jobs::Unknown => "it is not known whether there are jobs",
        };
        let message = format!(
            "{what}, and {why}: the change waits until all jobs have ended. To make it at once, set the annotation {}=true on the \
             Controller, and remove it afterwards",
            annotation::ALLOW_JOB_LOSS
        );
        Err(Problem::new("JobsWouldBeLost", message))
    }

    /// The state of slurmctld is in a directory that is named after the cluster, and slurmctld refuses to start with the state
    /// of another one.
    fn check_cluster_name(&self, live: &StatefulSet) -> Result<(), Problem> {
        let live = serde_json::to_value(live).unwrap_or_default();
        let (found, wanted) = (state_mount(&live), state_mount(&self.wanted.object.data));
        if found.is_none() || found == wanted {
            return Ok(());
        }
        let name = found.and_then(|path| path.rsplit('/').next()).unwrap_or_default();
        Err(Problem::new(
            "ImmutableField",
            format!(
                "spec.clusterName cannot be changed, because the state of slurmctld belongs to the cluster {name}: set it back to {name}"
            ),
        ))
    }

    /// All daemons have the key, so one from elsewhere would cut them off. CRDs of earlier releases allow the change. The same key
    /// in another Secret is harmless.
    fn check_keys(&self, live: &StatefulSet) -> Result<(), Problem> {
        if !self.has_worked(live) {
            return Ok(());
        }
        let live = serde_json::to_value(live).unwrap_or_default();
        let keys = [
            ("spec.slurmKeyRef", KEY, annotation::hash::SLURM_KEY),
            ("spec.jwtKeyRef", "jwt.key", annotation::hash::JWT_KEY),
        ];
        for (field, file, hash) in keys {
            let wanted = &self.wanted.object.data;
            let (found, new) = (secret_of(&live, file), secret_of(wanted, file));
            let used = pod_annotation(&live, hash);
            // The Go operator hashes the whole Secret.
            let is_whole_secret = file == KEY && used.is_some() && used == self.facts.keys.users_secret.as_deref();
            let is_same = used == pod_annotation(wanted, hash) || is_whole_secret;
            if let Some((secret, entry)) = found.filter(|_| found != new && !is_same) {
                let message = format!(
                    "{field} cannot be changed, because the daemons of the cluster use the key in the Secret {secret}, entry {entry}: \
                     set it back to that"
                );
                return Err(Problem::new("ImmutableField", message));
            }
        }
        Ok(())
    }

    /// Backups share one claim. Pods of a `StatefulSet` with a claim template have one each.
    fn check_backups(&self, live: &StatefulSet) -> Result<(), Problem> {
        let has_claims = live
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_claim_templates.as_ref())
            .is_some_and(|claims| !claims.is_empty());
        if self.controller.spec.replicas() <= 1 || !has_claims {
            return Ok(());
        }
        Err(Problem::new(
            "ClaimKept",
            "spec.ha.enabled needs a claim that all slurmctld share, but the StatefulSet has its own, which cannot be changed. To move \
             the state, copy the claim into one with ReadWriteMany, and create the Controller anew with it as \
             spec.persistence.existingClaim",
        ))
    }

    fn has_worked(&self, live: &StatefulSet) -> bool {
        has_worked(self.controller, live)
    }

    /// A restart without a persistent state loses all jobs.
    fn loses_state(&self, live: &StatefulSet) -> Option<&'static str> {
        let restarts = !is_applied(&VOCABULARY, live, self.wanted);
        (has_scratch_state(live) && restarts)
            .then_some("a change of the configuration or the pod restarts slurmctld, whose state is not persistent")
    }

    /// Slurm may refuse what was not tried.
    fn is_not_tried(&self) -> Option<String> {
        let Outcome::Impossible(why) = &self.trial.outcome else { return None };
        Some(format!("the configuration has changed, and could not be tried: {why}"))
    }

    /// A file that slurmd cannot read ends slurmd and its jobs.
    fn changes_slurmd_files(&self) -> Option<String> {
        if self.trial.is_proven() {
            return None;
        }
        let live = self.facts.config_map.as_ref()?.annotations().get(annotation::hash::SLURMD_FILES)?;
        let message = "files that slurmd reads have changed, and a mistake in them ends slurmd and its jobs";
        (live != self.slurmd_files).then(|| message.to_owned())
    }

    fn jobs(&self) -> Jobs {
        match self.facts.snapshot.as_ref().and_then(|snapshot| snapshot.jobs.read()) {
            None => Jobs::Unknown,
            Some(jobs) if jobs.by_partition.is_empty() && jobs.by_node.is_empty() => Jobs::None,
            Some(_) => Jobs::Some,
        }
    }
}

/// Whether there can be jobs: a slurmctld that has never worked has none. One that only restarts may have.
pub(super) fn has_worked(controller: &Controller, live: &StatefulSet) -> bool {
    let is_ready = live.status.as_ref().is_some_and(|status| status.ready_replicas.unwrap_or(0) > 0);
    is_ready || controller.status.as_ref().is_some_and(|status| status.slurm_version.is_some())
}

/// Whether the user has agreed that jobs may be lost.
pub(super) fn allows_job_loss(controller: &Controller) -> bool {
    controller.annotations().get(annotation::ALLOW_JOB_LOSS).is_some_and(|value| value == TRUE)
}

/// Whether the state of slurmctld is deleted with its pod.
fn has_scratch_state(live: &StatefulSet) -> bool {
    let volumes = live.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()?.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| volume.name == "statesave" && volume.empty_dir.is_some())
}

/// The Secret, and its entry, that slurmctld mounts as this file.
fn secret_of<'a>(stateful_set: &'a Value, file: &str) -> Option<(&'a str, &'a str)> {
    let volumes = stateful_set.pointer("/spec/template/spec/volumes")?.as_array()?.iter();
    let sources = volumes.filter_map(|volume| volume.pointer("/projected/sources")?.as_array()).flatten();
    let mut secrets = sources.filter_map(|source| source.get("secret"));
    secrets.find_map(|secret| {
        let item = secret.get("items")?.as_array()?.iter().find(|item| item.get("path") == Some(&json!(file)))?;
        Some((secret.get("name")?.as_str()?, item.get("key")?.as_str()?))
    })
}

fn pod_annotation<'a>(stateful_set: &'a Value, key: &str) -> Option<&'a str> {
    stateful_set.pointer("/spec/template/metadata/annotations")?.get(key)?.as_str()
}

/// Where the state of slurmctld is mounted.
fn state_mount(stateful_set: &Value) -> Option<&str> {
    let containers = stateful_set.pointer("/spec/template/spec/containers")?.as_array()?;
    let slurmctld = containers.iter().find(|container| container.get("name") == Some(&json!("slurmctld")))?;
    let mounts = slurmctld.get("volumeMounts")?.as_array()?;
    mounts.iter().find(|mount| mount.get("name") == Some(&json!("statesave")))?.get("mountPath")?.as_str()
}
