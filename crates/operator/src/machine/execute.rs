//! Executes a plan: stages in order, the steps of a stage concurrently, then the status, then the events.

use std::{collections::BTreeMap, sync::Mutex};

use engine::{
    conditions::{ConditionStatus, NewCondition},
    plan::{Desired, DrainedWorkers, Event, FIELD_MANAGER, Fingerprint, ObjectVersion, Plan, Step, Title},
    podset::{Attempt, AttemptResult},
};
use futures::{
    StreamExt,
    future::join_all,
    stream::{self, FuturesUnordered},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::core::ApiResource;
use serde_json::Value;
use slurm::hostlist;
use slurm_operator_api::common::conditions::{DEGRADED, READY};

use super::{Conditions, Effects, Kind, merge_conditions};
use crate::{
    failure::Failure,
    kube_view::own_writes::{AppliedCache, ChildrenOf, OwnWrites},
    lock::lock,
};

/// Maximum concurrent steps.
const CONCURRENCY: usize = 32;

/// How many objects a line of the log names at most: container runtimes split lines of more than 16 KiB.
const MOST_IN_LINE: usize = 250;

/// The outcome of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of successful writes.
    pub writes: usize,
    /// Failed writes.
    pub failures: Vec<Failure>,
    /// Whether an object was not written because it had changed since it was observed, or because the lease was too old: reconcile
    /// again soon.
    pub is_stale: bool,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Written,
    Nothing,
    /// The object has changed since it was observed, or may not be written now.
    Stale,
}

/// Executes a plan. `leads` is checked before each write: a process that lost leadership stops writing.
pub async fn execute<K: Kind>(
    effects: &impl Effects,
    own_writes: &OwnWrites,
    object: &K,
    plan: Plan<K::Status>,
    now: Timestamp,
    leads: impl Fn() -> bool + Sync,
) -> Outcome {
    let manager = format!("{FIELD_MANAGER}{}", K::NAME);
    let executor = Executor { effects, own_writes, manager, object, now, leads: &leads, written: Mutex::default() };
    let mut outcome = Outcome::default();
    for stage in &plan.stages {
        // Steps are started one by one up to the limit: a future takes memory, and a stage may have ten thousand
        // steps.
        let mut steps = stage.iter();
        let mut under_way: FuturesUnordered<_> =
            steps.by_ref().take(CONCURRENCY).map(|step| executor.perform(step)).collect();
        while let Some(result) = under_way.next().await {
            under_way.extend(steps.next().map(|step| executor.perform(step)));
            match result {
                Ok(Done::Written) => outcome.writes += 1,
                Ok(Done::Nothing) => {}
                Ok(Done::Stale) => outcome.is_stale = true,
                Err(failure) => outcome.failures.push(failure),
            }
        }
        executor.log();
        if !leads() {
            outcome.is_stale = true;
            return outcome;
        }
        if !outcome.failures.is_empty() {
            break;
        }
    }
    if !leads() {
        outcome.is_stale = true;
        return outcome;
    }
    executor.publish(plan, &mut outcome).await;
    outcome
}

/// Whether the write may have taken effect. One without a response may have: a worker that may be terminating must
/// not be given jobs.
fn may_be_done<T>(done: &Result<T, Failure>) -> bool {
    done.as_ref().err().is_none_or(Failure::is_unanswered)
}

/// Executes the steps for one object.
struct Executor<'a, K, E> {
    effects: &'a E,
    own_writes: &'a OwnWrites,
    manager: String,
    object: &'a K,
    now: Timestamp,
    leads: &'a (dyn Fn() -> bool + Sync),
    /// What was written and is not logged yet.
    written: Mutex<Vec<Title>>,
}

/// A line of the log.
#[derive(Debug, PartialEq, Eq)]
struct LogLine {
    text: String,
    /// The names that the text has folded, so that `grep` finds each of them.
    objects: Option<String>,
}

/// One line for each group of writes that differ only in the object.
fn lines(written: Vec<Title>) -> Vec<LogLine> {
    let mut groups: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for Title { what, object, why } in written {
        groups.entry((what, why)).or_default().push(object);
    }
    let mut lines = Vec::new();
    for ((what, why), objects) in groups {
        for objects in objects.chunks(MOST_IN_LINE) {
            lines.push(line(&what, objects, &why));
        }
    }
    lines
}

fn line(what: &str, objects: &[String], why: &str) -> LogLine {
    let folded = hostlist::fold(objects.iter().map(String::as_str)).unwrap_or_else(|_| objects.join(", "));
    // What names several nodes is a list of Slurm.
    let names: Vec<String> =
        objects.iter().flat_map(|object| hostlist::expand(object).unwrap_or_else(|_| vec![object.clone()])).collect();
    let objects = (names.len() > 1).then(|| names.join(" "));
    LogLine { text: format!("{what} {folded}{why}"), objects }
}

impl<K: Kind, E: Effects> Executor<'_, K, E> {
    /// A conflict is not a failure: it is what the preconditions of a write are for.
    async fn perform(&self, step: &Step) -> Result<Done, Failure> {
        if !(self.leads)() {
            return Ok(Done::Stale);
        }
        let done = match self.attempt(step).await {
            Err(failure) if failure.class() == "Conflict" => Ok(Done::Stale),
            Err(failure) if failure.is_of_terminating_namespace() => Ok(Done::Nothing),
            done => done,
        };
        // The steps that it consists of are recorded one by one.
        if matches!(done, Ok(Done::Written)) && !matches!(step, Step::Chain(_) | Step::DeleteDrained(_)) {
            lock(&self.written).push(step.titled());
        }
        done
    }

    /// Logs what was written, to which objects and why: one line for those that differ only in the object. A line for each
    /// of ten thousand workers would cost more than the writes.
    fn log(&self) {
        let meta = self.object.meta();
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        for LogLine { text, objects } in lines(std::mem::take(&mut *lock(&self.written))) {
            tracing::info!(kind = K::NAME, namespace, name, objects, "{text}");
        }
    }

    async fn attempt(&self, step: &Step) -> Result<Done, Failure> {
        let uid = self.object.meta().uid.as_deref().unwrap_or_default();
        let now = self.now;
        match step {
            Step::Apply(desired) => return self.apply(desired).await,
            Step::GenerateSecret(generated) => {
                let manager = generated.manager.as_ref().unwrap_or(&self.manager);
                self.effects.generate_secret(manager, generated).await?;
            }
            Step::SetOwners(child, owners) => self.effects.set_owners(child, owners).await?,
            Step::Delete(object, _) => {
                let done = self.effects.delete(object).await;
                if may_be_done(&done) {
                    let children_of = ChildrenOf::new(uid, &object.resource.kind);
                    self.own_writes.children.deleted(&children_of, &object.name, &object.uid, now);
                }
                // Revisions are not watched, so nothing else reports that they are gone.
                if object.resource.kind == "ControllerRevision" {
                    let (namespace, name) = (object.namespace.clone(), Some(object.name.clone()));
                    let metadata = ObjectMeta { namespace, name, ..ObjectMeta::default() };
                    let key = AppliedCache::key(&object.resource.group, &object.resource.kind, &metadata);
                    self.own_writes.applied.remove(&key);
                }
                done?;
            }
            Step::Create(object) => {
                if object.exclusive.as_ref().is_some_and(|name| !self.own_writes.names.take(name, uid, now)) {
                    return Ok(Done::Stale);
                }
                let made = self.effects.create(object).await;
                if may_be_done(&made) {
                    let version = made.as_ref().ok().cloned().flatten();
                    let children_of = ChildrenOf::new(uid, &object.resource.kind);
                    self.own_writes.children.created(&children_of, object.name(), version, now);
                }
                made?;
            }
            Step::PatchMetadata(patch) => {
                let version = self.effects.patch_metadata(patch).await?;
                let target = &patch.target;
                let children_of = ChildrenOf::new(uid, &target.resource.kind);
                self.own_writes.children.changed(&children_of, &target.name, &version, now);
            }
            Step::PatchConditions(patch) => {
                let version = self.effects.patch_conditions(patch).await?;
                let target = &patch.target;
                let children_of = ChildrenOf::new(uid, &target.resource.kind);
                self.own_writes.children.changed(&children_of, &target.name, &version, now);
            }
            Step::GrowClaim(claim, size) => self.effects.grow_claim(claim, size).await?,
            Step::Slurm(write) => self.effects.slurm(write).await?,
            Step::Finalizer { name, wanted } => return self.finalizer(name, *wanted).await,
            Step::Chain(steps) => {
                let mut done = Done::Nothing;
                for step in steps {
                    done = Box::pin(self.perform(step)).await?;
                    if done == Done::Stale {
                        break;
                    }
                }
                return Ok(done);
            }
            Step::DeleteDrained(drained) => return self.delete_drained(drained).await,
            Step::Register(worker) => {
                let result = self.effects.register(worker).await;
                let is_asked = result == AttemptResult::Asked;
                self.own_writes.attempts.insert(&worker.pod.uid, Attempt { at: now, result });
                return Ok(if is_asked { Done::Written } else { Done::Nothing });
            }
            Step::Reread(files) => {
                let is_done = self.effects.reread(files).await?;
                return Ok(if is_done { Done::Written } else { Done::Stale });
            }
            Step::ReadKeys(keys) => {
                return Ok(match self.effects.read_keys(keys).await {
                    Ok(true) => Done::Written,
                    Ok(false) => Done::Nothing,
                    // It is tried again. The status names the pod, and the others do not wait for it.
                    Err(failure) => {
                        tracing::warn!(kind = K::NAME, error = failure.text(), "a daemon has not read its keys");
                        Done::Nothing
                    }
                });
            }
        }
        Ok(Done::Written)
    }

    /// Deletes the workers that a last look at Slurm still shows as drained.
    async fn delete_drained(&self, drained: &DrainedWorkers) -> Result<Done, Failure> {
        let states = drained.workers.iter().map(|(node, worker)| (node.as_str(), &worker.state)).collect();
        let still = self.effects.still_drained(&drained.cluster, states).await?;
        let is_stale = still.len() < drained.workers.len();
        let confirmed = drained.workers.iter().filter(|(node, _)| still.contains(*node));
        let deletes: Vec<_> = confirmed.map(|(_, worker)| Box::pin(self.perform(&worker.delete))).collect();
        let results: Vec<Result<Done, Failure>> = stream::iter(deletes).buffer_unordered(CONCURRENCY).collect().await;
        let mut done = if is_stale { Done::Stale } else { Done::Nothing };
        for result in results {
            match result? {
                Done::Written if done == Done::Nothing => done = Done::Written,
                Done::Stale => done = Done::Stale,
                Done::Written | Done::Nothing => {}
            }
        }
        Ok(done)
    }

    /// Skips an apply that would change nothing.
    async fn apply(&self, desired: &Desired) -> Result<Done, Failure> {
        let key = AppliedCache::key(&desired.resource.group, &desired.resource.kind, &desired.object.metadata);
        let wanted = desired.fingerprint();
        if self.own_writes.applied.has(&key, wanted, desired.seen) {
            return Ok(Done::Nothing);
        }
        let left = self.effects.apply(&self.manager, desired).await?;
        self.own_writes.applied.insert(&key, wanted, left);
        Ok(Done::Written)
    }

    async fn finalizer(&self, name: &str, wanted: bool) -> Result<Done, Failure> {
        let mut all = self.object.meta().finalizers.clone().unwrap_or_default();
        if all.iter().any(|there| there == name) == wanted {
            return Ok(Done::Nothing);
        }
        let object = ObjectVersion::of::<K>(self.object);
        if wanted {
            self.effects.add_finalizer(&object, name).await?;
        } else {
            all.retain(|there| there != name);
            self.effects.keep_finalizers(&object, &all).await?;
        }
        Ok(Done::Written)
    }
}

impl<K: Kind, E: Effects> Executor<'_, K, E> {
    /// Writes the status, including the first failure, and publishes events: those about problems if the status changed.
    async fn publish(&self, plan: Plan<K::Status>, outcome: &mut Outcome) {
        let reference = self.object.object_ref(&());
        join_all(plan.action_events.iter().map(|event| self.effects.publish(&reference, event))).await;
        if !K::Status::IS_WRITTEN {
            join_all(plan.events.iter().map(|event| self.effects.publish(&reference, event))).await;
            return;
        }
        let meta = self.object.meta();
        let old = self.object.status();
        let new_conditions = match outcome.failures.first() {
            Some(failure) => degraded(plan.conditions, failure),
            None => plan.conditions,
        };
        let mut status = plan.status;
        let conditions = old.map(Conditions::conditions).unwrap_or_default();
        let merged = merge_conditions(conditions, &new_conditions, meta.generation, self.now);
        status.set_conditions(merged, meta.generation);
        if old == Some(&status) {
            return;
        }
        // Serialising a status cannot fail.
        let value = serde_json::to_value(&status).unwrap_or_default();
        match write_status(self.effects, self.own_writes, self.object, value).await {
            Ok(false) => return,
            Ok(true) => outcome.writes += 1,
            // The object was deleted in the meantime.
            Err(failure) if failure.class() == "NotFound" => {}
            Err(failure) => outcome.failures.push(failure),
        }
        let problem =
            new_problem(conditions, &new_conditions).filter(|new| plan.events.iter().all(|n| n.reason != new.reason));
        join_all(plan.events.iter().chain(&problem).map(|event| self.effects.publish(&reference, event))).await;
    }
}

/// Reports that the facts for a plan could not be read. If the API server does not answer, nothing can be written either.
pub async fn report<K: Kind>(
    effects: &impl Effects,
    own_writes: &OwnWrites,
    object: &K,
    failure: &Failure,
    now: Timestamp,
) {
    if !K::Status::IS_WRITTEN || failure.is_unanswered() {
        return;
    }
    let mut status = object.status().cloned().unwrap_or_default();
    let new = degraded(Vec::new(), failure);
    let mut conditions = merge_conditions(status.conditions(), &new, object.meta().generation, now);
    let others = status.conditions().iter().filter(|old| old.type_ != DEGRADED);
    conditions.extend(others.cloned());
    status.set_conditions(conditions, object.meta().generation);
    let before = object.status().and_then(|old| serde_json::to_value(old).ok()?.get("observedGeneration").cloned());
    let mut value = serde_json::to_value(&status).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        // The rest of the status is still of the generation that was planned last.
        match before {
            Some(before) => drop(fields.insert("observedGeneration".to_owned(), before)),
            None => drop(fields.remove("observedGeneration")),
        }
    }
    if object.status() == Some(&status) {
        return;
    }
    if let Ok(true) = write_status(effects, own_writes, object, value).await {
        let event = Event { is_warning: true, reason: failure.class(), text: failure.text() };
        effects.publish(&object.object_ref(&()), &event).await;
    }
}

/// Writes a status, unless we have just written the same one. Returns whether it was written.
async fn write_status<K: Kind>(
    effects: &impl Effects,
    own_writes: &OwnWrites,
    object: &K,
    status: Value,
) -> Result<bool, Failure> {
    let meta = object.meta();
    let (uid, version) =
        (meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref().unwrap_or_default());
    let fingerprint = Fingerprint::of_value(&without_times(&status));
    if own_writes.statuses.has(uid, fingerprint, version) {
        return Ok(false);
    }
    let manager = format!("slurm-operator/{}-status", K::NAME);
    effects.status(&manager, &ApiResource::erase::<K>(&()), &object.object_ref(&()), status).await?;
    own_writes.statuses.insert(uid, fingerprint, version);
    Ok(true)
}

/// An event for a problem that was not reported yet.
fn new_problem(old: &[Condition], new_conditions: &[NewCondition]) -> Option<Event> {
    let degraded = new_conditions.iter().find(|new| new.type_ == DEGRADED && new.status == ConditionStatus::True)?;
    let is_known = old.iter().any(|old| old.type_ == DEGRADED && old.status == "True" && old.reason == degraded.reason);
    (!is_known).then(|| Event { is_warning: true, reason: degraded.reason, text: degraded.message.clone() })
}

/// Ignores transition times, which differ between two reconciles of the same facts.
fn without_times(status: &Value) -> Value {
    let mut status = status.clone();
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("lastTransitionTime");
    }
    status
}

/// The conditions of a plan whose execution failed.
fn degraded(mut new_conditions: Vec<NewCondition>, failure: &Failure) -> Vec<NewCondition> {
    new_conditions.retain(|new_condition| new_condition.type_ != DEGRADED);
    new_conditions.push(NewCondition {
        type_: DEGRADED,
        status: ConditionStatus::True,
        reason: failure.class(),
        message: format!("{}; retrying", failure.text()),
    });
    for new_condition in &mut new_conditions {
        if new_condition.type_ == READY && new_condition.status == ConditionStatus::True {
            new_condition.status = ConditionStatus::Unknown;
            new_condition.reason = failure.class();
            new_condition.message = failure.text();
        }
    }
    new_conditions
}

#[cfg(test)]
mod tests;
