//! Calls about slurmctld itself, and about partitions.

use super::{Answer, Call, Client, Error, transport::Request};
use crate::wire::{Conf, ConfAnswer, Diag, DiagAnswer, Listing, Nothing, Partition, Ping};

impl Client {
    /// The slurmctlds and whether they answer. slurmrestd answers even if none does, and whatever the token.
    pub async fn ping(&self) -> Result<Answer<Vec<Ping>>, Error> {
        let answer = self.list::<Ping>(Call::Ping).await?;
        Ok(answer.map(|listing| listing.items))
    }

    /// slurmctld's statistics.
    pub async fn diag(&self) -> Result<Answer<Diag>, Error> {
        self.ask::<DiagAnswer>(Request::new(Call::Diag)).await
    }

    /// slurmctld's configuration. From v0.0.45 on.
    pub async fn conf(&self) -> Result<Answer<Conf>, Error> {
        self.ask::<ConfAnswer>(Request::new(Call::Conf)).await
    }

    /// Lets slurmctld and all slurmds read their configuration again.
    pub async fn reconfigure(&self) -> Result<Answer<()>, Error> {
        self.ask::<Nothing>(Request::new(Call::Reconfigure)).await
    }

    /// All partitions.
    pub async fn partitions(&self) -> Result<Answer<Listing<Partition>>, Error> {
        self.list(Call::Partitions).await
    }

    /// One partition.
    pub async fn partition(&self, name: &str) -> Result<Answer<Partition>, Error> {
        self.first(Call::Partition, name).await
    }
}
