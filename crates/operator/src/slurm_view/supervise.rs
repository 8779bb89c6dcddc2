//! Starts and stops the pollers.

use std::sync::{Arc, atomic::AtomicU32};

use engine::plan::ClusterKey;
use futures::FutureExt;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::{broadcast::error::RecvError, watch};

use super::{
    View, Views,
    endpoint::{Affected, Clusters},
    poll::Poller,
};
use crate::{lock::lock, trigger::Trigger};

/// Runs a poller for every Slurm cluster in these namespaces while this process leads.
pub async fn supervise(
    views: Views,
    client: Client,
    groups: &[&'static dyn Clusters],
    namespaces: Vec<Option<String>>,
    mut leads: watch::Receiver<bool>,
) {
    let mut triggers = views.0.triggers.subscribe();
    loop {
        if leads.wait_for(|leads| *leads).await.is_err() {
            return;
        }
        start_all(&views, &client, groups, &namespaces).await;
        loop {
            tokio::select! {
                changed = leads.changed() => if changed.is_err() || !*leads.borrow() { break },
                trigger = triggers.recv() => match trigger {
                    Ok(trigger) => groups.iter().for_each(|clusters| views.react(&client, *clusters, &trigger)),
                    Err(RecvError::Lagged(_)) => start_all(&views, &client, groups, &namespaces).await,
                    Err(RecvError::Closed) => return,
                },
            }
        }
        views.stop_all();
    }
}

async fn start_all(views: &Views, client: &Client, groups: &[&'static dyn Clusters], namespaces: &[Option<String>]) {
    for clusters in groups {
        for namespace in namespaces {
            // If this fails, the watch still reports each cluster.
            for cluster in clusters.list(client, namespace.as_deref()).await.unwrap_or_default() {
                views.start(client, *clusters, cluster);
            }
        }
    }
}

impl Views {
    fn react(&self, client: &Client, clusters: &'static dyn Clusters, trigger: &Trigger) {
        match clusters.affected(trigger) {
            Affected::Nothing => {}
            Affected::Cluster(cluster) => self.start(client, clusters, cluster),
            // The pollers find out which of them matters; there are few of each.
            Affected::Namespace(namespace) => self.recheck(&namespace),
        }
    }

    /// Starts a poller, or makes a running one check its settings again.
    fn start(&self, client: &Client, clusters: &'static dyn Clusters, cluster: ClusterKey) {
        let mut views = lock(&self.0.views);
        if let Some(view) = views.get(&cluster) {
            view.recheck.notify_one();
            return;
        }
        let view = Arc::new(View::new(cluster.clone(), Timestamp::now()));
        let poller = Poller {
            views: self.clone(),
            view: Arc::clone(&view),
            kube: client.clone(),
            clusters,
            refused: AtomicU32::new(0),
        };
        *lock(&view.task) = Some(tokio::spawn(poller.run()));
        views.insert(cluster, view);
    }

    fn recheck(&self, namespace: &str) {
        for view in lock(&self.0.views).values().filter(|view| view.cluster.namespace == namespace) {
            view.recheck.notify_one();
        }
    }

    fn stop_all(&self) {
        for (_, view) in lock(&self.0.views).drain() {
            if let Some(task) = lock(&view.task).take() {
                task.abort();
            }
        }
    }

    /// Removes a view whose cluster is gone. Returns false if the cluster was reported again meanwhile: then the view stays,
    /// because no other one is started for it.
    pub(super) fn forget(&self, view: &View) -> bool {
        let mut views = lock(&self.0.views);
        let is_reported = view.recheck.notified().now_or_never().is_some();
        if !is_reported {
            views.remove(&view.cluster);
        }
        !is_reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{metrics::Metrics, trigger};

    #[test]
    fn a_cluster_that_is_created_again_keeps_its_view() {
        let views = Views::new(trigger::channel(), Metrics::default());
        let cluster = ClusterKey { group: "example.org", namespace: "ns".to_owned(), name: "slurm".to_owned() };
        let view = Arc::new(View::new(cluster.clone(), Timestamp::UNIX_EPOCH));
        lock(&views.0.views).insert(cluster.clone(), Arc::clone(&view));
        assert!(matches!(&*views.ages(), [(of, _)] if *of == cluster), "it has an age before it was ever read");
        // Reported while the poller found that it is gone.
        view.recheck.notify_one();
        assert!(!views.forget(&view), "no other poller is started for it");
        assert!(views.view(&cluster).is_some());
        assert!(views.forget(&view));
        assert!(views.view(&cluster).is_none());
    }
}
