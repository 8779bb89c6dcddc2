//! Calls about slurmctld itself and partitions.

use super::{Answer, Call, Client, Error, transport::Request};
use crate::wire::{Conf, ConfAnswer, Diag, DiagAnswer, Listing, Nothing, Partition, Ping};

impl Client {
    /// Lists all slurmctld and whether they respond. slurmrestd answers even if none does, and with any token.
    pub async fn ping(&self) -> Result<Answer<Vec<Ping>>, Error> {
        let answer = self.list::<Ping>(Call::Ping).await?;
        Ok(answer.map(|listing| listing.items))
    }

    /// Returns slurmctld's statistics.
    pub async fn diag(&self) -> Result<Answer<Diag>, Error> {
        self.ask::<DiagAnswer>(Request::new(Call::Diag)).await
    }

    /// Returns slurmctld's configuration. Since v0.0.45.
    pub async fn conf(&self) -> Result<Answer<Conf>, Error> {
        self.ask::<ConfAnswer>(Request::new(Call::Conf)).await
    }

    /// Makes slurmctld and all slurmd reread their configuration.
    pub async fn reconfigure(&self) -> Result<Answer<()>, Error> {
        self.ask::<Nothing>(Request::new(Call::Reconfigure)).await
    }

    /// Lists all partitions.
    pub async fn partitions(&self) -> Result<Answer<Listing<Partition>>, Error> {
        self.list(Call::Partitions).await
    }

    /// Returns one partition.
    pub async fn partition(&self, name: &str) -> Result<Answer<Partition>, Error> {
        self.first(Call::Partition, name).await
    }
}
