//! What other programs and people do to the workers, their set and what it refers to.

use std::sync::Arc;

use engine::podset::{OtherSet, SlurmObservation, Worker};
use slurm_operator_api::slinky::{
    VOCABULARY,
    names::{TRUE, finalizer, label},
};

use crate::{
    api::{Killer, NAMESPACE, Pod, SETS, set_of},
    fake_cluster::FakeCluster,
};

/// What foreground deletion adds to an object.
const FOREGROUND: &str = "foregroundDeletion";

impl FakeCluster {
    /// The eviction API, as `kubectl drain` and autoscalers use it: the disruption budget decides.
    pub fn evict(&mut self) {
        let pods =
            self.api.pods.values().filter(|pod| set_of(&pod.owner).is_some() && pod.node.is_some() && !pod.terminating);
        let names: Vec<String> = pods.map(|pod| pod.name.clone()).collect();
        let Some(name) = self.rng.pick(&names) else { return };
        let Some(pod) = self.api.pods.get(&name) else { return };
        let is_protected = pod.labels.get(label::POD_PROTECT).is_some_and(|value| value == TRUE);
        if is_protected && self.api.budget.is_some() {
            self.log(|| format!("the eviction of {name} is refused"));
            return;
        }
        let is_busy = self.slurm.cluster.node(pod.node_name()).is_some_and(|node| !node.jobs.is_empty());
        let set = set_of(&pod.owner).and_then(|set| self.api.sets[set].as_ref());
        let is_deleted = set.is_none_or(|set| set.metadata.deletion_timestamp.is_some());
        self.log(|| format!("{name} is evicted"));
        if is_protected && is_busy && !is_deleted {
            self.violate("protected", || format!("{name} is evicted while it is busy: there is no disruption budget"));
        }
        self.delete_pod(&name, Killer::Other);
    }

    /// A user deletes a claim. It stays until no pod uses it.
    pub fn user_deletes_claim(&mut self) {
        let names: Vec<String> = self.api.claims.keys().cloned().collect();
        let Some(name) = self.rng.pick(&names) else { return };
        self.log(|| format!("a user deletes the claim {name}"));
        if let Some(claim) = self.api.claims.get_mut(&name) {
            claim.deleting = true;
        }
    }

    /// Somebody removes the owner of a worker.
    pub fn strip(&mut self) {
        let pods = self.api.pods.values().filter(|pod| set_of(&pod.owner).is_some() && !pod.terminating);
        let names: Vec<String> = pods.map(|pod| pod.name.clone()).collect();
        let Some(name) = self.rng.pick(&names) else { return };
        self.log(|| format!("the owner of {name} is removed"));
        self.api.edit(&name, |pod| pod.owner = String::new());
    }

    /// A set that is not simulated gets a node name that is free, and keeps it until the faults stop.
    pub fn neighbour(&mut self) {
        let host = format!("{}{}", self.traits.prefix, self.rng.below(self.traits.machines));
        let is_used = self.api.pods.values().any(|pod| pod.hostname == host);
        if !is_used {
            self.log(|| format!("another set uses {host}"));
            self.neighbours.insert(host);
        }
    }

    /// The sets that are not simulated, as the operator reads them.
    pub fn neighbours(&self) -> Option<OtherSet> {
        let worker = |host: &String| Worker { name: host.clone(), hostname: Some(host.clone()), ..Worker::default() };
        let workers: Vec<_> = self.neighbours.iter().map(|host| worker(host).into()).collect();
        let name = || "other".to_owned();
        (!workers.is_empty()).then(|| OtherSet { name: name(), slurm_name: name(), workers, ..OtherSet::default() })
    }

    /// Somebody deletes the Controller or the key, and makes it again later.
    pub fn lose_reference(&mut self) {
        let is_there = self.rng.percent(50);
        if self.rng.percent(50) {
            self.log(|| format!("the Controller exists: {is_there}"));
            self.has_controller = is_there;
        } else {
            self.log(|| format!("the key exists: {is_there}"));
            self.has_key = is_there;
        }
        // Both are watched.
        self.operator.wake();
    }

    /// What the operator knows of Slurm. Without a Controller there is no cluster to read.
    pub fn observed_slurm(&self) -> SlurmObservation {
        if self.has_controller {
            return self.slurm.observation(self.behind);
        }
        SlurmObservation::NoClient { why: "there is no Controller".to_owned() }
    }

    /// The pods without an owner that have our labels, as the operator's store has them.
    pub fn orphans(&self) -> Vec<Arc<Worker>> {
        self.operator.workers.orphans(NAMESPACE, &VOCABULARY, SETS[self.api.focus])
    }

    /// Deletes a set in the foreground, which is how Argo CD does it.
    pub fn delete_in_foreground(&mut self) {
        self.api.edit_set(false, |set| set.metadata.finalizers.get_or_insert_default().push(FOREGROUND.to_owned()));
    }

    /// The garbage collector: in foreground, pods go before their set. The admission policy refuses that while the set has the
    /// finalizer, whether or not the API server's cache shows already that the set is being deleted.
    pub fn collect_in_foreground(&mut self) {
        let Some(set) = self.api.set() else { return };
        let has = |name: &str| set.metadata.finalizers.iter().flatten().any(|found| found == name);
        let is_refused = has(finalizer::DRAIN);
        if set.metadata.deletion_timestamp.is_none() || !has(FOREGROUND) || is_refused {
            return;
        }
        if self.api.pods.values().any(|pod| self.api.is_ours(pod)) {
            self.collect_pods();
        } else {
            self.api.edit_set(false, |set| {
                set.metadata.finalizers.iter_mut().for_each(|all| all.retain(|found| found != FOREGROUND));
            });
        }
    }

    /// The garbage collector deletes the pods of a set, which must be drained if the set asks for that.
    pub fn collect_pods(&mut self) {
        let left = self.api.pods.values().filter(|pod| self.api.is_ours(pod) && !pod.terminating);
        let left: Vec<String> = left.map(|pod| pod.name.clone()).collect();
        for name in left {
            self.check_collected(&name);
            self.delete_pod(&name, Killer::Other);
        }
    }
}

impl Pod {
    /// The name under which its slurmd registers. Without `-N`, as with older operators, that need not be the one that we expect.
    pub fn node_name(&self) -> &str {
        self.truth.other_name.as_deref().unwrap_or(&self.hostname)
    }
}
