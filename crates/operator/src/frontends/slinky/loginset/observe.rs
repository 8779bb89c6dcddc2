//! Observes the Controller of a `LoginSet` and the state of its login nodes.

use engine::{
    daemons::{
        login::HOST_KEYS,
        progress::{Progress, of_deployment},
        shared::LOGIN,
    },
    hash::hash_of_files,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use slurm_operator_api::slinky::{Controller, LoginSet, VOCABULARY, names};

use super::plan::{ControllerFacts, Facts, HostKeys};
use crate::{
    failure::Failure,
    frontends::slinky::{controller::config_server, keys::Ring},
    kube_view::read::{Reader, Use},
    sources::Sources,
};

pub(super) async fn observe(login_set: &LoginSet, sources: &Sources, now: Timestamp) -> Result<Facts, Failure> {
    let namespace = login_set.namespace().unwrap_or_default();
    let read = Reader { client: &sources.kube.client, namespace: &namespace };
    let name = login_set.name_any();
    let (login, ssh_config, ssh_host_keys) =
        (names::login(&name), names::ssh_config(&name), names::ssh_host_keys(&name));
    let (controller, sssd, host_keys, config_map, service, deployment) = tokio::try_join!(
        controller(login_set, &read),
        read.key(Some(&login_set.spec.sssd_conf_ref), Use::File),
        read.get::<Secret>(&ssh_host_keys),
        read.get(&ssh_config),
        read.get(&login),
        read.get(&login),
    )?;
    let is_ready = of_deployment(deployment.as_ref(), true) == Progress::Ready;
    let pod_problems = match &deployment {
        Some(_) if !is_ready => read.pod_problems(&LOGIN.selector(&VOCABULARY, &name), now).await?,
        _ => Vec::new(),
    };
    Ok(Facts {
        controller,
        sssd,
        host_keys: host_keys.map(HostKeys::of),
        config_map,
        service,
        deployment,
        pod_problems,
        domain: sources.domain.to_string(),
    })
}

async fn controller(login_set: &LoginSet, read: &Reader<'_>) -> Result<Option<ControllerFacts>, Failure> {
    let name = &login_set.spec.controller_ref.name;
    if name.is_empty() {
        return Ok(None);
    }
    let Some(controller) = read.get::<Controller>(name).await? else { return Ok(None) };
    let slurm_key = controller.spec.slurm_key_ref.clone();
    let key = read.entry(slurm_key.as_ref()).await?;
    let ring = Ring::observe(read, slurm_key.as_ref(), &key, !controller.spec.external).await?;
    let key = key.map_or_else(|state| state, |bytes| Use::Slurm.state(&bytes));
    let config_server = config_server(&controller);
    Ok(Some(ControllerFacts { config_server, generates_keys: controller.spec.generate_keys, slurm_key, key, ring }))
}

impl HostKeys {
    /// Keeps hashes instead of keys.
    fn of(mut secret: Secret) -> Self {
        let data = secret.data.take().unwrap_or_default();
        let names = HOST_KEYS.iter().flat_map(|key| [(*key).to_owned(), format!("{key}.pub")]);
        let (found, missing): (Vec<_>, Vec<_>) =
            names.partition(|name| data.get(name).is_some_and(|bytes| !bytes.0.is_empty()));
        let files = found.iter().filter_map(|name| Some((name.as_str(), data.get(name)?.0.as_slice())));
        let hash = hash_of_files(files);
        Self { secret, missing, hash }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    #[test]
    fn host_keys_are_observed_without_their_content() {
        let secret = |skipped: &str| {
            let names = HOST_KEYS.iter().flat_map(|key| [(*key).to_owned(), format!("{key}.pub")]);
            let entry = |name: String| (name, ByteString(b"hunter2".to_vec()));
            let data = names.filter(|name| name != skipped).map(entry).collect();
            Secret { data: Some(data), ..Secret::default() }
        };
        let complete = HostKeys::of(secret(""));
        assert_eq!(complete.missing, Vec::<String>::new());
        assert_eq!(complete.secret, Secret::default());
        let partial = HostKeys::of(secret("ssh_host_rsa_key.pub"));
        assert_eq!(partial.missing, ["ssh_host_rsa_key.pub"]);
        assert_ne!(complete.hash, partial.hash);
    }
}
