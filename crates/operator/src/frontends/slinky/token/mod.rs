//! Token: keeps a valid Slurm JSON web token in a Secret.

mod observe;
mod plan;
#[cfg(test)]
mod tests;
mod validate;

use engine::plan::Plan;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, core::DeserializeGuard};
use slurm_operator_api::{
    common::validation::FieldError,
    slinky::{Token, TokenStatus},
};

use crate::{
    failure::Failure,
    machine::{CHILD, Conditions, Kind, Need, namespaced},
    sources::Sources,
    trigger::{Trigger, TriggerKind},
};

impl Conditions for TokenStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn set_conditions(&mut self, conditions: Vec<Condition>, generation: Option<i64>) {
        (self.conditions, self.observed_generation) = (conditions, generation);
    }
}

impl Kind for Token {
    type Facts = plan::Facts;
    type Status = TokenStatus;
    const NAME: &'static str = "token";
    const NEEDS: &'static [Need] = &[Need { group: "", resources: &["secrets"], verbs: CHILD }];

    fn objects(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<Self>> {
        namespaced(client, namespace)
    }

    fn status(&self) -> Option<&TokenStatus> {
        self.status.as_ref()
    }

    fn validate(&self) -> Vec<FieldError> {
        validate::validate(self)
    }

    async fn observe(&self, sources: &Sources, _: Timestamp) -> Result<plan::Facts, Failure> {
        observe::observe(self, &sources.kube.client).await
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
