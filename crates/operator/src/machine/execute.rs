//! Carries out a plan: stages in order, the steps of a stage at the same time, then the status, then the events.

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::ApiResource;
use slurm_operator_api::conditions::{DEGRADED, READY};

use super::{Conditions, Desired, Doomed, Effects, Failure, Judgement, Kind, Memory, Plan, Step, Verdict, settle};

/// Steps of a stage that are under way at once.
const CONCURRENCY: usize = 32;

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Writes that worked.
    pub writes: usize,
    /// Writes that did not.
    pub failures: Vec<Failure>,
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
        // Collected first: the compiler cannot see that a stream which borrows from its closure may cross threads.
        let steps: Vec<_> = stage.iter().map(|step| hands.perform(step)).collect();
        let results: Vec<_> = stream::iter(steps).buffer_unordered(CONCURRENCY).collect().await;
        for result in results {
            match result {
                Ok(true) => outcome.writes += 1,
                Ok(false) => {}
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
    tell::<K>(effects, object, plan, now, &mut outcome).await;
    outcome
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
    /// Whether anything was written.
    async fn perform(&self, step: &Step) -> Result<bool, Failure> {
        let (owner, now) = (self.object.meta().uid.as_deref().unwrap_or_default(), self.now);
        match step {
            Step::Apply(desired) => return self.apply(desired).await,
            Step::Mint(mint) => self.effects.mint(&self.manager, mint).await?,
            Step::Own(child, owners) => self.effects.own(child, owners).await?,
            Step::Delete(doomed) => {
                self.effects.delete(doomed).await?;
                self.memory.removed(owner, &doomed.name, &doomed.uid, now);
            }
            Step::Create(stamp) => {
                self.effects.create(stamp).await?;
                self.memory.made(owner, stamp.name(), now);
            }
            Step::Amend(amend) => {
                let version = self.effects.amend(amend).await?;
                self.memory.changed(owner, &amend.target.name, &version, now);
            }
            Step::Mark(marks) => {
                let version = self.effects.mark(marks).await?;
                self.memory.changed(owner, &marks.target.name, &version, now);
            }
            Step::Slurm(errand) => {
                let namespace = self.object.meta().namespace.as_deref().unwrap_or_default();
                self.effects.slurm(namespace, errand).await?;
            }
            Step::Finalizer { name, wanted } => return self.finalizer(name, *wanted).await,
            Step::Chain(steps) => {
                let mut wrote = false;
                for step in steps {
                    wrote |= Box::pin(self.perform(step)).await?;
                }
                return Ok(wrote);
            }
        }
        Ok(true)
    }

    /// Skips what would change nothing.
    async fn apply(&self, desired: &Desired) -> Result<bool, Failure> {
        let (namespace, name) = (&desired.object.metadata.namespace, &desired.object.metadata.name);
        let key = format!("{} {namespace:?} {name:?}", desired.resource.kind);
        let wanted = desired.print();
        if self.memory.is_applied(&key, wanted, desired.seen) {
            return Ok(false);
        }
        let left = self.effects.apply(&self.manager, desired).await?;
        self.memory.applied(&key, wanted, left);
        Ok(true)
    }

    async fn finalizer(&self, name: &str, wanted: bool) -> Result<bool, Failure> {
        let mut all = self.object.meta().finalizers.clone().unwrap_or_default();
        if all.iter().any(|there| there == name) == wanted {
            return Ok(false);
        }
        all.retain(|there| there != name);
        if wanted {
            all.push(name.to_owned());
        }
        self.effects.finalizers(&Doomed::of::<K>(self.object), &all).await?;
        Ok(true)
    }
}

/// Writes the status, with the failure if there was one; and the events, when the status says something new.
async fn tell<K: Kind>(
    effects: &impl Effects,
    object: &K,
    plan: Plan<K::Status>,
    now: Timestamp,
    outcome: &mut Outcome,
) {
    let generation = object.meta().generation;
    let old = object.status();
    let judgements = match outcome.failures.first() {
        Some(failure) => degraded(plan.conditions, failure),
        None => plan.conditions,
    };
    let mut status = plan.status;
    *status.conditions_mut() =
        settle(old.map(Conditions::conditions).unwrap_or_default(), &judgements, generation, now);
    *status.observed_generation_mut() = generation;
    if old == Some(&status) {
        return;
    }
    let reference = object.object_ref(&());
    let told = match serde_json::to_value(&status) {
        Ok(value) => {
            let manager = format!("slurm-operator/{}-status", K::NAME);
            effects.status(&manager, &ApiResource::erase::<K>(&()), &reference, value).await
        }
        // A status is a struct of plain data.
        Err(_) => Ok(()),
    };
    match told {
        Ok(()) => outcome.writes += 1,
        // It went away meanwhile: nobody is left to be told.
        Err(failure) if failure.class() == "NotFound" => {}
        Err(failure) => outcome.failures.push(failure),
    }
    notes(effects, &reference, &plan.notes).await;
}

async fn notes(effects: &impl Effects, reference: &ObjectReference, notes: &[super::Note]) {
    for note in notes {
        effects.note(reference, note).await;
    }
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
