//! Token: keeps a valid Slurm JSON web token in a Secret.

mod observe;
mod plan;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use slurm_operator_api::{Token, TokenStatus};

use crate::{
    machine::{Conditions, Failure, Kind, Need, Plan, Trigger, TriggerKind},
    sources::Sources,
};

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
    type Facts = plan::Facts;
    type Status = TokenStatus;
    const NAME: &'static str = "token";
    const NEEDS: &'static [Need] =
        &[Need { group: "", resources: &["secrets"], verbs: &["create", "delete", "get", "list", "patch", "watch"] }];

    fn status(&self) -> Option<&TokenStatus> {
        self.status.as_ref()
    }

    async fn observe(&self, sources: &Sources) -> Result<plan::Facts, Failure> {
        observe::observe(self, &sources.client).await
    }

    /// The Secret with the signing key, and the Secret with the token.
    fn is_affected(&self, trigger: &Trigger) -> bool {
        let key = self.spec.key_ref().map(|reference| &*reference.name);
        trigger.is(TriggerKind::Secret, self, &self.secret_name())
            || key.is_some_and(|key| trigger.is(TriggerKind::Secret, self, key))
    }

    fn plan(&self, facts: &plan::Facts, now: Timestamp) -> Plan<TokenStatus> {
        plan::plan(self, facts, now)
    }
}
