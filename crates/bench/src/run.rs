//! One run: an operator goes through all phases on a new cluster, and each phase is measured.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use jiff::Timestamp;
use serde_json::json;
use testkit::{
    slurmrestd::{self, JobSpec, Settings, Slurmrestd},
    wait_for,
};
use tokio::time::sleep;

use crate::{
    audit::{self, AuditLog, Request},
    cluster::{self, Cluster},
    fake_cluster::FakeCluster,
    load::{self, PodBody},
    objects::{self, NAMESPACE},
    phases,
    pods::PodCounts,
    probe,
    process::Operator,
    report::{Phase, Run, is_lease},
    scale::ScaleArgs,
};

/// Where operators expect slurmrestd with `DEBUG=1` in their environment.
const DEBUG_URL: &str = "http://localhost:6820";

/// How often the end of a phase is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// An operator that wrote nothing for this long has settled.
const QUIET: Duration = Duration::from_secs(3);

/// The limit for settling.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(1);

/// The limit for the readiness of the operator, and for that of slurmctld and slurmrestd.
const START_TIMEOUT: Duration = Duration::from_mins(1);

/// The length of the idle phase.
const IDLE: Duration = Duration::from_mins(1);

/// Seconds between changes of the nodes' loads: a fifth of what slurmctld uses by default.
const LOAD_INTERVAL: i64 = 20;

/// Jobs that wait in the phase with many jobs.
const WAITING_JOBS: u32 = 20_000;

/// SIGKILL
const KILL: u16 = 9;

/// How long ended jobs are listed: not for the rest of the run.
const MIN_JOB_AGE: i64 = 2;

/// Workers for each fake Kubernetes node.
pub const WORKERS_PER_NODE: u32 = 100;

/// Pods that are created and deleted before the measurement, if the nodes can take them.
const WARM_UP_PODS: u32 = 1000;

/// Pods of a Slurm cluster without workers: slurmctld and slurmrestd.
const DAEMONS: u32 = 2;

/// A run in progress.
pub struct Runner<'a> {
    args: &'a ScaleArgs,
    workers: u32,
    cluster: Cluster,
    fake: FakeCluster,
    operator: Operator,
    audit: AuditLog,
    /// Requests of the present phase that were already read from the log.
    requests: Vec<Request>,
    /// Requests to slurmrestd before the present phase.
    slurm_requests: BTreeMap<String, u64>,
    /// CPU time before the present phase.
    cpu_seconds: f64,
    /// When the present phase started.
    started: Timestamp,
    run: Run,
}

impl<'a> Runner<'a> {
    /// Prepares the cluster and starts the operator.
    pub async fn start(args: &'a ScaleArgs, command: &str, workers: u32) -> Result<Self> {
        let nodes = args.nodes.unwrap_or(workers.div_ceil(WORKERS_PER_NODE).max(2));
        let cluster = Cluster::start(nodes, &args.crds, &args.rules).await?;
        let (_, port) = probe::host_and_port(args.rest_url.as_deref().unwrap_or(DEBUG_URL))?;
        let settings = Settings { ping_every: LOAD_INTERVAL, min_job_age: MIN_JOB_AGE, ..Settings::default() };
        // An operator may not trust a slurmctld that has just started to know all of its nodes.
        let slurmctld_start = Timestamp::now().as_second() - 3600;
        let options = slurmrestd::Options { port, ..slurmrestd::Options::default() };
        let slurm = Slurmrestd::start(slurmrestd::Cluster::new(settings, slurmctld_start), options).await?;
        load::create_namespace(&cluster.admin, NAMESPACE).await?;
        let pods = WARM_UP_PODS.min(nodes.saturating_mul(WORKERS_PER_NODE));
        load::warm_up(&cluster.admin, pods, args.limit()).await?;
        let audit = AuditLog::from_end(cluster.audit_log.clone(), cluster::USER)?;
        let kubeconfig = cluster.kubeconfig.display().to_string();
        let mut environment = vec![("KUBECONFIG", kubeconfig.as_str())];
        if args.rest_url.is_none() {
            environment.push(("DEBUG", "1"));
        }
        let started = Timestamp::now();
        let log = cluster::path_of("BENCH_LOG")?;
        eprintln!("  log of the operator: {}", log.display());
        let operator = Operator::start(command, &environment, &log)?;
        Ok(Self {
            args,
            workers,
            cluster,
            fake: FakeCluster::new(slurm),
            operator,
            audit,
            requests: Vec::new(),
            slurm_requests: BTreeMap::new(),
            cpu_seconds: 0.0,
            started,
            run: Run::default(),
        })
    }

    /// Goes through all phases.
    pub async fn run(mut self) -> Result<Run> {
        let watch = tokio::spawn(self.fake.clone().watch(self.cluster.admin.clone(), NAMESPACE.to_owned()));
        self.start_cluster().await?;
        let body = self.scale_out().await?;
        self.idle().await?;
        self.run_job().await?;
        self.roll().await?;
        self.noise().await?;
        self.many_jobs().await?;
        self.scale_in().await?;
        let Self { cluster, fake, operator, workers, mut run, args, .. } = self;
        operator.stop().await?;
        // The garbage collector deletes what the operator left.
        reach("the deletion of all workers", args, &fake, |pods| pods.all == 0).await?;
        run.bare_create_seconds = Some(load::create_pods(&cluster.operator, NAMESPACE, &body, workers).await?);
        reach("the start of all bare pods", args, &fake, |pods| pods.running == workers).await?;
        run.bare_delete_seconds = Some(load::delete_pods(&cluster.operator, NAMESPACE, workers).await?);
        reach("the deletion of all bare pods", args, &fake, |pods| pods.all == 0).await?;
        watch.abort();
        Ok(run)
    }

    async fn start_cluster(&mut self) -> Result<()> {
        let url = &self.args.ready_url;
        let ready = wait_for("the readiness of the operator", START_TIMEOUT, async || {
            anyhow::ensure!(probe::is_ready(url).await?, "{url} reports that it is not ready");
            Ok(())
        });
        ready.await.context("see the log of the operator")?;
        self.record(phases::START, Some(self.elapsed()))?;
        self.start_phase();
        objects::create_cluster(&self.cluster.admin, self.args.rest_url.as_deref()).await?;
        let reached = self.wait(START_TIMEOUT, |fake| fake.counts().daemons_ready == DAEMONS).await?;
        let seconds = reached.then(|| self.elapsed());
        // What the operator still writes for the daemons is not part of the next phase.
        self.settle().await?;
        self.record(phases::CLUSTER, seconds).map(drop)
    }

    async fn scale_out(&mut self) -> Result<PodBody> {
        let workers = self.workers;
        self.start_phase();
        let start = self.started;
        objects::create_node_set(&self.cluster.admin, workers).await?;
        let mut requests = self.phase(phases::CREATED, |pods| pods.all >= workers).await?;
        if self.run.phase(phases::CREATED).is_none_or(|phase| phase.seconds.is_none()) {
            bail!("only {} workers were created within {} s", self.fake.counts().all, self.args.limit);
        }
        // The audit log may lag behind the watch, so the last create may be logged in the next phase.
        requests.extend(self.phase(phases::READY, |pods| pods.ready == workers).await?);
        self.run.create_seconds = seconds_between(start, audit::last_success(&requests, "create pods"));
        self.phase(phases::REGISTERED, |pods| pods.registered == workers).await?;
        let settled = self.settle().await?;
        self.record(phases::SETTLED, settled.then(|| self.elapsed()))?;
        objects::any_worker(&self.cluster.admin).await.map(PodBody::of_worker)
    }

    async fn idle(&mut self) -> Result<()> {
        self.start_phase();
        self.pause(IDLE).await?;
        // Phases end by pods, so the status may follow in any later phase, or never.
        self.run.ready_lag_seconds = self.fake.ready_lag(self.workers);
        self.record(phases::IDLE, Some(self.elapsed())).map(drop)
    }

    /// A job starts and ends on a tenth of the nodes.
    async fn run_job(&mut self) -> Result<()> {
        let nodes = (self.workers / 10).max(1);
        self.start_phase();
        let job = JobSpec { nodes, cpus: 0, time_limit: Some(60), ..JobSpec::default() };
        let job = self.submit(job)?;
        self.phase_and_settle(phases::JOBS_START, |pods| pods.protected == nodes).await?;
        self.start_phase();
        let finished = self.fake.slurm.cluster(|cluster| cluster.finish(job));
        finished.map_err(|refusal| anyhow!("the job does not run: {refusal:?}"))?;
        self.phase_and_settle(phases::JOBS_END, |pods| pods.protected == 0).await.map(drop)
    }

    async fn roll(&mut self) -> Result<()> {
        let workers = self.workers;
        self.fake.start_update();
        self.start_phase();
        objects::patch_node_set(&self.cluster.admin, &json!({"slurmd": {"image": "slurmd:2"}})).await?;
        let is_done = |pods: &PodCounts| pods.updated == workers && pods.all == workers;
        self.phase_and_settle(phases::ROLL, is_done).await.map(drop)
    }

    async fn noise(&mut self) -> Result<()> {
        let (pods, secrets) = (self.args.noise_pods, self.args.noise_secrets);
        if pods == 0 && secrets == 0 {
            return Ok(());
        }
        self.start_phase();
        let before = self.operator.memory()?.rss_mb;
        load::create_noise(&self.cluster.admin, pods, secrets).await?;
        // An operator that watches all objects has received the last one by then.
        self.pause(QUIET).await?;
        self.run.noise_rss_mb = Some((before, self.operator.memory()?.rss_mb));
        load::delete_noise(&self.cluster.admin, pods, secrets).await?;
        self.record(phases::NOISE, Some(self.elapsed())).map(drop)
    }

    /// A worker is to be removed while every worker is busy: the operator must know the jobs, of which there are many.
    async fn many_jobs(&mut self) -> Result<()> {
        let workers = self.workers;
        let running = JobSpec { nodes: workers, cpus: 0, time_limit: Some(60), ..JobSpec::default() };
        let waiting = || JobSpec { hold: true, ..JobSpec::default() };
        let all = std::iter::once(running).chain((0..WAITING_JOBS).map(|_| waiting()));
        let mut jobs = all.map(|job| self.submit(job)).collect::<Result<Vec<u32>>>()?;
        self.phase_and_settle(phases::JOBS_START_ALL, |pods| pods.protected == workers).await?;
        objects::patch_node_set(&self.cluster.admin, &json!({"replicas": workers - 1})).await?;
        // Without changes, slurmctld answers with an empty list.
        while self.elapsed() < IDLE.as_secs_f64() {
            self.pause(Duration::from_secs(1)).await?;
            jobs.push(self.submit(waiting())?);
        }
        if self.fake.counts().all < workers {
            bail!("a worker with a job was removed");
        }
        self.record(phases::MANY_JOBS, Some(self.elapsed()))?;
        self.fake.slurm.cluster(|cluster| {
            for job in jobs {
                // What cannot be ended any more has ended.
                let _ = cluster.signal(job, KILL);
            }
        });
        let is_done = |pods: &PodCounts| pods.all == workers - 1 && pods.protected == 0;
        self.phase_and_settle(phases::JOBS_END_ALL, is_done).await.map(drop)
    }

    async fn scale_in(&mut self) -> Result<()> {
        self.start_phase();
        let start = self.started;
        objects::patch_node_set(&self.cluster.admin, &json!({"replicas": 0})).await?;
        let requests = self.phase_and_settle(phases::SCALE_IN, |pods| pods.all == 0).await?;
        if self.run.phase(phases::SCALE_IN).is_some_and(|phase| phase.seconds.is_some()) {
            self.run.delete_seconds = seconds_between(start, audit::last_success(&requests, "delete pods"));
        }
        self.start_phase();
        objects::delete_node_set(&self.cluster.admin).await?;
        let reached = self.wait(self.args.limit(), |fake| !fake.has_node_set()).await?;
        self.record(phases::DELETED, reached.then(|| self.elapsed())).map(drop)
    }

    fn submit(&self, job: JobSpec) -> Result<u32> {
        let job = self.fake.slurm.cluster(|cluster| cluster.submit(job));
        job.map_err(|refusal| anyhow!("the fake slurmrestd refuses a job: {refusal:?}"))
    }

    fn start_phase(&mut self) {
        self.started = Timestamp::now();
    }

    /// Seconds since the start of the phase.
    fn elapsed(&self) -> f64 {
        Timestamp::now().duration_since(self.started).as_secs_f64()
    }

    /// Waits for the end of a phase and records it. Returns its requests.
    async fn phase(&mut self, name: &str, done: impl Fn(&PodCounts) -> bool) -> Result<Vec<Request>> {
        let seconds = self.wait_for_pods(name, done).await?;
        self.record(name, seconds)
    }

    /// The same, but what the operator does until it settles is part of the cost, though not of the time.
    async fn phase_and_settle(&mut self, name: &str, done: impl Fn(&PodCounts) -> bool) -> Result<Vec<Request>> {
        let seconds = self.wait_for_pods(name, done).await?;
        self.settle().await?;
        self.record(name, seconds)
    }

    /// The length of the phase, unless it did not end within the limit.
    async fn wait_for_pods(&mut self, name: &str, done: impl Fn(&PodCounts) -> bool) -> Result<Option<f64>> {
        let reached = self.wait(self.args.limit(), |fake| done(&fake.counts())).await?;
        if !reached {
            eprintln!("  {name}: did not end within {} s; {:?}", self.args.limit, self.fake.counts());
        }
        Ok(reached.then(|| self.elapsed()))
    }

    /// Whether the condition was met within the limit.
    async fn wait(&mut self, limit: Duration, done: impl Fn(&FakeCluster) -> bool) -> Result<bool> {
        let start = tokio::time::Instant::now();
        while !done(&self.fake) {
            self.operator.check().context("see the log of the operator")?;
            if start.elapsed() >= limit {
                return Ok(false);
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(true)
    }

    async fn pause(&mut self, time: Duration) -> Result<()> {
        self.wait(time, |_| false).await.map(drop)
    }

    /// Waits until the operator has settled. Whether it did within the limit.
    async fn settle(&mut self) -> Result<bool> {
        let start = Timestamp::now();
        loop {
            self.pause(Duration::from_millis(500)).await?;
            let new = self.audit.read_new()?;
            self.requests.extend(new);
            let writes = self.requests.iter().filter(|request| {
                let call = &request.call;
                audit::is_write(call) && !is_lease(call)
            });
            let last = writes.map(|request| request.completed).max().unwrap_or(start).max(start);
            let now = Timestamp::now();
            if now.duration_since(last).unsigned_abs() >= QUIET {
                return Ok(true);
            }
            if now.duration_since(start).unsigned_abs() >= SETTLE_TIMEOUT {
                eprintln!("  the operator does not stop writing");
                return Ok(false);
            }
        }
    }

    /// Records the cost of the phase; the next one starts. Returns its requests.
    fn record(&mut self, name: &str, seconds: Option<f64>) -> Result<Vec<Request>> {
        let cpu_seconds = self.operator.cpu_seconds()?;
        let peak_rss_mb = self.operator.memory()?.peak_rss_mb;
        self.operator.reset_peak()?;
        let mut requests = std::mem::take(&mut self.requests);
        requests.extend(self.audit.read_new()?);
        let slurm_requests = self.fake.slurm.calls();
        let phase = Phase {
            name: name.to_owned(),
            seconds,
            cpu_seconds: cpu_seconds - self.cpu_seconds,
            peak_rss_mb,
            api: audit::count(&requests),
            slurm: increase(&slurm_requests, &self.slurm_requests),
        };
        let time = seconds.map_or_else(|| "not ended".to_owned(), |seconds| format!("{seconds:.2} s"));
        eprintln!("  {name}: {time}, {:.2} s of CPU", phase.cpu_seconds);
        self.run.phases.push(phase);
        self.cpu_seconds = cpu_seconds;
        self.slurm_requests = slurm_requests;
        self.start_phase();
        Ok(requests)
    }
}

/// By how much each counter grew.
fn increase(now: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> audit::Counts {
    let more = |(call, count): (&String, &u64)| {
        let more = count.saturating_sub(before.get(call).copied().unwrap_or(0));
        (more > 0).then(|| (call.clone(), u32::try_from(more).unwrap_or(u32::MAX)))
    };
    now.iter().filter_map(more).collect()
}

fn seconds_between(start: Timestamp, end: Option<Timestamp>) -> Option<f64> {
    end.map(|end| end.duration_since(start).as_secs_f64())
}

async fn reach(what: &str, args: &ScaleArgs, fake: &FakeCluster, done: impl Fn(&PodCounts) -> bool) -> Result<()> {
    wait_for(what, args.limit(), async || {
        let counts = fake.counts();
        anyhow::ensure!(done(&counts), "{counts:?}");
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_requests_are_counted() {
        let counts = |list: &[(&str, u64)]| list.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect();
        let (now, before) = (counts(&[("a", 5), ("b", 2), ("c", 1)]), counts(&[("a", 3), ("b", 2)]));
        assert_eq!(increase(&now, &before), [("a".to_owned(), 2), ("c".to_owned(), 1)].into());
    }
}
