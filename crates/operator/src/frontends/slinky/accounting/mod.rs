//! Accounting: slurmdbd with its database, or an external slurmdbd.

mod observe;
mod plan;
#[cfg(test)]
mod tests;
mod validate;

use engine::plan::Plan;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Api, Client, ResourceExt, core::DeserializeGuard};
use slurm_operator_api::{
    common::validation::FieldError,
    slinky::{Accounting, AccountingStatus, names},
};

pub use plan::Facts;

use super::external_ips;
use crate::{
    failure::Failure,
    machine::{CHILD, Conditions, Findings, Kind, Need, Referenced, WATCHED, namespaced},
    sources::Sources,
    trigger::{Trigger, TriggerKind},
};

impl Conditions for AccountingStatus {
    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn set_conditions(&mut self, conditions: Vec<Condition>, generation: Option<i64>) {
        (self.conditions, self.observed_generation) = (conditions, generation);
    }
}

impl Kind for Accounting {
    type Facts = Facts;
    type Status = AccountingStatus;
    const NAME: &'static str = "accounting";
    const NEEDS: &'static [Need] = &[
        Need { group: "", resources: &["secrets", "services"], verbs: CHILD },
        Need { group: "apps", resources: &["statefulsets"], verbs: CHILD },
        Need { group: "", resources: &["pods"], verbs: &["delete", "get", "list", "watch"] },
        // slurmdbd says only there why it has no database.
        Need { group: "", resources: &["pods/log"], verbs: &["get"] },
        Need { group: "", resources: &["configmaps"], verbs: WATCHED },
        Need { group: "slinky.slurm.net", resources: &["controllers"], verbs: WATCHED },
    ];

    fn objects(client: Client, namespace: Option<&str>) -> Api<DeserializeGuard<Self>> {
        namespaced(client, namespace)
    }

    fn status(&self) -> Option<&AccountingStatus> {
        self.status.as_ref()
    }

    fn validate(&self) -> Vec<FieldError> {
        validate::validate(self)
    }

    fn admission(&self, _: &Referenced) -> Findings {
        Findings { warnings: external_ips(&self.spec.service).into_iter().collect(), ..Findings::default() }
    }

    async fn observe(&self, sources: &Sources, _: Timestamp) -> Result<Facts, Failure> {
        Box::pin(observe::observe(self, sources)).await
    }

    fn is_affected(&self, trigger: &Trigger) -> bool {
        let own = names::accounting(&self.name_any());
        trigger.same_namespace(self)
            && match trigger.what {
                TriggerKind::Secret => {
                    let ring = self.spec.slurm_key_ref.as_ref().map(names::key_ring);
                    trigger.name == own
                        || ring.is_some_and(|ring| ring == trigger.name)
                        || secrets(self).any(|name| name == trigger.name)
                }
                TriggerKind::ConfigMap => config_maps(self).any(|name| name == trigger.name),
                // By name, also if it belongs to another object: the name may become free.
                TriggerKind::Pod | TriggerKind::Service | TriggerKind::StatefulSet => trigger.name.starts_with(&own),
                // Of any cluster that uses it.
                TriggerKind::SlurmHealth(names::GROUP) => true,
                _ => false,
            }
    }

    fn plan(&self, facts: &Facts, now: Timestamp) -> Plan<AccountingStatus> {
        plan::plan(self, facts, now)
    }
}

/// The Secrets that it refers to.
fn secrets(accounting: &Accounting) -> impl Iterator<Item = &str> {
    let spec = &accounting.spec;
    let storage = spec.storage_config.as_ref();
    let tls = storage.and_then(|storage| storage.tls.as_ref());
    let keys = [
        spec.slurm_key_ref.as_ref(),
        spec.jwt_key(),
        storage.map(|storage| &storage.password_key_ref),
        tls.and_then(|tls| tls.ca.as_ref()?.secret_key_ref.as_ref()),
    ];
    let certificate = tls.and_then(|tls| tls.client_certificate_ref.as_ref());
    keys.into_iter().flatten().map(|key| &*key.name).chain(certificate.map(|secret| &*secret.name))
}

/// The `ConfigMaps` that it refers to.
fn config_maps(accounting: &Accounting) -> impl Iterator<Item = &str> {
    let tls = accounting.spec.storage_config.as_ref().and_then(|storage| storage.tls.as_ref());
    let ca = tls.and_then(|tls| tls.ca.as_ref()?.config_map_key_ref.as_ref());
    accounting.spec.jwks_key_ref.iter().chain(ca).map(|reference| &*reference.name)
}
