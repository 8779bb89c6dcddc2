//! The suite that real daemons pass, against the fake: every release, every REST version.

use jiff::{SignedDuration, Timestamp};
use slurm::client::Auth;
use slurm::token::Key;
use slurm::version::{RestVersion, SlurmVersion};
use testkit::conformance::{self, Case, Running, SILENT_REASON, Slurmd, Target};
use testkit::slurmrestd::{Clock, Cluster, Machine, NodeUpdate, Options, Release, Settings, Slurmrestd, StateSave};

const KEY: [u8; 32] = [0x2a; 32];

/// Slurm takes a second for much.
const FAST: Clock = Clock::Fast(20);

const NODE_SET: &str = "gpus";

const SILENT: &str = "silent";

/// The machine of a node's own slurmd.
fn own_machine() -> Machine {
    Machine { features: vec!["red".into()], ..Machine::default() }
}

struct Fake {
    server: Slurmrestd,
    release: Release,
    version: SlurmVersion,
    accounting: bool,
    rest: RestVersion,
}

impl Fake {
    async fn start(release: Release, rest: RestVersion, accounting: bool, clock: Clock) -> anyhow::Result<Self> {
        let node_sets = vec![NODE_SET.to_owned()];
        let settings = Settings { release, accounting, node_sets, slurmd_timeout: 60, ..Settings::default() };
        let mut cluster = Cluster::new(settings, Timestamp::now().as_second());
        cluster.register_many("w", 2, &own_machine());
        cluster.register(SILENT, own_machine());
        cluster.update_nodes(&[SILENT.to_owned()], &NodeUpdate::drain(SILENT_REASON), "slurm")?;
        cluster.lose(SILENT);
        let options = Options { key: Some(Key::new(&KEY)?), clock, ..Options::default() };
        let server = Slurmrestd::start(cluster, options).await?;
        Ok(Self { server, release, version: release.to_string().parse()?, accounting, rest })
    }
}

impl Target for Fake {
    fn name(&self) -> String {
        format!("fake {} {}", self.release, self.rest)
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn auth(&self) -> anyhow::Result<Auth> {
        Ok(Auth::mint(Key::new(&KEY)?, self.user(), SignedDuration::from_mins(15)))
    }

    fn user(&self) -> &'static str {
        "slurm"
    }

    fn release(&self) -> SlurmVersion {
        self.version
    }

    fn rest_version(&self) -> Option<RestVersion> {
        Some(self.rest)
    }

    fn nodes(&self) -> [String; 2] {
        ["w0".into(), "w1".into()]
    }

    fn has_accounting(&self) -> bool {
        self.accounting
    }

    fn node_set(&self) -> &'static str {
        NODE_SET
    }

    fn silent_node(&self) -> &'static str {
        SILENT
    }

    fn start_slurmd(&self, slurmd: Slurmd) -> Running<'_> {
        let mut machine = Machine { address: "127.0.0.2".into(), features: vec!["other".into()], ..Machine::default() };
        if slurmd.is_small {
            machine.cpus = 1;
        }
        self.server.cluster(|cluster| {
            if slurmd.is_rebooted {
                cluster.register_rebooted(&slurmd.node, machine);
            } else {
                cluster.register(&slurmd.node, machine);
            }
        });
        Box::pin(async { Ok(()) })
    }

    fn stop_slurmd(&self, node: &str) -> Running<'_> {
        if self.nodes().iter().any(|own| own == node) {
            self.server.cluster(|cluster| cluster.register(node, own_machine()));
        }
        Box::pin(async { Ok(()) })
    }

    fn suspend(&self, job: u32) -> Running<'_> {
        let done = self.server.cluster(|cluster| cluster.suspend(job));
        Box::pin(async move { done.map_err(|refusal| anyhow::anyhow!("{refusal:?}")) })
    }

    fn resume(&self, job: u32) -> Running<'_> {
        let done = self.server.cluster(|cluster| cluster.resume(job));
        Box::pin(async move { done.map_err(|refusal| anyhow::anyhow!("{refusal:?}")) })
    }

    fn stop_slurmctld(&self) -> Running<'_> {
        self.server.cluster(Cluster::stop);
        Box::pin(async { Ok(()) })
    }

    fn start_slurmctld(&self) -> Running<'_> {
        self.server.cluster(|cluster| cluster.start(StateSave::Kept));
        Box::pin(async { Ok(()) })
    }
}

/// All versions of a release at once: each has a server of its own.
async fn conforms(release: Release, accounting: bool) -> anyhow::Result<()> {
    let release_version: SlurmVersion = release.to_string().parse()?;
    let local = tokio::task::LocalSet::new();
    let runs: Vec<_> = release_version
        .rest_versions()
        .iter()
        .map(|rest| {
            local.spawn_local(
                async move { conformance::run(&Fake::start(release, *rest, accounting, FAST).await?).await },
            )
        })
        .collect();
    local.await;
    for run in runs {
        run.await??;
    }
    Ok(())
}

#[tokio::test]
async fn fake_24_11() -> anyhow::Result<()> {
    conforms(Release::V24_11, true).await
}

#[tokio::test]
async fn fake_24_11_without_accounting() -> anyhow::Result<()> {
    conforms(Release::V24_11, false).await
}

#[tokio::test]
async fn fake_25_05() -> anyhow::Result<()> {
    conforms(Release::V25_05, true).await
}

#[tokio::test]
async fn fake_25_11() -> anyhow::Result<()> {
    conforms(Release::V25_11, true).await
}

#[tokio::test]
async fn fake_26_05() -> anyhow::Result<()> {
    conforms(Release::V26_05, true).await
}

#[tokio::test]
async fn fake_26_05_without_accounting() -> anyhow::Result<()> {
    conforms(Release::V26_05, false).await
}

#[tokio::test]
async fn fake_26_11() -> anyhow::Result<()> {
    conforms(Release::V26_11, true).await
}

/// Two changes within a second are only two in real time.
#[tokio::test]
async fn fake_in_real_time() -> anyhow::Result<()> {
    for (release, rest) in [(Release::V24_11, RestVersion::V42), (Release::V26_05, RestVersion::V45)] {
        let fake = Fake::start(release, rest, true, Clock::Real).await?;
        Case::named("nodes_unchanged")?.run(&fake).await?;
    }
    Ok(())
}
