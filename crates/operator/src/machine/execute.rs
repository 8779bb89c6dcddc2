//! Carries out a plan: stages in order, the steps of a stage at the same time, then the status, then the events.

use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::core::ApiResource;
use serde_json::Value;
use slurm_operator_api::conditions::{DEGRADED, READY};

use super::{
    Brood, Conditions, Desired, Doomed, Effects, Failure, Judgement, Kind, Memory, Note, Plan, Print, Step, Verdict,
    settle,
};

/// Steps of a stage that are under way at once.
const CONCURRENCY: usize = 32;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Writes that worked.
    pub writes: usize,
    /// Writes that did not.
    pub failures: Vec<Failure>,
    /// Whether something had changed since it was seen, so that it was left alone: look again soon.
    pub is_stale: bool,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    /// It was carried out.
    Written,
    /// There was nothing to do.
    Nothing,
    /// What it was decided for is no longer what is there.
    Stale,
}

/// Carries out what was decided for an object. `leads` is asked before each stage: whoever no longer leads stops writing.
pub async fn execute<K: Kind>(
    effects: &impl Effects,
    memory: &Memory,
    object: &K,
    plan: Plan<K::Status>,
    now: Timestamp,
    leads: impl Fn() -> bool,
) -> Outcome {
    let hands = Hands { effects, memory, manager: format!("slurm-operator/{}", K::NAME), object, now };
    let mut outcome = Outcome::default();
    for stage in &plan.stages {
        if !leads() {
            return outcome;
        }
        // Each is begun when there is room: what is under way takes memory, and a stage may have ten thousand steps.
        let mut steps = stage.iter();
        let mut under_way: FuturesUnordered<_> =
            steps.by_ref().take(CONCURRENCY).map(|step| hands.perform(step)).collect();
        while let Some(result) = under_way.next().await {
            under_way.extend(steps.next().map(|step| hands.perform(step)));
            match result {
                Ok(Done::Written) => outcome.writes += 1,
                Ok(Done::Nothing) => {}
                Ok(Done::Stale) => outcome.is_stale = true,
                Err(failure) => outcome.failures.push(failure),
            }
        }
        if !outcome.failures.is_empty() {
            break;
        }
    }
    if !leads() {
        return outcome;
    }
    hands.tell(plan, &mut outcome).await;
    outcome
}

/// Whether to count on it. What was not answered may have been done all the same: a worker that may be going must not get work.
fn may_be_done<T>(done: &Result<T, Failure>) -> bool {
    done.as_ref().err().is_none_or(Failure::is_unanswered)
}

/// What carries out the steps for one object.
struct Hands<'a, K, E> {
    effects: &'a E,
    memory: &'a Memory,
    manager: String,
    object: &'a K,
    now: Timestamp,
}

impl<K: Kind, E: Effects> Hands<'_, K, E> {
    /// A conflict is no failure: the preconditions of a write did what they are for.
    async fn perform(&self, step: &Step) -> Result<Done, Failure> {
        match self.attempt(step).await {
            Err(failure) if failure.class() == "Conflict" => Ok(Done::Stale),
            Err(failure) if failure.is_of_terminating_namespace() => Ok(Done::Nothing),
            done => done,
        }
    }

    async fn attempt(&self, step: &Step) -> Result<Done, Failure> {
        let uid = self.object.meta().uid.as_deref().unwrap_or_default();
        let now = self.now;
        match step {
            Step::Apply(desired) => return self.apply(desired).await,
            Step::Mint(mint) => self.effects.mint(&self.manager, mint).await?,
            Step::Own(child, owners) => self.effects.own(child, owners).await?,
            Step::Delete(doomed) => {
                let done = self.effects.delete(doomed).await;
                if may_be_done(&done) {
                    self.memory.removed(&Brood::new(uid, &doomed.resource.kind), &doomed.name, &doomed.uid, now);
                }
                done?;
            }
            Step::Create(stamp) => {
                let made = self.effects.create(stamp).await;
                if may_be_done(&made) {
                    let version = made.as_ref().ok().cloned().flatten();
                    self.memory.made(&Brood::new(uid, &stamp.resource.kind), stamp.name(), version, now);
                }
                made?;
            }
            Step::Amend(amend) => {
                let version = self.effects.amend(amend).await?;
                let target = &amend.target;
                self.memory.changed(&Brood::new(uid, &target.resource.kind), &target.name, &version, now);
            }
            Step::Mark(marks) => {
                let version = self.effects.mark(marks).await?;
                let target = &marks.target;
                self.memory.changed(&Brood::new(uid, &target.resource.kind), &target.name, &version, now);
            }
            Step::Slurm(errand) => {
                let namespace = self.object.meta().namespace.as_deref().unwrap_or_default();
                self.effects.slurm(namespace, errand).await?;
            }
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
        }
        Ok(Done::Written)
    }

    /// Skips what would change nothing.
    async fn apply(&self, desired: &Desired) -> Result<Done, Failure> {
        let key = Memory::key(&desired.resource.kind, &desired.object.metadata);
        let wanted = desired.print();
        if self.memory.is_applied(&key, wanted, desired.seen) {
            return Ok(Done::Nothing);
        }
        let left = self.effects.apply(&self.manager, desired).await?;
        self.memory.applied(&key, wanted, left);
        Ok(Done::Written)
    }

    async fn finalizer(&self, name: &str, wanted: bool) -> Result<Done, Failure> {
        let mut all = self.object.meta().finalizers.clone().unwrap_or_default();
        if all.iter().any(|there| there == name) == wanted {
            return Ok(Done::Nothing);
        }
        all.retain(|there| there != name);
        if wanted {
            all.push(name.to_owned());
        }
        self.effects.finalizers(&Doomed::of::<K>(self.object), &all).await?;
        Ok(Done::Written)
    }
}

impl<K: Kind, E: Effects> Hands<'_, K, E> {
    /// Writes the status, with the failure if there was one; and the events, when the status says something new.
    async fn tell(&self, plan: Plan<K::Status>, outcome: &mut Outcome) {
        let meta = self.object.meta();
        let old = self.object.status();
        let judgements = match outcome.failures.first() {
            Some(failure) => degraded(plan.conditions, failure),
            None => plan.conditions,
        };
        let mut status = plan.status;
        let conditions = old.map(Conditions::conditions).unwrap_or_default();
        *status.conditions_mut() = settle(conditions, &judgements, meta.generation, self.now);
        *status.observed_generation_mut() = meta.generation;
        if old == Some(&status) {
            return;
        }
        // A status is a struct of plain data.
        let value = serde_json::to_value(&status).unwrap_or_default();
        let (uid, version) =
            (meta.uid.as_deref().unwrap_or_default(), meta.resource_version.as_deref().unwrap_or_default());
        let print = Print::of_value(&without_times(&value));
        if self.memory.is_told(uid, print, version) {
            return;
        }
        let reference = self.object.object_ref(&());
        let manager = format!("slurm-operator/{}-status", K::NAME);
        match self.effects.status(&manager, &ApiResource::erase::<K>(&()), &reference, value).await {
            Ok(()) => {
                outcome.writes += 1;
                self.memory.told(uid, print, version);
            }
            // It went away meanwhile: nobody is left to be told.
            Err(failure) if failure.class() == "NotFound" => {}
            Err(failure) => outcome.failures.push(failure),
        }
        let trouble =
            new_trouble(conditions, &judgements).filter(|new| plan.notes.iter().all(|n| n.reason != new.reason));
        join_all(plan.notes.iter().chain(&trouble).map(|note| self.effects.note(&reference, note))).await;
    }
}

/// What a human should look at, and was not told of yet.
fn new_trouble(old: &[Condition], judgements: &[Judgement]) -> Option<Note> {
    let degraded = judgements.iter().find(|new| new.about == DEGRADED && new.verdict == Verdict::True)?;
    let is_known = old.iter().any(|old| old.type_ == DEGRADED && old.status == "True" && old.reason == degraded.reason);
    (!is_known).then(|| Note { is_warning: true, reason: degraded.reason, text: degraded.message.clone() })
}

/// Two passes over the same facts differ in the time of what is new.
fn without_times(status: &Value) -> Value {
    let mut status = status.clone();
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.remove("lastTransitionTime");
    }
    status
}

/// The judgements of a plan that could not be carried out.
fn degraded(mut judgements: Vec<Judgement>, failure: &Failure) -> Vec<Judgement> {
    judgements.retain(|judgement| judgement.about != DEGRADED);
    judgements.push(Judgement {
        about: DEGRADED,
        verdict: Verdict::True,
        reason: failure.class(),
        message: format!("{}; trying again", failure.text()),
    });
    for judgement in &mut judgements {
        if judgement.about == READY && judgement.verdict == Verdict::True {
            judgement.verdict = Verdict::Unknown;
            judgement.reason = failure.class();
            judgement.message = failure.text();
        }
    }
    judgements
}

#[cfg(test)]
mod tests;
