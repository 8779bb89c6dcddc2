//! Token: keeps a JSON web token of Slurm fresh in a Secret.

mod observe;
mod plan;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use slurm_operator_api::{Token, TokenStatus};

pub use observe::wake;

use crate::machine::{Conditions, Failure, Kind, Need, Plan};

impl Conditions for TokenStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn conditions_mut(&mut self) -> &mut Vec<Condition> {
        &mut self.conditions
    }

    fn observed_generation_mut(&mut self) -> &mut Option<i64> {
        &mut self.observed_generation
    }
}

impl Kind for Token {
    type Seen = plan::Seen;
    type Status = TokenStatus;
    const NAME: &'static str = "token";
    const NEEDS: &'static [Need] =
        &[Need { group: "", resources: &["secrets"], verbs: &["create", "delete", "get", "list", "patch", "watch"] }];

    fn status(&self) -> Option<&TokenStatus> {
        self.status.as_ref()
    }

    async fn observe(&self, client: &Client) -> Result<plan::Seen, Failure> {
        observe::observe(self, client).await
    }

    fn plan(&self, seen: &plan::Seen, now: Timestamp) -> Plan<TokenStatus> {
        plan::plan(self, seen, now)
    }
}
