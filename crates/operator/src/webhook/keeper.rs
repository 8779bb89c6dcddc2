//! Keeps the certificates: in a Secret that all replicas share, or in files that cert-manager writes.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
        },
        core::v1::Secret,
    },
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    certificates::{
        Current, EVERY, Lifetimes, SOON,
        issue::renew,
        plan_certificates::{Certificates, plan},
        read_files, record,
    },
    failure::{Failure, call},
    health::Readiness,
};

/// What readiness waits for.
const READY: &str = "certificate";

/// The key of the Secret that holds all. The others are for people and their monitoring.
const CONTENT: &str = "certificates.json";

/// Where the certificates come from.
pub enum Source {
    Secret(Box<Keeper>),
    /// A folder with `tls.crt` and `tls.key`.
    Files(PathBuf),
}

/// Certificates that we manage ourselves.
pub struct Keeper {
    pub client: Client,
    pub namespace: String,
    /// The Secret. The chart creates it empty, so that no permission to create Secrets is needed.
    pub secret: String,
    /// What the certificate is valid for.
    pub names: Vec<String>,
    /// The configurations that get the authority.
    pub validating: Option<String>,
    pub mutating: Option<String>,
    pub lifetimes: Lifetimes,
}

impl Source {
    /// Runs forever.
    pub async fn keep(&self, current: &Current, readiness: &Readiness) {
        readiness.expect(READY);
        let mut used = String::new();
        loop {
            let pass = match self {
                Self::Secret(keeper) => keeper.pass(current, &mut used).await,
                Self::Files(folder) => read_files(folder, current, &mut used).map(|()| EVERY),
            };
            tokio::time::sleep(record(READY, readiness, pass)).await;
        }
    }
}

impl Keeper {
    /// Renews what is due, has the API server trust it, and uses it; in this order. Returns when to look again.
    async fn pass(&self, current: &Current, used: &mut String) -> Result<Duration> {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
        let title = || format!("Secret {}/{}", self.namespace, self.secret);
        let mut secret = called(call("reading", title, secrets.get(&self.secret)).await)?;
        let found = decode(&secret);
        let now = Timestamp::now();
        let renewal = plan(found.as_ref(), &self.names, &self.lifetimes, now);
        let renewed = renew(renewal, found.clone(), &self.names, &self.lifetimes, now)?;
        let mut pause = EVERY.min(self.lifetimes.trusted_after.unsigned_abs());
        if let Some(renewed) = &renewed {
            secret.data = Some(encode(renewed)?);
            // With the version that was read: if another replica was faster, its certificates are used in the next pass.
            let params = PostParams::default();
            called(call("writing", title, secrets.replace(&self.secret, &params, &secret)).await)?;
            tracing::info!(?renewal, "certificates renewed");
            pause = pause.min(SOON);
        }
        let Some(certificates) = renewed.or(found) else { return Ok(SOON) };
        self.trust(&certificates.bundle()).await?;
        if *used != certificates.serving.certificate {
            current.set(&certificates.serving.certificate, &certificates.serving.key)?;
            used.clone_from(&certificates.serving.certificate);
        }
        Ok(pause)
    }

    /// Writes the authorities to the webhook configurations that do not have them.
    async fn trust(&self, bundle: &str) -> Result<()> {
        if let Some(name) = &self.validating {
            let api = Api::<ValidatingWebhookConfiguration>::all(self.client.clone());
            let hooks = |found: ValidatingWebhookConfiguration| {
                found.webhooks.unwrap_or_default().into_iter().map(|hook| (hook.name, hook.client_config)).collect()
            };
            trust_in(&api, "ValidatingWebhookConfiguration", name, hooks, bundle).await?;
        }
        if let Some(name) = &self.mutating {
            let api = Api::<MutatingWebhookConfiguration>::all(self.client.clone());
            let hooks = |found: MutatingWebhookConfiguration| {
                found.webhooks.unwrap_or_default().into_iter().map(|hook| (hook.name, hook.client_config)).collect()
            };
            trust_in(&api, "MutatingWebhookConfiguration", name, hooks, bundle).await?;
        }
        Ok(())
    }
}

async fn trust_in<K>(
    api: &Api<K>,
    kind: &str,
    name: &str,
    hooks: impl Fn(K) -> Vec<(String, WebhookClientConfig)>,
    bundle: &str,
) -> Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let title = || format!("{kind} {name}");
    let found = called(call("reading", title, api.get(name)).await)?;
    let bundle = ByteString(bundle.as_bytes().to_vec());
    let wrong: Vec<Value> = hooks(found)
        .into_iter()
        .filter(|(_, config)| config.ca_bundle.as_ref() != Some(&bundle))
        .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    if wrong.is_empty() {
        return Ok(());
    }
    // Lists are merged by name.
    let patch = Patch::Strategic(json!({"webhooks": wrong}));
    let params = PatchParams { field_manager: Some("slurm-operator-webhook".into()), ..PatchParams::default() };
    called(call("writing", title, api.patch(name, &params, &patch)).await)?;
    tracing::info!(configuration = name, "authority written");
    Ok(())
}

fn called<T>(result: Result<T, Failure>) -> Result<T> {
    result.map_err(|failure| anyhow::anyhow!("{}", failure.text()))
}

/// The certificates in the Secret, if it has any that can be read.
fn decode(secret: &Secret) -> Option<Certificates> {
    let content = secret.data.as_ref()?.get(CONTENT)?;
    serde_json::from_slice(&content.0).ok()
}

fn encode(certificates: &Certificates) -> Result<BTreeMap<String, ByteString>> {
    let content = serde_json::to_vec(certificates).context("cannot write the certificates")?;
    Ok([
        (CONTENT, content),
        ("ca.crt", certificates.bundle().into_bytes()),
        ("tls.crt", certificates.serving.certificate.clone().into_bytes()),
        ("tls.key", certificates.serving.key.clone().into_bytes()),
    ]
    .map(|(key, value)| (key.to_owned(), ByteString(value)))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::plan_certificates::Renewal;

    fn made() -> Certificates {
        let names = ["hook.ns.svc".to_owned()];
        renew(Renewal::All, None, &names, &Lifetimes::default(), Timestamp::now()).unwrap().unwrap()
    }

    #[test]
    fn the_secret_keeps_everything_and_nonsense_is_replaced() {
        let made = made();
        let secret = |data: BTreeMap<String, ByteString>| Secret { data: Some(data), ..Secret::default() };
        let data = encode(&made).unwrap();
        assert_eq!(data["ca.crt"].0, made.authority.certificate.as_bytes());
        assert!(decode(&secret(data)).as_ref() == Some(&made));
        assert!(decode(&Secret::default()).is_none());
        let nonsense = ByteString(b"{\"authority\": 7}".to_vec());
        assert!(decode(&secret([(CONTENT.to_owned(), nonsense)].into())).is_none());
    }
}
