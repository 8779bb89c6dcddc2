//! Slurm's key is changed while jobs run on every worker, and daemons are killed in every step.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, Condition, STARTED},
};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
};
use kube::{
    ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use slurm_operator_api::{
    common::conditions::SLURM_KEY_IN_USE,
    slinky::names::{annotation, label},
};
use testkit::wait_for;

/// A cluster with all daemons and idle workers.
pub struct Cluster<'a> {
    pub scene: &'a Scene,
    /// The name of its Controller.
    pub name: &'a str,
    pub slurmctld: &'a str,
    /// The Secret with the key.
    pub secret: &'a str,
    pub workers: [&'a str; 2],
    /// A pod of the image of login nodes, without keys.
    pub client: &'a str,
}

/// The UIDs of workers, and the number of their restarts, by Slurm node.
type Workers = BTreeMap<String, (Option<String>, i32)>;

const STEPS: [&str; 3] = ["AddingKey", "SwitchingKey", "RemovingKey"];

impl Cluster<'_> {
    /// Changes the key, with jobs.
    pub async fn change_key(&self) -> Result<()> {
        let old = self.key().await?;
        self.become_client(&old).await?;
        wait_for("a client with the key of the cluster", SOON, async || self.scene.exec(self.client, PING).await)
            .await?;
        let before = self.workers_and_restarts().await?;
        let jobs = self.start_jobs().await?;
        let key = format!("another key of {}, made at {}", self.scene.namespace.name(), Timestamp::now());
        let data = json!({"data": {"slurm.key": ByteString(key.into_bytes())}});
        self.secrets().patch(self.secret, &PatchParams::default(), &Patch::Merge(data)).await?;
        for step in STEPS {
            wait_for(step, STARTED, async || {
                let found = self.condition().await?;
                ensure!(found.reason == step, "{found:?}");
                Ok(())
            })
            .await?;
            self.kill_daemons().await;
        }
        wait_for("all daemons to use the new key", STARTED, async || {
            let found = self.condition().await?;
            ensure!(found.status == "True", "{found:?}");
            Ok(())
        })
        .await?;
        let after = self.workers_and_restarts().await?;
        let [killed, kept] = self.workers;
        ensure!(after.get(kept) == before.get(kept), "a worker was replaced or restarted: {before:?}, {after:?}");
        let uid = |of: &Workers| of.get(killed).and_then(|(uid, _)| uid.clone());
        ensure!(uid(&before) == uid(&after), "{killed} was replaced");
        let kept = self.run(&format!("scontrol show job {}", jobs[1])).await?;
        ensure!(kept.contains("JobState=RUNNING") && kept.contains("Restarts=0"), "{kept}");
        self.is_requeued(&jobs[0]).await?;
        self.run(&format!("timeout 30 srun --overlap --jobid={} true", jobs[1])).await?;
        self.run(&format!("scancel {}", jobs.join(" "))).await?;
        wait_for("the killed worker to be idle", STARTED, async || {
            let states = self.run(&format!("sinfo --noheader --nodes={killed} --format=%T")).await?;
            ensure!(states.contains("idle") && states.split_whitespace().all(|state| state == "idle"), "{states}");
            Ok(())
        })
        .await?;
        let refused = self.scene.exec(self.client, PING).await;
        ensure!(refused.is_err(), "a client with the old key is let in: {refused:?}");
        Ok(())
    }

    async fn run(&self, script: &str) -> Result<String> {
        let script = format!("cd /tmp; {script}");
        // slurmctld has just been restarted.
        wait_for("slurmctld to answer", STARTED, async || {
            self.scene.exec_in(self.slurmctld, "slurmctld", &script).await
        })
        .await
    }

    fn secrets(&self) -> kube::Api<Secret> {
        self.scene.namespace.api()
    }

    async fn key(&self) -> Result<String> {
        let secret = self.secrets().get(self.secret).await?;
        let key = secret.data.unwrap_or_default().remove("slurm.key").context("no key")?;
        Ok(String::from_utf8(key.0)?)
    }

    async fn condition(&self) -> Result<Condition> {
        managed::condition(self.scene, "Controller", self.name, SLURM_KEY_IN_USE).await
    }

    /// Makes a client of the cluster of a pod, with a key of its own.
    async fn become_client(&self, key: &str) -> Result<()> {
        let server = format!("{}-controller:6817", self.name);
        let script = format!(
            "umask 077; mkdir -p /etc/slurm /run/slurm; printf %s '{key}' >/etc/slurm/slurm.key
             chown -R slurm:slurm /etc/slurm /run/slurm; chmod 755 /etc/slurm /run/slurm
             setsid setpriv --reuid=slurm --regid=slurm --clear-groups sackd -D --conf-server {server} >/tmp/sackd.log 2>&1 </dev/null &"
        );
        self.scene.exec(self.client, &script).await.map(drop)
    }

    /// A job on each worker that runs until it is cancelled. That of the first one may be requeued.
    async fn start_jobs(&self) -> Result<[String; 2]> {
        let mut jobs = [String::new(), String::new()];
        for ((job, worker), requeue) in jobs.iter_mut().zip(self.workers).zip(["--requeue", "--no-requeue"]) {
            let sbatch =
                format!("sbatch --parsable {requeue} --nodelist={worker} --output=/dev/null --wrap='sleep infinity'");
            self.run(&sbatch).await?.trim().clone_into(job);
        }
        wait_for("the jobs to run", SOON, async || {
            let states = self.run(&format!("squeue --noheader --format=%T --jobs={}", jobs.join(","))).await?;
            ensure!(states.split_whitespace().eq(["RUNNING", "RUNNING"]), "{states}");
            Ok(())
        })
        .await?;
        Ok(jobs)
    }

    /// Waits until a job is in the queue again that has ended with the container of its slurmd. Slurm starts it two minutes later.
    async fn is_requeued(&self, job: &str) -> Result<()> {
        let labels = format!("{}={}", label::POD_HOSTNAME, self.workers[0]);
        let pods = self.scene.pods().list(&ListParams::default().labels(&labels)).await?;
        let pod = pods.items.first().map(ResourceExt::name_any).context("no worker")?;
        let (mut asked, pause) = (Instant::now(), Duration::from_secs(10));
        wait_for("the job of the killed worker to be in the queue again", STARTED, async || {
            let shown = self.run(&format!("scontrol show job {job}")).await?;
            if shown.contains("Restarts=0") && asked.elapsed() > pause {
                // slurmctld misses the job when slurmd registers, but not in the first 20 s after its own start.
                asked = Instant::now();
                drop(self.scene.exec_in(&pod, "slurmd", "pkill -HUP slurmd").await);
            }
            let waits = ["JobState=PENDING", "JobState=RUNNING"].iter().any(|state| shown.contains(state));
            ensure!(waits && !shown.contains("Restarts=0"), "{shown}");
            Ok(())
        })
        .await
    }

    /// Ends all daemons, slurmd on the first worker only: its jobs end with its container.
    async fn kill_daemons(&self) {
        let Ok(pods) = self.scene.pods().list(&ListParams::default()).await else { return };
        for pod in pods {
            let Some(name) = pod.labels().get(label::NAME) else { continue };
            let program = match name.as_str() {
                "slurmctld" | "slurmdbd" | "slurmrestd" => name.as_str(),
                "slurmd" if pod.labels().get(label::POD_HOSTNAME).is_some_and(|node| node == self.workers[0]) => {
                    "slurmd"
                }
                "login" => "sackd",
                _ => continue,
            };
            // The command may end with its container, or the pod may be on its way.
            drop(self.scene.exec_in(&pod.name_any(), name, &format!("pkill -KILL {program}")).await);
        }
    }

    async fn workers_and_restarts(&self) -> Result<Workers> {
        let labels = ListParams::default().labels(&format!("{}=slurmd", label::NAME));
        let pods = self.scene.pods().list(&labels).await?;
        ensure!(pods.iter().all(|pod| pod.annotations().contains_key(annotation::KEY_RING)), "workers without a ring");
        let restarts = |pod: &Pod| {
            let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            status.into_iter().flatten().map(|container| container.restart_count).sum::<i32>()
        };
        let node = |pod: &Pod| pod.labels().get(label::POD_HOSTNAME).cloned();
        Ok(pods.iter().filter_map(|pod| Some((node(pod)?, (pod.uid(), restarts(pod))))).collect())
    }
}

/// Asks slurmctld something that needs a key.
const PING: &str = "timeout 10 squeue --noheader";
