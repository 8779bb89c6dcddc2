//! Where nothing changes, nothing is written.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Scene, audit, audit::Write, managed::ManagedSlurm, operator};
use jiff::{SignedDuration, Timestamp};
use testkit::wait_for;
use tokio::time::sleep;

#[tokio::test]
async fn a_cluster_at_rest_is_left_alone() -> Result<()> {
    let scene = Scene::start("quiet").await?;
    let cluster = ManagedSlurm::start(&scene, 2).await?;
    // Slurm takes a moment to be done with what starting it means.
    wait_for("ten seconds without a write", Duration::from_mins(1), async || {
        let recent = writes(&scene, Timestamp::now() - SignedDuration::from_secs(10))?;
        ensure!(recent.is_empty(), "{recent:#?}");
        Ok(())
    })
    .await?;

    let since = Timestamp::now();
    sleep(Duration::from_mins(1)).await;
    let written = writes(&scene, since)?;
    assert_eq!(written, [], "nothing changed, and yet the operator wrote");
    let lease = audit::writes_of(operator::ACCOUNT, since)?.into_iter().filter(|write| write.resource == "leases");
    assert!(lease.count() > 0, "the audit log misses the Lease, so it may miss anything");
    cluster.agree(2).await?;
    scene.finish().await
}

/// What the operator wrote about this cluster or about none, but for its Lease. Other scenes have a life of their own.
fn writes(scene: &Scene, since: Timestamp) -> Result<Vec<Write>> {
    let places = [scene.namespace.name(), operator::NAMESPACE, ""];
    let mut writes = audit::writes_of(operator::ACCOUNT, since)?;
    writes.retain(|write| write.resource != "leases" && places.contains(&&*write.namespace));
    Ok(writes)
}
