//! Which objects of a kind to reconcile after changes elsewhere.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{Stream, stream};
use kube::{
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use tokio::sync::broadcast::{self, error::RecvError};

use super::Kind;
use crate::trigger::{Trigger, TriggerKind};

/// Triggers are batched. A batch is processed this long after its first trigger, even if more arrive: waiting for a
/// pause could take forever.
const BATCH_WINDOW: Duration = Duration::from_millis(50);

/// The objects affected by each batch of triggers.
pub(super) fn affected<K: Kind>(
    triggers: broadcast::Receiver<Arc<Trigger>>,
    objects: Store<DeserializeGuard<K>>,
) -> impl Stream<Item = ObjectRef<DeserializeGuard<K>>> + Send {
    let batches = stream::unfold((triggers, objects), |(mut triggers, objects)| async move {
        let mut affected = HashSet::new();
        let mut take = |trigger: Result<Arc<Trigger>, RecvError>| match trigger {
            Ok(trigger) => affected.extend(of_trigger(&objects, |object| {
                trigger.what == TriggerKind::Anything || object.is_affected(&trigger)
            })),
            // Triggers were missed: any object may be affected.
            Err(_) => affected.extend(of_trigger(&objects, |_| true)),
        };
        let first = triggers.recv().await;
        if matches!(first, Err(RecvError::Closed)) {
            return None;
        }
        take(first);
        tokio::time::sleep(BATCH_WINDOW).await;
        loop {
            match triggers.try_recv() {
                Ok(trigger) => take(Ok(trigger)),
                Err(broadcast::error::TryRecvError::Lagged(missed)) => take(Err(RecvError::Lagged(missed))),
                Err(_) => break,
            }
        }
        Some((stream::iter(affected), (triggers, objects)))
    });
    futures::StreamExt::flatten(batches)
}

fn of_trigger<K: Kind>(
    objects: &Store<DeserializeGuard<K>>,
    is_affected: impl Fn(&K) -> bool,
) -> Vec<ObjectRef<DeserializeGuard<K>>> {
    let all = objects.state();
    let affected = all.iter().filter(|object| matches!(&object.0, Ok(object) if is_affected(object)));
    affected.map(|object| ObjectRef::from_obj(&**object)).collect()
}
