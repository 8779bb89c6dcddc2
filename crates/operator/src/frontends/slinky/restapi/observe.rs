//! Observes the Controller of a `RestApi` and the state of slurmrestd.

use std::collections::BTreeMap;

use engine::{
    daemons::{
        progress::{Progress, of_deployment},
        shared::SLURMRESTD,
    },
    hash::{hash, hash_of_files},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, ResourceExt};
use slurm::conf::{Conf, Item};
use slurm_operator_api::slinky::{Controller, RestApi, VOCABULARY, names};

use super::plan::{ControllerFacts, Facts};
use crate::{
    failure::Failure,
    frontends::slinky::{controller::uses_slurmdbd, keys::Ring},
    kube_view::read::{Reader, Use},
};

pub(super) async fn observe(rest_api: &RestApi, client: &Client, now: Timestamp) -> Result<Facts, Failure> {
    let namespace = rest_api.namespace().unwrap_or_default();
    let read = Reader { client, namespace: &namespace };
    let name = names::rest_api(&rest_api.name_any());
    let (controller, service, deployment) =
        tokio::try_join!(controller(rest_api, &read), read.get(&name), read.get(&name))?;
    let is_ready = of_deployment(deployment.as_ref(), true) == Progress::Ready;
    let pod_problems = match &deployment {
        Some(_) if !is_ready => read.pod_problems(&SLURMRESTD.selector(&VOCABULARY, &rest_api.name_any()), now).await?,
        _ => Vec::new(),
    };
    Ok(Facts { controller, service, deployment, pod_problems })
}

async fn controller(rest_api: &RestApi, read: &Reader<'_>) -> Result<Option<ControllerFacts>, Failure> {
    let name = &rest_api.spec.controller_ref.name;
    if name.is_empty() {
        return Ok(None);
    }
    let Some(controller) = read.get::<Controller>(name).await? else { return Ok(None) };
    let slurm_key = controller.spec.slurm_key_ref.clone();
    let key = read.entry(slurm_key.as_ref()).await?;
    let ring = Ring::observe(read, slurm_key.as_ref(), &key, !controller.spec.external).await?;
    let key = key.map_or_else(|state| state, |bytes| Use::Slurm.state(&bytes));
    let config = read.get::<ConfigMap>(&names::controller_config(name)).await?;
    let text = config.and_then(|config| config.data.unwrap_or_default().remove("slurm.conf"));
    let references = &controller.spec.config_file_refs;
    let has_includes = text.as_deref().is_some_and(has_includes);
    let wanted = references.iter().filter(|file| has_includes && !file.name.is_empty());
    let mut included = BTreeMap::new();
    for reference in wanted {
        let copy = names::controller_config_copy(name, &reference.name);
        let files = read.files(&copy).await?;
        included.insert(
            copy,
            files.map(|files| hash_of_files(files.iter().map(|(name, text)| (name.as_str(), text.as_slice())))),
        );
    }
    Ok(Some(ControllerFacts {
        // As slurm.conf says: the Controller may still wait for slurmdbd.
        accounting: text.as_deref().is_some_and(uses_slurmdbd),
        slurm_key,
        key,
        ring,
        included,
        config_hash: text.map(|text| hash([("slurm.conf", text.as_str())])),
    }))
}

/// Whether slurm.conf includes other files, without which slurmrestd would not start.
fn has_includes(slurm_conf: &str) -> bool {
    let conf = Conf::parse(slurm_conf);
    conf.is_ok_and(|conf| conf.lines().iter().any(|line| matches!(line.item, Item::Include(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_found() {
        assert!(has_includes("ClusterName=a\ninclude partitions.conf\n"));
        assert!(!has_includes("ClusterName=a\n# Include partitions.conf\n"));
    }
}
