//! If nothing changes, nothing is written.

use std::time::Duration;

use anyhow::{Result, ensure};
use e2e::{Scene, audit, audit::Write, managed::ManagedSlurm, operator};
use jiff::{SignedDuration, Timestamp};
use testkit::wait_for;
use tokio::time::sleep;

#[tokio::test]
async fn an_idle_cluster_causes_no_writes() -> Result<()> {
    let scene = Scene::start("quiet").await?;
    let cluster = ManagedSlurm::start(&scene, 2).await?;
    // Slurm needs a moment to settle after its start.
    wait_for("ten seconds without a write", Duration::from_mins(1), async || {
        let recent = writes(&scene, Timestamp::now() - SignedDuration::from_secs(10))?;
        ensure!(recent.is_empty(), "{recent:#?}");
        Ok(())
    })
    .await?;

    let since = Timestamp::now();
    sleep(Duration::from_mins(1)).await;
    let written = writes(&scene, since)?;
    assert_eq!(written, [], "the operator wrote although nothing changed");
    let lease = audit::writes_of(operator::ACCOUNT, since)?.into_iter().filter(|write| write.resource == "leases");
    assert!(lease.count() > 0, "the audit log has no write of the Lease, so it may be incomplete");
    cluster.agree(2).await?;
    scene.finish().await
}

/// The operator's writes in this namespace and of cluster-scoped objects, except for its Lease. Other tests run in parallel.
fn writes(scene: &Scene, since: Timestamp) -> Result<Vec<Write>> {
    let places = [scene.namespace.name(), operator::NAMESPACE, ""];
    let mut writes = audit::writes_of(operator::ACCOUNT, since)?;
    writes.retain(|write| write.resource != "leases" && places.contains(&&*write.namespace));
    Ok(writes)
}
