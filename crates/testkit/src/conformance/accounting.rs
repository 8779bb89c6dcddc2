//! Accounting data of slurmdbd.

use anyhow::ensure;
use slurm::client::JobFilter;

use super::Target;
use super::scene::{connect, fails_with};

/// Accounts, users, clusters and jobs can be read, or the calls are not offered.
pub(super) async fn books(target: &dyn Target) -> anyhow::Result<()> {
    let client = connect(target).await?;
    if !target.has_accounting() {
        fails_with("not_offered", "accounts", client.accounts().await)?;
        fails_with("not_offered", "jobs", client.accounted_jobs(&JobFilter::default()).await)?;
        return Ok(());
    }
    let accounts = client.accounts().await?;
    ensure!(accounts.items.iter().any(|account| account.name == "root"), "{:?}", accounts.items);
    let users = client.users().await?;
    ensure!(users.items.iter().any(|user| user.name == "root"), "{:?}", users.items);
    let clusters = client.clusters().await?;
    let here = &clusters.meta.cluster;
    ensure!(clusters.items.iter().any(|cluster| cluster.name == *here), "no {here} in {:?}", clusters.items);
    client.accounted_jobs(&JobFilter::default()).await?;
    Ok(())
}
