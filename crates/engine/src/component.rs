//! Plans the objects of one daemon: applies them in stages, removes what is no longer needed, and reports progress.

use std::{collections::HashSet, time::Duration};

use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::Pod,
};
use kube::{Resource, ResourceExt};

use crate::{
    daemons::{
        claim_templates,
        pods::{PodProblem, is_outdated, summary},
        progress::{Problem, Progress, daemon_conditions, of_deployment, of_stateful_set},
        shared::{Daemon, Parent, is_applied, is_owned},
    },
    plan::{Desired, GeneratedSecret, Next, ObjectVersion, Plan, Step},
};

/// How often a workload that is not ready is looked at: problems of pods can change without a change of the workload.
const RECHECK: Duration = Duration::from_secs(10);

const CLAIM_KEPT: &str = "spec.persistence differs from the volume in use, which is therefore kept: set it back. To move the \
                          state, copy the volume and delete the StatefulSet; without a copy all jobs are lost";

/// The objects of one daemon, under construction.
pub struct Component<'a> {
    parent: &'a Parent,
    daemon: Daemon,
    keys: Vec<Step>,
    config: Vec<Step>,
    workload: Vec<Step>,
    problems: Vec<Problem>,
    progress: Progress,
    next: Next,
}

impl<'a> Component<'a> {
    /// `progress` is that of the workload as it is now. If it does not exist, a problem says why.
    pub fn new(parent: &'a Parent, daemon: Daemon, progress: Progress) -> Self {
        let progress = match progress {
            Progress::Absent(_) => Progress::Absent("see the Degraded condition".to_owned()),
            other => other,
        };
        Self {
            parent,
            daemon,
            keys: Vec::new(),
            config: Vec::new(),
            workload: Vec::new(),
            problems: Vec::new(),
            progress,
            next: Next::OnChange,
        }
    }

    /// Unwraps the result, or records the problem.
    pub fn check<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.problems.push(problem)).ok()
    }

    /// Records a problem.
    pub fn problem(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// Generates a Secret before anything else.
    pub fn generate(&mut self, secret: GeneratedSecret) {
        self.keys.push(Step::GenerateSecret(Box::new(secret)));
    }

    /// Whether Secrets are generated: their hashes are known in the next pass.
    pub fn generates(&self) -> bool {
        self.keys.iter().any(|step| matches!(step, Step::GenerateSecret(_)))
    }

    /// Applies an object: before the workload, if its pods mount it, and otherwise together with it, so that a Service that is refused
    /// does not hold up the daemon.
    pub fn apply(&mut self, desired: Desired) {
        let is_mounted = matches!(desired.resource.kind.as_str(), "ConfigMap" | "Secret" | "PersistentVolumeClaim");
        let stage = if is_mounted { &mut self.config } else { &mut self.workload };
        stage.push(Step::Apply(Box::new(desired)));
    }

    /// Makes another change, together with the workload.
    pub fn change(&mut self, step: Step) {
        self.workload.push(step);
    }

    /// Leaves the workload as it is for now. If it does not exist, the status says why.
    pub fn wait(&mut self, why: String) {
        if matches!(self.progress, Progress::Absent(_)) {
            self.progress = Progress::Absent(why);
        }
    }

    /// Plans again after this time.
    pub fn recheck_after(&mut self, delay: Duration) {
        self.next = Next::After(delay);
    }

    /// Applies the Deployment of the daemon.
    pub fn deployment(&mut self, desired: Desired, live: Option<&Deployment>) {
        self.progress = of_deployment(live, self.has(live, &desired));
        self.roll_out(desired.seeing(live));
    }

    /// Applies an object before all others.
    pub fn apply_first(&mut self, desired: Desired) {
        self.keys.push(Step::Apply(Box::new(desired)));
    }

    /// Applies the `StatefulSet` of the daemon. The volume with its state is never swapped: a difference is reported.
    ///
    /// It is replaced if its Service must change. Its pods are in `pods`, at least those that are not ready.
    pub fn stateful_set(&mut self, mut desired: Desired, live: Option<&StatefulSet>, pods: &[Pod]) {
        let has_spec = self.has(live, &desired);
        self.progress = of_stateful_set(live, has_spec);
        if let Some(live) = live {
            let service = desired.object.data.pointer("/spec/serviceName").and_then(|name| name.as_str());
            let live_service = live.spec.as_ref().and_then(|spec| spec.service_name.as_deref());
            if live.metadata.deletion_timestamp.is_some() || live_service != service {
                self.replace(live);
                return;
            }
            if claim_templates::keep(&mut desired, live) {
                self.problems.push(Problem::new("ClaimKept", CLAIM_KEPT));
            }
            if has_spec {
                self.delete_outdated(live, pods);
            }
        }
        self.roll_out(desired.seeing(live));
    }

    fn has(&self, live: Option<&impl ResourceExt>, desired: &Desired) -> bool {
        live.is_some_and(|live| is_applied(self.parent.vocabulary, live, desired))
    }

    fn roll_out(&mut self, desired: Desired) {
        if self.progress != Progress::Ready {
            self.next = Next::After(RECHECK);
        }
        self.workload.push(Step::Apply(Box::new(desired)));
    }

    /// A `StatefulSet` does not update its pods while one of them is not ready, so a pod that can never become ready
    /// would keep its old template forever.
    fn delete_outdated(&mut self, live: &StatefulSet, pods: &[Pod]) {
        let outdated = pods.iter().filter(|pod| is_outdated(pod, live));
        let why = "it is not ready and has an old template";
        self.workload.extend(outdated.map(|pod| Step::Delete(Box::new(ObjectVersion::of::<Pod>(pod)), why)));
    }

    /// Deletes a `StatefulSet` whose immutable fields differ, to recreate it.
    fn replace(&mut self, live: &StatefulSet) {
        let why = "an immutable field of its StatefulSet must change";
        self.progress = Progress::Replacing(why.to_owned());
        self.next = Next::After(Duration::from_secs(5));
        if live.metadata.deletion_timestamp.is_none() {
            self.workload.push(Step::Delete(Box::new(ObjectVersion::of::<StatefulSet>(live)), why));
        }
    }

    /// Deletes those of the objects that the parent controls and that are not applied by this plan. Only for objects
    /// that are not wanted: one that a problem kept from being applied is still needed.
    pub fn remove_orphans<'l, K>(&mut self, live: impl IntoIterator<Item = &'l K>)
    where
        K: Resource<DynamicType = ()> + 'l,
    {
        let applied: HashSet<(String, String)> =
            self.keys.iter().chain(&self.config).chain(&self.workload).filter_map(applied).collect();
        let is_orphan = |live: &&K| {
            is_owned(*live, self.parent) && !applied.contains(&(K::kind(&()).into_owned(), live.name_any()))
        };
        let orphans = live.into_iter().filter(is_orphan);
        let delete = |live: &K| Step::Delete(Box::new(ObjectVersion::of::<K>(live)), "it is no longer needed");
        let orphans: Vec<Step> = orphans.map(delete).collect();
        self.workload.extend(orphans);
    }

    /// The plan, with the conditions of the daemon.
    pub fn finish<S: Default>(self, pod_problems: &[PodProblem], status: S) -> Plan<S> {
        let pod_problem = summary(pod_problems);
        Plan {
            conditions: daemon_conditions(self.daemon.program, &self.progress, &self.problems, pod_problem.as_ref()),
            events: self.problems.iter().map(Problem::event).collect(),
            stages: [self.keys, self.config, self.workload].into_iter().filter(|stage| !stage.is_empty()).collect(),
            status,
            next: self.next,
            ..Plan::default()
        }
    }
}

/// Kind and name of an object that a step applies.
fn applied(step: &Step) -> Option<(String, String)> {
    match step {
        Step::Apply(desired) => Some((desired.resource.kind.clone(), desired.object.name_any())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Service};
    use serde_json::{Value, json};
    use slurm_operator_api::slinky::VOCABULARY;

    use super::*;
    use crate::daemons::shared::{SLURMRESTD, desired, marked};

    fn parent() -> Parent {
        let object: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}})).unwrap();
        Parent::of(&object, &VOCABULARY)
    }

    fn service(name: &str, owner: &str) -> Service {
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "p", "uid": owner, "controller": true});
        let metadata = json!({
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "ownerReferences": [owner],
        });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn titles<S>(plan: &Plan<S>) -> Vec<String> {
        plan.stages.iter().flatten().map(Step::title).collect()
    }

    #[test]
    fn only_owned_objects_that_are_not_applied_are_orphans() {
        let parent = parent();
        let mut component = Component::new(&parent, SLURMRESTD, Progress::Ready);
        component.apply(desired::<Service>(parent.metadata("kept".into(), SLURMRESTD, &[]), json!({})));
        component.remove_orphans(&[service("kept", "u"), service("old", "u"), service("foreign", "x")]);
        let plan = component.finish(&[], ());
        assert_eq!(titles(&plan), ["apply Service kept", "delete Service old: it is no longer needed"]);
    }

    #[test]
    fn a_service_that_is_refused_does_not_hold_up_the_workload() {
        let parent = parent();
        let mut component = Component::new(&parent, SLURMRESTD, Progress::Ready);
        let metadata = |name: &str| parent.metadata(name.into(), SLURMRESTD, &[]);
        component.apply(desired::<Service>(metadata("service"), json!({})));
        component.apply(desired::<ConfigMap>(metadata("files"), json!({})));
        component.deployment(desired::<Deployment>(metadata("daemon"), json!({})), None);
        let stages = component.finish(&[], ()).stages;
        let stages: Vec<Vec<String>> = stages.iter().map(|stage| stage.iter().map(Step::title).collect()).collect();
        assert_eq!(stages, [vec!["apply ConfigMap files"], vec!["apply Service service", "apply Deployment daemon"]]);
    }

    #[test]
    fn a_problem_is_reported_and_a_running_daemon_stays_ready() {
        let parent = parent();
        let mut component = Component::new(&parent, SLURMRESTD, Progress::Ready);
        assert_eq!(component.check::<()>(Err(Problem::invalid("spec is wrong"))), None);
        component.wait("waiting for its key".into());
        let plan = component.finish(&[], ());
        let statuses: Vec<Value> =
            plan.conditions.iter().map(|found| json!([found.type_, found.status.text(), found.message])).collect();
        assert_eq!(
            json!(statuses),
            json!([
                ["Ready", "True", "slurmrestd is ready"],
                ["Progressing", "False", ""],
                ["Degraded", "True", "spec is wrong"],
            ])
        );
        assert_eq!(plan.events.len(), 1);
    }

    #[test]
    fn an_absent_daemon_says_what_it_waits_for() {
        let parent = parent();
        let mut component = Component::new(&parent, SLURMRESTD, of_deployment(None, false));
        component.wait("waiting for its key".into());
        let plan = component.finish(&[], ());
        assert_eq!(plan.conditions[0].message, "slurmrestd is not running yet: waiting for its key");
        assert_eq!(plan.next, Next::OnChange);
    }

    #[test]
    fn a_workload_that_is_not_ready_is_looked_at_again() {
        let parent = parent();
        let mut component = Component::new(&parent, SLURMRESTD, of_deployment(None, false));
        let metadata = parent.metadata("d".into(), SLURMRESTD, &[]);
        component.deployment(marked::<Deployment>(&VOCABULARY, metadata, json!({"spec": {}})), None);
        let plan = component.finish(&[], ());
        assert_eq!((titles(&plan), plan.next), (vec!["apply Deployment d".to_owned()], Next::After(RECHECK)));
    }
}
