//! Tries a configuration before it becomes that of a running cluster.
//!
//! The pod of a trial is named after what it tries, and stays until that is in use or something else is wanted: it is the record of
//! the result, also for an operator that was restarted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use engine::{
    component::Component,
    config::{TrialFiles, trial_files},
    daemons::{
        progress::Problem,
        shared::{Parent, StringMap},
        trial::{self, Program, Verdict},
    },
    hash::hash_of_files,
    plan::{Desired, ObjectVersion, Step},
    podset::Snapshot,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt;
use slurm::version::SlurmVersion;
use slurm_operator_api::{
    common::template::{Overlay, PodTemplate},
    slinky::{Controller, names::annotation::hash},
};

use super::{
    change::{allows_job_loss, has_worked},
    model,
    plan::Facts,
    plan_files::{OwnFiles, all_files},
    plan_reread::responds,
};

/// How often to look at a trial: whether its pod can be scheduled changes without an event.
const RECHECK: Duration = Duration::from_secs(5);

/// After this time what failed is tried again, because the reason may be gone.
const RETRY: SignedDuration = SignedDuration::from_mins(10);

/// A `ConfigMap` can have this many bytes, with its names.
const MAX_SIZE: usize = 1_000_000;

/// A slurmd as a `NodeSet` describes it.
#[derive(Clone, Debug)]
pub struct SlurmdTemplate {
    pub container: Overlay,
    pub template: PodTemplate,
}

/// The trial of the files that users ask for.
pub(super) struct Trial {
    pub(super) outcome: Outcome,
    /// What the trial leaves out.
    pub(super) not_tried: BTreeSet<String>,
    /// The pod, for messages.
    pub(super) pod: String,
    hash: String,
    apply: Vec<Desired>,
    remove: Vec<Step>,
    next: Option<Duration>,
}

/// What is known of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// They are in use, or there is nothing to lose, or the user has agreed to lose it.
    NotNeeded,
    Trying,
    Passed {
        /// Whether every release of slurmd that runs was tried.
        everywhere: bool,
    },
    /// Slurm refuses them.
    Refused(String),
    /// They cannot be tried.
    Impossible(String),
}

impl Trial {
    pub(super) fn of(
        controller: &Controller,
        facts: &Facts,
        parent: &Parent,
        files: &OwnFiles,
        now: Timestamp,
    ) -> Self {
        let image = controller.spec.slurmctld.text("image").unwrap_or_default();
        let hash = hash_of_files([("files", files.hash.as_bytes()), ("image", image.as_bytes())]);
        let mut trial = Self {
            outcome: Outcome::NotNeeded,
            not_tried: BTreeSet::new(),
            pod: String::new(),
            hash,
            apply: Vec::new(),
            remove: Vec::new(),
            next: None,
        };
        let Some(_) = facts.stateful_set.as_ref().filter(|live| has_worked(controller, live)) else { return trial };
        let all = all_files(controller, facts, &files.files);
        let tried = trial_files(&all, live_gres_conf(facts).as_deref(), model::known_qos(controller, facts).is_some());
        trial.not_tried.clone_from(&tried.not_tried);
        // A cluster of an earlier release has no such annotation.
        let in_use = facts.config_map.as_ref().and_then(|map| map.annotations().get(hash::TRIED));
        let is_needed = in_use.is_some_and(|in_use| *in_use != trial.hash) && !allows_job_loss(controller);
        if is_needed {
            trial.run(controller, facts, parent, &tried, now);
        }
        trial.remove_others(facts);
        trial
    }

    /// Looks at the trial of these files, or starts it.
    fn run(&mut self, controller: &Controller, facts: &Facts, parent: &Parent, files: &TrialFiles, now: Timestamp) {
        let size: usize = files.files.iter().map(|(name, content)| name.len() + content.len()).sum();
        if size > MAX_SIZE {
            self.outcome = Outcome::Impossible("the files have more than 1 MB together".to_owned());
            return;
        }
        let (config_map, pod) = match objects(controller, facts, parent, files) {
            Ok(objects) => objects,
            Err(problem) => {
                self.outcome = Outcome::Impossible(problem.message);
                return;
            }
        };
        self.pod = pod.object.name_any();
        self.next = Some(RECHECK);
        let Some(found) = facts.trial_pods.iter().find(|found| found.name_any() == self.pod) else {
            self.outcome = Outcome::Trying;
            self.apply = vec![config_map, pod];
            return;
        };
        self.outcome = match trial::verdict(found, now) {
            _ if found.metadata.deletion_timestamp.is_some() => Outcome::Trying,
            Verdict::Trying => Outcome::Trying,
            Verdict::Passed { slurmd } => {
                Outcome::Passed { everywhere: is_everywhere(facts.snapshot.as_deref(), &slurmd) }
            }
            Verdict::Refused(why) => Outcome::Refused(why),
            Verdict::Impossible(why) => Outcome::Impossible(why),
        };
        if let (Outcome::Refused(_) | Outcome::Impossible(_), Some(ended)) = (&self.outcome, trial::ended_at(found)) {
            if now.duration_since(ended) > RETRY {
                self.pod.clear();
            } else {
                self.next = Some(Duration::from_mins(1));
            }
        }
    }

    /// Removes all trials but this one.
    fn remove_others(&mut self, facts: &Facts) {
        let is_other = |name: &str| name != self.pod;
        let why = "the trial is over";
        let maps = facts.trial_config_maps.iter().filter(|map| is_other(&map.name_any()));
        let pods = facts.trial_pods.iter().filter(|pod| is_other(&pod.name_any()));
        let pods = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let maps = maps.map(|map| Step::Delete(Box::new(ObjectVersion::of::<ConfigMap>(map)), why));
        let pods = pods.map(|pod| Step::Delete(Box::new(ObjectVersion::of::<Pod>(pod)), why));
        self.remove = maps.chain(pods).collect();
    }

    /// Adds what is to be done.
    pub(super) fn add_to(&mut self, component: &mut Component<'_>) {
        let mut apply = std::mem::take(&mut self.apply).into_iter();
        if let Some(config_map) = apply.next() {
            component.apply(config_map);
        }
        for step in apply.map(|pod| Step::Apply(Box::new(pod))).chain(std::mem::take(&mut self.remove)) {
            component.change(step);
        }
        if let Some(delay) = self.next {
            component.recheck_after(delay);
        }
    }

    /// Whether the files may be sent to every slurmd.
    pub(super) fn is_proven(&self) -> bool {
        self.outcome == Outcome::Passed { everywhere: true }
    }

    /// Whether the files may be used. What could not be tried waits for jobs, see `change.rs`.
    pub(super) fn allows(&self) -> Result<bool, Problem> {
        match &self.outcome {
            Outcome::NotNeeded | Outcome::Passed { .. } | Outcome::Impossible(_) => Ok(true),
            Outcome::Trying => Ok(false),
            Outcome::Refused(why) => {
                Err(Problem::invalid(format!("{}. The last good configuration is kept", why.trim_end_matches('.'))))
            }
        }
    }

    /// Records what is used.
    pub(super) fn annotation(&self) -> StringMap {
        BTreeMap::from([(hash::TRIED.to_owned(), self.hash.clone())])
    }
}

/// The files and the pod of a trial, named after both.
fn objects(
    controller: &Controller,
    facts: &Facts,
    parent: &Parent,
    files: &TrialFiles,
) -> Result<(Desired, Desired), Problem> {
    let spec = &controller.spec;
    let slurmd = facts.slurmd.iter().filter_map(|slurmd| {
        let image = slurmd.container.text("image")?;
        Some(Program { image, container: &slurmd.container, template: &slurmd.template })
    });
    let slurmctld = Program {
        image: spec.slurmctld.text("image").unwrap_or_default(),
        container: &spec.slurmctld,
        template: &spec.template,
    };
    let unnamed = trial::Trial { parent: parent.clone(), hash: "", files, slurmctld, slurmd: slurmd.collect() };
    let pod = trial::pod(&unnamed).map_err(Problem::invalid)?;
    let parts = [&trial::config_map(&unnamed).object.data, &pod.object.data].map(ToString::to_string);
    let hash = hash_of_files(["files", "pod"].into_iter().zip(parts.iter().map(String::as_bytes)));
    let named = trial::Trial { hash: &hash, ..unnamed };
    Ok((trial::config_map(&named), trial::pod(&named).map_err(Problem::invalid)?))
}

/// Whether every release of slurmd that runs was tried.
fn is_everywhere(snapshot: Option<&Snapshot>, tried: &BTreeSet<SlurmVersion>) -> bool {
    let Some(snapshot) = snapshot else { return false };
    let mut running = snapshot.nodes.values().filter(|node| responds(node));
    running.all(|node| node.version.is_some_and(|version| tried.contains(&SlurmVersion { micro: None, ..version })))
}

/// gres.conf as it is in use.
fn live_gres_conf(facts: &Facts) -> Option<String> {
    let maps = facts.config_map.iter().chain(&facts.config_copies);
    maps.filter_map(|map| map.data.as_ref()?.get("gres.conf")).next_back().cloned()
}
