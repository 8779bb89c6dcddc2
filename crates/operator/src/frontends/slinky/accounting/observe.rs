//! Observes what an Accounting refers to, its child objects, and why slurmdbd has no database.

use engine::{
    daemons::{
        keys::SecretText,
        progress::{Progress, of_stateful_set},
        shared::SLURMDBD,
        slurmdbd::{DatabaseProblem, database_problem},
    },
    hash::hash,
    plan::Fingerprint,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{ResourceExt, api::ListParams, core::DeserializeGuard};
use slurm_operator_api::{
    common::shared::{ConfigMapKeySelector, SecretKeySelector},
    slinky::{Accounting, Controller, VOCABULARY, accounting::StorageTls, names},
};

use super::plan::{Facts, Password};
use crate::{
    failure::Failure,
    frontends::slinky::{
        cluster_key,
        keys::{self, Ring},
    },
    kube_view::read::{Reader, Use},
    sources::Sources,
};

pub(super) async fn observe(accounting: &Accounting, sources: &Sources) -> Result<Facts, Failure> {
    let namespace = accounting.namespace().unwrap_or_default();
    let read = Reader { client: &sources.kube.client, namespace: &namespace };
    let (spec, name) = (&accounting.spec, accounting.name_any());
    let storage = spec.storage_config.as_ref();

    let own = names::accounting(&name);
    let (service, config, stateful_set) = tokio::try_join!(read.get(&own), read.get::<Secret>(&own), read.get(&own))?;
    let (slurm_key, jwt_key, password) = tokio::try_join!(
        read.entry(spec.slurm_key_ref.as_ref()),
        read.key(spec.jwt_key(), Use::Signing),
        read.entry(storage.map(|storage| &storage.password_key_ref)),
    )?;
    let is_managed = keys::is_managed(&read, spec.slurm_key_ref.as_ref()).await?;
    let ring = Ring::observe(&read, spec.slurm_key_ref.as_ref(), &slurm_key, is_managed).await?;
    let salt = ring.live().map(|ring| ring.live.ring.default.bytes().to_vec());
    let salt = salt.or_else(|| slurm_key.as_ref().ok().cloned()).unwrap_or_default();
    let tls = storage.and_then(|storage| storage.tls.as_ref());
    let (jwks, has_ca, has_client_certificate) = tokio::try_join!(
        file(&read, spec.jwks_key_ref.as_ref()),
        has_ca(&read, tls),
        has_client_certificate(&read, tls),
    )?;
    let is_ready = of_stateful_set(stateful_set.as_ref(), true) == Progress::Ready;
    let is_running = stateful_set.is_some() && !spec.external;
    let pods =
        if is_running && !is_ready { read.pods(&SLURMDBD.selector(&VOCABULARY, &name)).await? } else { Vec::new() };
    let may_lack_database =
        if is_ready { is_running && is_failing(&name, &read, sources).await? } else { pods.iter().any(is_starting) };
    let database = if may_lack_database { database(&read, &own).await } else { None };
    Ok(Facts {
        password: password.map_or_else(Password::None, |bytes| self::password(&bytes, &salt)),
        ring,
        slurm_key: slurm_key.map_or_else(|state| state, |bytes| Use::Slurm.state(&bytes)),
        jwt_key,
        jwks: jwks.map(|bytes| hash([("", &bytes)])),
        has_ca,
        has_client_certificate,
        service,
        seen: config.as_ref().map(Fingerprint::of),
        config: config.map(|secret| Secret { data: None, ..secret }),
        stateful_set,
        pods,
        database,
    })
}

/// The password with its hash. The hash is public; with Slurm's key in it, nobody can try out passwords.
fn password(bytes: &[u8], slurm_key: &[u8]) -> Password {
    let text = String::from_utf8_lossy(bytes);
    // A file, or `echo`, often ends in a line break, which Slurm could not read.
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    let hash = hash([("1", slurm_key), ("2", text.as_bytes())]);
    Password::Good { text: SecretText(text.to_owned()), hash }
}

/// The content of an entry of a `ConfigMap`.
async fn file(read: &Reader<'_>, reference: Option<&ConfigMapKeySelector>) -> Result<Option<Vec<u8>>, Failure> {
    let Some(reference) = reference else { return Ok(None) };
    Ok(read.files(&reference.name).await?.and_then(|mut files| files.remove(&reference.key)))
}

async fn has_ca(read: &Reader<'_>, tls: Option<&StorageTls>) -> Result<bool, Failure> {
    let Some(ca) = tls.and_then(|tls| tls.ca.as_ref()) else { return Ok(false) };
    Ok(match (&ca.config_map_key_ref, &ca.secret_key_ref) {
        (Some(reference), _) => file(read, Some(reference)).await?.is_some(),
        (None, reference) => read.entry(reference.as_ref()).await?.is_ok(),
    })
}

async fn has_client_certificate(read: &Reader<'_>, tls: Option<&StorageTls>) -> Result<bool, Failure> {
    let Some(secret) = tls.and_then(|tls| tls.client_certificate_ref.as_ref()) else { return Ok(false) };
    for entry in ["tls.crt", "tls.key"] {
        let reference = SecretKeySelector { name: secret.name.clone(), key: entry.to_owned(), optional: None };
        if read.entry(Some(&reference)).await?.is_err() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether slurmdbd runs and has not opened its port yet.
fn is_starting(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().any(|container| {
        let is_running = container.state.as_ref().is_some_and(|state| state.running.is_some());
        container.name == SLURMDBD.program && is_running && !container.ready
    })
}

/// Whether slurmdbd fails to answer a cluster that uses it.
async fn is_failing(name: &str, read: &Reader<'_>, sources: &Sources) -> Result<bool, Failure> {
    // One that cannot be decoded must not harm this object.
    let controllers = read.list::<DeserializeGuard<Controller>>(&ListParams::default()).await?;
    let controllers = controllers.iter().filter_map(|guard| guard.0.as_ref().ok());
    let users = controllers.filter(|controller| controller.spec.accounting() == Some(name));
    let mut statuses = users.map(|user| sources.slurm.cluster_status(&cluster_key(read.namespace, &user.name_any())));
    Ok(statuses.any(|status| matches!(status.accounting, Some(Err(_)))))
}

/// Why slurmdbd has no database, in its own words.
async fn database(read: &Reader<'_>, own: &str) -> Option<DatabaseProblem> {
    let log = read.last_lines(&format!("{own}-0"), SLURMDBD.program).await?;
    database_problem(&log)
}
