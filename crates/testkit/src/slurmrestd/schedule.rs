//! Jobs: submission, scheduling, end.

use std::collections::BTreeSet;

use super::cluster::{Cluster, Event};
use super::job::{Job, JobSpec, JobState};
use super::node::Node;
use super::refusal::Refusal;

/// SIGKILL, the default signal of a cancel.
pub(super) const KILL: u16 = 9;

const TERM: u16 = 15;

/// Signals that do not end a process by default: CHLD, CONT, STOP, TSTP, URG, WINCH.
const HARMLESS: [u16; 6] = [17, 18, 19, 20, 23, 28];

/// Delay before a requeued job may start again, so that a problem of its node can show.
const REQUEUE_DELAY: i64 = 121;

impl Cluster {
    /// Submits a job; it starts as soon as possible.
    pub fn submit(&mut self, spec: JobSpec) -> Result<u32, Refusal> {
        let unknown = |name: &String| !self.nodes.contains_key(name);
        if self.partition_of(&spec).is_none() {
            return Err(Refusal::PARTITION);
        }
        if spec.required.iter().any(unknown) {
            return Err(Refusal::NODE_NAME);
        }
        if spec.nodes == 0 {
            return Err(Refusal::NODE_COUNT);
        }
        if self.nodes.values().filter(|node| spec.cpus <= node.machine.cpus).count() < count(spec.nodes) {
            return Err(Refusal::UNAVAILABLE);
        }
        let id = self.next_job;
        self.next_job += 1;
        self.jobs.insert(id, Job::new(id, spec, self.now));
        self.changed.jobs = self.now;
        self.schedule_due = true;
        Ok(id)
    }

    fn partition_of(&self, spec: &JobSpec) -> Option<&super::reservation::Partition> {
        self.partitions.iter().find(|partition| match spec.partition.as_str() {
            "" => partition.default,
            name => partition.name == name,
        })
    }

    /// Sends a signal to a job. SIGKILL cancels it; others reach the script, which ends if the signal is fatal.
    pub fn signal(&mut self, id: u32, signal: u16) -> Result<(), Refusal> {
        let job = self.jobs.get(&id).ok_or(Refusal::JOB_ID)?;
        if job.state.is_over() {
            return Err(Refusal::ALREADY_DONE);
        }
        let running = job.state == JobState::Running;
        if signal == KILL || !running {
            self.end_job(id, JobState::Cancelled);
        } else if !HARMLESS.contains(&signal) {
            self.end_job(id, JobState::Failed);
        }
        if let Some(job) = self.jobs.get_mut(&id).filter(|job| running && job.state.is_over()) {
            // Slurm sends SIGTERM before SIGKILL, and most scripts end on it.
            job.signal = if signal == KILL { TERM } else { signal };
        }
        Ok(())
    }

    /// Requeues a running job.
    pub fn requeue(&mut self, id: u32) -> Result<(), Refusal> {
        let job = self.jobs.get(&id).ok_or(Refusal::JOB_ID)?;
        if !job.spec.requeue {
            return Err(Refusal::NOT_REQUEUABLE);
        }
        if job.state == JobState::Pending {
            return Err(Refusal::PENDING);
        }
        if matches!(job.state, JobState::Running | JobState::Suspended) {
            self.end_job(id, JobState::Cancelled);
        }
        self.put_back(id);
        Ok(())
    }

    /// The script of a job succeeds now.
    pub fn finish(&mut self, id: u32) -> Result<(), Refusal> {
        let job = self.jobs.get(&id).ok_or(Refusal::JOB_ID)?;
        if job.state != JobState::Running {
            return Err(Refusal::ALREADY_DONE);
        }
        self.end_job(id, JobState::Completed);
        Ok(())
    }

    /// Stops a running job. It keeps its nodes but not their CPUs, so that they look idle (`SelectTypeParameters=CR_Core`).
    pub fn suspend(&mut self, id: u32) -> Result<(), Refusal> {
        let job = self.jobs.get_mut(&id).ok_or(Refusal::JOB_ID)?;
        if job.state != JobState::Running {
            return Err(Refusal::ALREADY_DONE);
        }
        job.state = JobState::Suspended;
        let (nodes, cpus) = (job.nodes.clone(), job.spec.cpus);
        self.changed.jobs = self.now;
        for name in &nodes {
            self.change(name, |node| {
                node.jobs.remove(&id);
                node.suspended.insert(id);
                node.allocated_cpus = node.allocated_cpus.saturating_sub(share(cpus, node));
                node.settle();
            });
        }
        Ok(())
    }

    /// Continues a suspended job.
    pub fn resume(&mut self, id: u32) -> Result<(), Refusal> {
        let now = self.now;
        let job = self.jobs.get_mut(&id).ok_or(Refusal::JOB_ID)?;
        if job.state != JobState::Suspended {
            return Err(Refusal::ALREADY_DONE);
        }
        job.state = JobState::Running;
        let (nodes, cpus) = (job.nodes.clone(), job.spec.cpus);
        // It is checked again at once whether the job should have ended meanwhile.
        self.events.insert((now, Event::JobEnds(id)));
        self.changed.jobs = now;
        for name in &nodes {
            self.change(name, |node| {
                node.suspended.remove(&id);
                node.jobs.insert(id);
                node.allocated_cpus += share(cpus, node);
                node.settle();
            });
        }
        Ok(())
    }

    pub(super) fn put_back(&mut self, id: u32) {
        let eligible = self.now.saturating_add(REQUEUE_DELAY);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state = JobState::Pending;
        job.restarts += 1;
        job.reason = "BeginTime";
        job.eligible_at = eligible;
        (job.started_at, job.ends_at, job.signal) = (eligible, 0, 0);
        if !job.completing {
            job.nodes.clear();
        }
        self.events.insert((eligible, Event::JobEligible));
    }

    pub(super) fn job_ends(&mut self, id: u32) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.state == JobState::Running) else { return };
        let over = job.spec.runs_for.map(|seconds| job.started_at + i64::from(seconds));
        if over.is_some_and(|over| over <= self.now) {
            self.end_job(id, JobState::Completed);
        } else if job.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.end_job(id, JobState::Timeout);
        }
    }

    /// Ends a job in any state, and frees its nodes after the epilog.
    pub(super) fn end_job(&mut self, id: u32, state: JobState) {
        let (now, epilog) = (self.now, self.settings.epilog);
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.state.is_over()) else { return };
        let (nodes, cpus) = (job.nodes.clone(), job.spec.cpus);
        job.state = state;
        job.ends_at = now;
        job.completing = epilog > 0 && !nodes.is_empty();
        job.reason = match state {
            JobState::Timeout => "TimeLimit",
            JobState::Failed => "RaisedSignal",
            JobState::NodeFail => "NodeDown",
            _ if job.spec.hold => "JobHeldUser",
            _ => "None",
        };
        self.changed.jobs = now;
        for name in &nodes {
            self.change(name, |node| {
                node.suspended.remove(&id);
                if node.jobs.remove(&id) {
                    node.allocated_cpus = node.allocated_cpus.saturating_sub(share(cpus, node));
                }
                node.last_busy = now;
                if epilog > 0 {
                    node.completing.insert(id);
                }
                node.settle();
            });
        }
        if epilog > 0 {
            self.due_in(epilog, Event::EpilogEnds(id));
        }
        self.due_in(self.settings.min_job_age, Event::JobForgotten(id));
        self.schedule_due = true;
    }

    pub(super) fn epilog_ends(&mut self, id: u32) {
        let names: Vec<String> =
            self.nodes.values().filter(|node| node.completing.contains(&id)).map(|node| node.name.clone()).collect();
        for name in names {
            self.change(&name, |node| {
                node.completing.remove(&id);
                node.settle();
            });
        }
        if let Some(job) = self.jobs.get_mut(&id) {
            job.completing = false;
            if job.state == JobState::Pending {
                job.nodes.clear();
            }
            self.changed.jobs = self.now;
        }
        self.schedule_due = true;
    }

    pub(super) fn forget(&mut self, id: u32) {
        let old = self.now - self.settings.min_job_age;
        if self.jobs.get(&id).is_some_and(|job| job.state.is_over() && job.ends_at <= old) {
            self.jobs.remove(&id);
            self.changed.jobs = self.now;
        }
    }

    /// First come, first served, but a job that does not fit does not block the next.
    pub(super) fn schedule(&mut self) {
        if !self.up || !std::mem::take(&mut self.schedule_due) {
            return;
        }
        let now = self.now;
        let waiting = |job: &&Job| job.state == JobState::Pending && !job.spec.hold && job.eligible_at <= now;
        let waiting: Vec<u32> = self.jobs.values().filter(waiting).map(|job| job.id).collect();
        let mut from = None;
        for id in waiting {
            let Some(job) = self.jobs.get(&id) else { continue };
            match self.place(&job.spec, from.as_deref()) {
                Some(nodes) => {
                    // Many small jobs at once must not check the same full nodes repeatedly.
                    from = Some(nodes.first().cloned().unwrap_or_default());
                    self.start_job(id, &nodes);
                }
                None => {
                    if let Some(job) = self.jobs.get_mut(&id).filter(|job| job.reason != "Resources") {
                        job.reason = "Resources";
                        self.changed.jobs = now;
                    }
                }
            }
        }
    }

    /// Finds nodes for a job, if there are enough; the search starts at `from` and wraps around.
    fn place(&self, spec: &JobSpec, from: Option<&str>) -> Option<Vec<String>> {
        let partition = self.partition_of(spec)?;
        let blocked = self.soon_reserved(spec);
        let fits = |node: &&Node| {
            let free = node.machine.cpus.saturating_sub(node.allocated_cpus);
            node.state.takes_jobs()
                && share(spec.cpus, node) <= free
                && partition.has(&node.name)
                && !blocked.contains(node.name.as_str())
        };
        if !spec.required.is_empty() {
            let nodes = spec.required.iter().filter_map(|name| self.nodes.get(name)).filter(fits);
            let nodes: Vec<String> = nodes.map(|node| node.name.clone()).collect();
            return (nodes.len() == spec.required.len()).then_some(nodes);
        }
        let from = from.unwrap_or_default();
        let ring = self.nodes.range(from.to_owned()..).chain(self.nodes.range(..from.to_owned()));
        let nodes = ring.map(|(_, node)| node).filter(fits).take(count(spec.nodes));
        let nodes: Vec<String> = nodes.map(|node| node.name.clone()).collect();
        (nodes.len() == count(spec.nodes)).then_some(nodes)
    }

    /// Nodes whose reservation would start before the end of the job. A job without a limit never ends.
    fn soon_reserved(&self, spec: &JobSpec) -> BTreeSet<&str> {
        let over = spec.time_limit.map_or(i64::MAX, |minutes| self.now.saturating_add(i64::from(minutes) * 60));
        let soon = self.reservations.values().filter(|one| one.starts_at < over && one.ends_at > self.now);
        soon.flat_map(|reservation| reservation.nodes.iter().map(String::as_str)).collect()
    }

    fn start_job(&mut self, id: u32, nodes: &[String]) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.state = JobState::Running;
        job.reason = "None";
        job.started_at = now;
        job.ends_at = job.deadline().unwrap_or_default();
        job.nodes = nodes.to_vec();
        let cpus = job.spec.cpus;
        let runs = job.spec.runs_for.map(|seconds| now + i64::from(seconds));
        let ends = runs.into_iter().chain(job.deadline()).min();
        for name in nodes {
            self.change(name, |node| {
                node.jobs.insert(id);
                node.allocated_cpus += share(cpus, node);
                // A reason that is left from an earlier drain has no meaning any more.
                node.give_reason("", "", 0);
                node.settle();
            });
        }
        self.changed.jobs = now;
        self.jobs_started += 1;
        if let Some(ends) = ends {
            self.events.insert((ends, Event::JobEnds(id)));
        }
    }
}

/// CPUs of a node that a job uses.
fn share(cpus: u32, node: &Node) -> u32 {
    if cpus == 0 { node.machine.cpus } else { cpus }
}

fn count(nodes: u32) -> usize {
    usize::try_from(nodes).unwrap_or(usize::MAX)
}
