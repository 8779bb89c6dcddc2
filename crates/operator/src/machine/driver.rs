//! Runs the controller of a kind: watches its objects, and reconciles each of them when something changed.

use std::{
    future::{Future, ready},
    sync::Arc,
    time::{Duration, Instant},
};

use engine::plan::{Event, Next, ObjectVersion};
use futures::{Stream, StreamExt, stream};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    core::{DeserializeGuard, ObjectMeta},
    runtime::{
        Controller,
        controller::{self, Action},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use tokio::sync::watch;

use super::{Backoff, Effects, Kind, affected::affected, execute, execute::report, slots::Slots};
use crate::{
    failure::Failure,
    health::{Readiness, Waiting},
    lease::Leadership,
    metrics::Metrics,
    sources::Sources,
};

/// Retry delay after a conflict; by then the store should show the change.
const STALE: Duration = Duration::from_secs(1);

/// How often to look whether the workers of an object that cannot be decoded are gone.
const WORKERS_GONE: Duration = Duration::from_secs(10);

/// What the controllers of all kinds share.
pub struct Machine<E> {
    /// For reads.
    pub sources: Sources,
    /// For writes.
    pub effects: E,
    /// Whether this process leads and may write.
    pub leadership: Leadership,
    pub metrics: Metrics,
    pub readiness: Readiness,
    /// What plans wait for, for the debug page.
    pub waiting: Waiting,
    /// The clock; replaced in tests.
    pub now: fn() -> Timestamp,
}

struct ReconcileContext<K: Kind, E> {
    machine: Arc<Machine<E>>,
    backoff: Backoff<(Option<String>, String)>,
    slots: Slots,
    store: Store<DeserializeGuard<K>>,
}

fn key(object: &impl ResourceExt) -> (Option<String>, String) {
    (object.namespace(), object.name_any())
}

/// Reconciles the objects of a kind until `stop` completes.
pub async fn run<K: Kind, E: Effects + 'static>(
    machine: Arc<Machine<E>>,
    objects: Api<DeserializeGuard<K>>,
    concurrency: u16,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    // Each namespace is listed on its own.
    let place = objects.namespace().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
    let name = format!("{}.{}{place}", K::plural(&()), K::group(&()));
    machine.readiness.expect(&name);
    let driver = Controller::new(objects, watcher::Config::default());
    let store = driver.store();
    let (backoff, slots) = (Backoff::default(), Slots::new(concurrency));
    let context = Arc::new(ReconcileContext { machine: machine.clone(), backoff, slots, store: store.clone() });
    let stopping = context.clone();
    let stop = async move {
        stop.await;
        stopping.slots.close();
    };
    let outcomes = driver
        .reconcile_on(affected(machine.sources.slurm.triggers().subscribe(), store.clone()))
        // A new leader does not know what the previous one left unfinished.
        .reconcile_all_on(elections(machine.leadership.changes()))
        .graceful_shutdown_on(stop)
        .run(reconcile::<K, E>, give_up::<K, E>, context.clone())
        .for_each(|outcome| {
            match outcome {
                Err(controller::Error::ObjectNotFound(gone)) => {
                    context.backoff.succeeded(&(gone.namespace.clone(), gone.name.clone()));
                }
                Err(controller::Error::QueueError(error)) => {
                    machine.readiness.failing(&name, &error.to_string());
                    tracing::warn!(kind = K::NAME, %error, "watch failed");
                }
                // Already counted and logged.
                Ok(_) | Err(_) => {}
            }
            machine.metrics.in_backoff(K::NAME, context.backoff.len());
            ready(())
        });
    let cached = async {
        if store.wait_until_ready().await.is_ok() {
            machine.readiness.met(&name);
        }
    };
    tokio::join!(outcomes, cached);
}

/// Yields whenever this process becomes the leader.
fn elections(leads: watch::Receiver<bool>) -> impl Stream<Item = ()> + Send {
    stream::unfold(leads, |mut leads| async move {
        loop {
            leads.changed().await.ok()?;
            if *leads.borrow_and_update() {
                return Some(((), leads));
            }
        }
    })
}

/// Reconciles an object when it is its turn.
async fn reconcile<K: Kind, E: Effects>(
    guard: Arc<DeserializeGuard<K>>,
    context: Arc<ReconcileContext<K, E>>,
) -> Result<Action, Failure> {
    let Some(_slot) = context.slots.take().await else { return Ok(Action::await_change()) };
    // It may have changed meanwhile.
    let Some(guard) = context.store.get(&ObjectRef::from_obj(&*guard)) else {
        context.backoff.succeeded(&key(&*guard));
        return Ok(Action::await_change());
    };
    // Many may wait, and the state of a pass is large.
    Box::pin(reconcile_now(guard, &context)).await
}

async fn reconcile_now<K: Kind, E: Effects>(
    guard: Arc<DeserializeGuard<K>>,
    context: &ReconcileContext<K, E>,
) -> Result<Action, Failure> {
    let machine = &context.machine;
    if !machine.leadership.may_write() {
        return Ok(later(machine.leadership.leads()));
    }
    let object = match &guard.0 {
        Ok(object) => object,
        Err(invalid) => {
            // Only an edit can fix it, and an edit triggers a reconcile.
            let text = format!("the object cannot be decoded and is ignored until it is corrected: {}", invalid.error);
            let event = Event { is_warning: true, reason: "Malformed", text };
            machine.effects.publish(&guard.object_ref(&()), &event).await;
            return release(&guard, machine).await;
        }
    };
    let is_held = object.finalizers().iter().any(|there| K::FINALIZERS.contains(&there.as_str()));
    if object.meta().deletion_timestamp.is_some() && !is_held {
        // Garbage collection deletes what it owns.
        machine.sources.kube.own_writes.forget(object.meta().uid.as_deref().unwrap_or_default());
        machine.waiting.forget(object.meta().uid.as_deref().unwrap_or_default());
        return Ok(Action::await_change());
    }
    let start = Instant::now();
    let result = pass(object, machine).await;
    machine.metrics.reconciled(K::NAME, start.elapsed(), result.as_ref().err().map(Failure::class));
    match result {
        Ok(next) => {
            context.backoff.succeeded(&key(&*guard));
            Ok(match next {
                Next::OnChange => Action::await_change(),
                Next::After(delay) => Action::requeue(delay),
            })
        }
        Err(failure) => {
            let (namespace, name) = (object.namespace(), object.name_any());
            tracing::warn!(kind = K::NAME, namespace, name, error = failure.text(), "reconcile failed");
            Err(failure)
        }
    }
}

/// When to try again what this process may not write. An election triggers every object, but a lease that was only renewed late does
/// not.
fn later(leads: bool) -> Action {
    if leads { Action::requeue(STALE) } else { Action::await_change() }
}

/// Removes our finalizers from an object that cannot be decoded and is being deleted: nothing else would ever remove them. While
/// it has workers, they stay, because only the spec says how those are drained.
async fn release<K: Kind, E: Effects>(guard: &DeserializeGuard<K>, machine: &Machine<E>) -> Result<Action, Failure> {
    let Some(others) = other_finalizers::<K>(guard.meta()) else { return Ok(Action::await_change()) };
    if !machine.sources.kube.workers.of(guard.meta().uid.as_deref().unwrap_or_default()).is_empty() {
        // It is not triggered by its workers, as nothing is known about it.
        return Ok(Action::requeue(WORKERS_GONE));
    }
    machine.effects.keep_finalizers(&ObjectVersion::of::<K>(guard), &others).await?;
    Ok(Action::await_change())
}

/// The finalizers of others, if an object is being deleted and has some of ours.
fn other_finalizers<K: Kind>(meta: &ObjectMeta) -> Option<Vec<String>> {
    meta.deletion_timestamp.as_ref()?;
    let (ours, others): (Vec<_>, Vec<_>) =
        meta.finalizers.iter().flatten().cloned().partition(|there| K::FINALIZERS.contains(&there.as_str()));
    (!ours.is_empty()).then_some(others)
}

/// One reconcile: observe, plan, execute.
async fn pass<K: Kind, E: Effects>(object: &K, machine: &Machine<E>) -> Result<Next, Failure> {
    let facts = match object.observe(&machine.sources, (machine.now)()).await {
        Ok(facts) => facts,
        Err(failure) => {
            report(&machine.effects, &machine.sources.kube.own_writes, object, &failure, (machine.now)()).await;
            return Err(failure);
        }
    };
    // After observing, which may take seconds: nothing that was observed is from the future.
    let now = (machine.now)();
    let mut plan = object.plan(&facts, now);
    let next = plan.next;
    if let Some(needs) = &plan.needs {
        machine.sources.slurm.want(needs, now);
    }
    machine.waiting.set(K::NAME, object.meta(), std::mem::take(&mut plan.waiting));
    if let Some(worker_metrics) = plan.worker_metrics.take() {
        machine.metrics.measured_workers(object.meta(), *worker_metrics);
    }
    machine.metrics.planned(K::NAME, plan.stages.iter().flatten());
    let own_writes = &machine.sources.kube.own_writes;
    let outcome = execute(&machine.effects, own_writes, object, plan, now, || machine.leadership.may_write()).await;
    let next = if outcome.is_stale { Next::After(STALE) } else { next };
    outcome.failures.into_iter().next().map_or(Ok(next), Err)
}

#[expect(clippy::needless_pass_by_value, reason = "kube's signature")]
fn give_up<K: Kind, E>(guard: Arc<DeserializeGuard<K>>, _: &Failure, context: Arc<ReconcileContext<K, E>>) -> Action {
    Action::requeue(context.backoff.failed(key(&*guard)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slurm_operator_api::slinky::{NodeSet, names::finalizer};

    use super::*;

    #[test]
    fn a_pass_that_is_due_while_the_lease_is_renewed_late_is_made_later() {
        assert_eq!(later(true), Action::requeue(STALE));
        assert_eq!(later(false), Action::await_change());
    }

    #[test]
    fn a_deleted_object_that_cannot_be_decoded_loses_our_finalizers() {
        let others = |meta: serde_json::Value| {
            let object = json!({"metadata": meta, "spec": {"controllerRef": 7}});
            let guard: DeserializeGuard<NodeSet> = serde_json::from_value(object).unwrap();
            assert!(guard.0.is_err());
            other_finalizers::<NodeSet>(guard.meta())
        };
        let finalizers = ["example.com/theirs", finalizer::DRAIN, finalizer::RESERVATION];
        assert_eq!(others(json!({"name": "w", "finalizers": finalizers})), None);
        let since = "2026-11-17T00:00:00Z";
        assert_eq!(
            others(json!({"name": "w", "deletionTimestamp": since, "finalizers": finalizers})),
            Some(vec!["example.com/theirs".to_owned()])
        );
        assert_eq!(
            others(json!({"name": "w", "deletionTimestamp": since, "finalizers": ["example.com/theirs"]})),
            None
        );
    }
}
