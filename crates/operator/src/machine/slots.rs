//! How many passes of a kind run at the same time.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Lets passes begin in the order in which they were triggered. kube's own limit begins any of those that wait, so that an object
/// could wait for minutes while others are busy.
pub(super) struct Slots(Semaphore);

impl Slots {
    pub(super) fn new(count: u16) -> Self {
        Self(Semaphore::new(count.into()))
    }

    /// Waits for a slot. None when the process stops.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        self.0.acquire().await.ok()
    }

    /// Passes that wait do not begin any more.
    pub(super) fn close(&self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
        time::Duration,
    };

    use futures::{FutureExt, StreamExt, stream};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        ResourceExt,
        api::ObjectMeta,
        runtime::{
            applier,
            controller::{Action, Config},
            reflector::{self, ObjectRef},
            watcher::Event,
        },
    };

    use super::*;

    const OBJECTS: u32 = 20;
    const PASSES: usize = 400;

    fn object(number: u32) -> ConfigMap {
        let metadata = ObjectMeta { name: Some(format!("object-{number}")), ..ObjectMeta::default() };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    /// All objects are always due, and two of them can be reconciled at the same time.
    #[tokio::test(start_paused = true)]
    async fn no_object_waits_for_long_while_others_are_busy() {
        let (store, mut writer) = reflector::store::<ConfigMap>();
        writer.apply_watcher_event(&Event::Init);
        for number in 0..OBJECTS {
            writer.apply_watcher_event(&Event::InitApply(object(number)));
        }
        writer.apply_watcher_event(&Event::InitDone);
        let counts: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let (slots, counted) = (Arc::new(Slots::new(2)), Arc::clone(&counts));
        let reconcile = move |object: Arc<ConfigMap>, _: Arc<()>| {
            let (slots, counts) = (Arc::clone(&slots), Arc::clone(&counted));
            async move {
                let _slot = slots.take().await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
                *counts.lock().unwrap().entry(object.name_any()).or_default() += 1;
                Ok::<_, std::io::Error>(Action::requeue(Duration::ZERO))
            }
            .boxed()
        };
        let due =
            stream::iter((0..OBJECTS).map(|number| Ok::<_, std::io::Error>(ObjectRef::from_obj(&object(number)))));
        let again = |_: Arc<ConfigMap>, _: &std::io::Error, _: Arc<()>| Action::await_change();
        let passes = applier(reconcile, again, Arc::new(()), store, due.chain(stream::pending()), Config::default());
        passes.take(PASSES).for_each(|_| std::future::ready(())).await;
        let counts = counts.lock().unwrap();
        let fair = PASSES / usize::try_from(OBJECTS).unwrap();
        assert_eq!(counts.len(), usize::try_from(OBJECTS).unwrap(), "{counts:?}");
        assert!(counts.values().all(|count| *count >= fair - 1), "{counts:?}");
    }

    #[tokio::test]
    async fn passes_that_wait_when_the_process_stops_do_not_begin() {
        let slots = Slots::new(1);
        let first = slots.take().await;
        let waiting = slots.take();
        slots.close();
        assert!(first.is_some() && waiting.await.is_none());
    }
}
