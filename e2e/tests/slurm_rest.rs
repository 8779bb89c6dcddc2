//! slurmrestd of the version under test passes the same conformance suite as the fake.

use std::time::Duration;

use anyhow::{Context, Result};
use e2e::{
    Scene,
    slurm::{ADMIN, NODE_SET, SILENT, SlurmCluster, WORKERS},
    slurm_version,
};
use jiff::SignedDuration;
use slurm::{
    client::Auth,
    token::Key,
    version::{RestVersion, SlurmVersion},
};
use testkit::conformance::{self, Case, Running, SILENT_REASON, Slurmd, Target};
use tokio::time::sleep;

fn release() -> Result<SlurmVersion> {
    SlurmVersion::from_image_tag(&slurm_version()?).context("SLURM_VERSION is not a Slurm version")
}

/// The cluster, as the suite needs it.
struct Real<'a> {
    cluster: &'a SlurmCluster<'a>,
    release: SlurmVersion,
    rest: Option<RestVersion>,
}

impl Target for Real<'_> {
    fn name(&self) -> String {
        let rest = self.rest.map(|rest| format!(" by {rest}")).unwrap_or_default();
        format!("real {}{rest}", self.release)
    }

    fn url(&self) -> String {
        self.cluster.url().to_owned()
    }

    fn auth(&self) -> Result<Auth> {
        Ok(Auth::mint(Key::new(self.cluster.jwt_key())?, ADMIN, SignedDuration::from_mins(15)))
    }

    fn user(&self) -> &str {
        ADMIN
    }

    fn release(&self) -> SlurmVersion {
        self.release
    }

    fn rest_version(&self) -> Option<RestVersion> {
        self.rest
    }

    fn nodes(&self) -> [String; 2] {
        WORKERS.map(str::to_owned)
    }

    fn has_accounting(&self) -> bool {
        false
    }

    fn node_set(&self) -> &str {
        NODE_SET
    }

    fn silent_node(&self) -> &str {
        SILENT
    }

    fn start_slurmd(&self, slurmd: Slurmd) -> Running<'_> {
        Box::pin(async move {
            if slurmd.is_rebooted {
                // A boot takes its time. slurmctld counts whole seconds, and must not have heard of the node in that one.
                sleep(Duration::from_secs(2)).await;
            }
            let options = if slurmd.is_rebooted { "-b" } else { "" };
            let conf = if slurmd.is_small { "Features=other CPUs=1" } else { "Features=other" };
            self.cluster.start_slurmd(&slurmd.node, options, conf).await
        })
    }

    fn stop_slurmd(&self, node: &str) -> Running<'_> {
        let node = node.to_owned();
        Box::pin(async move { self.cluster.stop_slurmd(&node).await })
    }

    fn suspend(&self, job: u32) -> Running<'_> {
        Box::pin(self.cluster.scontrol(format!("suspend {job}")))
    }

    fn resume(&self, job: u32) -> Running<'_> {
        Box::pin(self.cluster.scontrol(format!("resume {job}")))
    }

    fn stop_slurmctld(&self) -> Running<'_> {
        Box::pin(self.cluster.stop_slurmctld())
    }

    fn start_slurmctld(&self) -> Running<'_> {
        Box::pin(self.cluster.start_slurmctld())
    }
}

/// Cases that take long and show what slurmctld does, whatever the REST version is.
const ONCE: [&str; 5] = ["bad_registration", "rebooted", "second_slurmd", "node_named_as_node_set", "slurmctld_down"];

/// One test: a Slurm cluster takes longer to start than most cases take to run, and the cases must not run in parallel.
#[tokio::test]
async fn real_slurmrestd_conforms_in_all_its_rest_versions() -> Result<()> {
    let scene = Scene::start("slurm-rest").await?;
    let cluster = SlurmCluster::start(&scene).await?;
    cluster.add_machine(SILENT_REASON).await?;
    let release = release()?;
    // All cases with the version that a client chooses by default, and most also with the oldest one; with --matrix, with all
    // between.
    conformance::run(&Real { cluster: &cluster, release, rest: None }).await?;
    for name in ONCE {
        Case::named(name)?;
    }
    let (_, older) = release.rest_versions().split_last().context("no REST version at all")?;
    let count = if e2e::is_matrix() { older.len() } else { 1 };
    for &rest in older.iter().take(count) {
        let target = Real { cluster: &cluster, release, rest: Some(rest) };
        for case in conformance::CASES.iter().filter(|case| !ONCE.contains(&case.name)) {
            case.run(&target).await?;
        }
    }
    scene.finish().await
}
