//! From a Controller and what was seen to the engine's models.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use slurm::{conf::check_file, version::SlurmVersion};
use slurm_operator_api::{
    Controller, ControllerSpec, NodeSet,
    conditions::reason,
    names::{self, annotation::hash as hashes},
    shared::{ExternalConfig, LocalObjectReference},
};

use super::plan::{AccountingSeen, Seen};
use crate::engine::{
    config::{ClusterModel, Files, Host, NodeSetLine, Place, Scripts, cgroup_conf, hash, slurm_conf},
    daemons::{
        keys::{KeySeen, hash_of},
        shared::{self, Parent, Texts, slurmctld_address},
        slurmctld::Slurmctld,
        verdict::Trouble,
    },
};

/// Files that users cannot bring along.
const OURS: &[&str] = &["jwt.key", "slurm.conf", "slurm.key", "slurmdbd.conf"];

/// Where slurmd and sackd of a cluster get their configuration from.
pub fn config_server(controller: &Controller) -> String {
    if let Some(elsewhere) = controller.spec.elsewhere() {
        return format!("{}:{}", elsewhere.host, elsewhere.port);
    }
    let (name, namespace) = (controller.name_any(), controller.namespace().unwrap_or_default());
    shared::config_server(&name, &namespace, controller.spec.service_port(), controller.spec.replicas())
}

/// What slurm.conf says of a `NodeSet`.
pub(super) fn node_set_line(node_set: &NodeSet) -> NodeSetLine {
    let partition = node_set.spec.partition();
    NodeSetLine {
        origin: format!("NodeSet {}", node_set.name_any()),
        name: node_set.slurm_name(),
        partition: partition.map(|partition| partition.config.clone().unwrap_or_default()),
    }
}

/// The names of all `ConfigMaps` whose files go to /etc/slurm, sorted, each once.
pub(super) fn config_maps(spec: &ControllerSpec) -> BTreeSet<String> {
    let all = [
        &spec.config_file_refs,
        &spec.prolog_script_refs,
        &spec.epilog_script_refs,
        &spec.prolog_slurmctld_script_refs,
        &spec.epilog_slurmctld_script_refs,
    ];
    all.into_iter().flatten().map(|reference| reference.name.clone()).filter(|name| !name.is_empty()).collect()
}

/// The version of Slurm, for what goes into its configuration: the image's tag knows it first, also after a change.
pub(super) fn version(controller: &Controller) -> Option<SlurmVersion> {
    let told = || controller.status.as_ref()?.slurm_version.as_deref()?.parse().ok();
    controller.spec.slurmctld.text("image").and_then(SlurmVersion::from_image).or_else(told)
}

/// The cluster, for its configuration.
pub(super) fn cluster(controller: &Controller, seen: &Seen) -> Result<ClusterModel, Trouble> {
    let (name, namespace) = (controller.name_any(), controller.namespace().unwrap_or_default());
    let spec = &controller.spec;
    let replicas = spec.replicas();
    let host = |ordinal| Host {
        name: names::controller_pod(&name, ordinal),
        address: slurmctld_address(&name, &namespace, ordinal),
    };
    // Clients reach this address at slurmctld's own port, and expect the active slurmctld there.
    let is_address = replicas == 1 && spec.service_port() == names::port::SLURMCTLD;
    let files = |references| scripts(references, seen);
    Ok(ClusterModel {
        name: controller.cluster_name(),
        hosts: (0..replicas).map(host).collect(),
        address: is_address.then(|| names::service_host(&names::controller(&name), &namespace)),
        port: port(names::port::SLURMCTLD),
        accounting: accounting(spec, &seen.accounting, &namespace)?,
        metrics: spec.metrics_enabled(),
        jwks: spec.jwks_key_ref.is_some(),
        version: version(controller),
        scripts: Scripts {
            prolog: files(&spec.prolog_script_refs),
            epilog: files(&spec.epilog_script_refs),
            prolog_slurmctld: files(&spec.prolog_slurmctld_script_refs),
            epilog_slurmctld: files(&spec.epilog_slurmctld_script_refs),
        },
        node_sets: seen.node_sets.clone(),
        extra: spec.extra_conf.clone().unwrap_or_default(),
    })
}

/// A cluster somewhere else, for those who cannot ask it for its configuration.
pub(super) fn cluster_elsewhere(
    controller: &Controller,
    elsewhere: &ExternalConfig,
    seen: &Seen,
) -> Result<ClusterModel, Trouble> {
    let namespace = controller.namespace().unwrap_or_default();
    Ok(ClusterModel {
        name: controller.cluster_name(),
        hosts: vec![Host { name: elsewhere.host.clone(), address: elsewhere.host.clone() }],
        port: port(elsewhere.port),
        accounting: accounting(&controller.spec, &seen.accounting, &namespace)?,
        ..ClusterModel::default()
    })
}

fn port(port: i32) -> u16 {
    // The schema keeps ports in range.
    u16::try_from(port).unwrap_or_default()
}

fn accounting(spec: &ControllerSpec, seen: &AccountingSeen, namespace: &str) -> Result<Option<Place>, Trouble> {
    let name = spec.accounting().unwrap_or_default();
    match seen {
        AccountingSeen::NotNamed => Ok(None),
        // Without its records Slurm would run on quietly; better not.
        AccountingSeen::Missing => Err(Trouble::new(
            reason::REFERENCE_MISSING,
            format!("the Accounting {name} does not exist: create it, or correct spec.accountingRef"),
        )),
        AccountingSeen::Here { service_port } => {
            let host = names::service_host(&names::accounting(name), namespace);
            Ok(Some(Place { host, port: port(*service_port) }))
        }
        AccountingSeen::Elsewhere(place) => Ok(Some(Place { host: place.host.clone(), port: port(place.port) })),
    }
}

fn scripts(references: &[LocalObjectReference], seen: &Seen) -> Vec<String> {
    let maps = references.iter().filter_map(|reference| seen.config_maps.get(&reference.name)?.as_ref());
    let names: BTreeSet<&String> = maps.flat_map(BTreeMap::keys).collect();
    names.into_iter().cloned().collect()
}

/// The files that we write, if what the user brings along fits.
pub(super) fn own_files(controller: &Controller, seen: &Seen) -> Result<Texts, Trouble> {
    check_user_files(controller, seen)?;
    let text = slurm_conf(&cluster(controller, seen)?).map_err(Trouble::invalid)?;
    let mut files = Texts::from([("slurm.conf".to_owned(), text)]);
    let has_cgroup_conf = seen.config_maps.values().flatten().any(|files| files.contains_key("cgroup.conf"));
    if !has_cgroup_conf {
        files.insert("cgroup.conf".to_owned(), cgroup_conf().map_err(Trouble::invalid)?);
    }
    Ok(files)
}

fn check_user_files(controller: &Controller, seen: &Seen) -> Result<(), Trouble> {
    let missing = |what: String| Err(Trouble::new(reason::REFERENCE_MISSING, what));
    for name in config_maps(&controller.spec) {
        let Some(Some(files)) = seen.config_maps.get(&name) else {
            return missing(format!("the ConfigMap {name} does not exist: create it, or remove it from the spec"));
        };
        check_files(&name, files)?;
    }
    let Some(jwks) = &controller.spec.jwks_key_ref else { return Ok(()) };
    match seen.config_maps.get(&jwks.name) {
        Some(Some(files)) if files.contains_key(&jwks.key) => Ok(()),
        _ => missing(format!("the ConfigMap {} has no {}: create it, or correct spec.jwksKeyRef", jwks.name, jwks.key)),
    }
}

fn check_files(config_map: &str, files: &Files) -> Result<(), Trouble> {
    for (file, content) in files {
        if OURS.contains(&file.as_str()) {
            return Err(Trouble::invalid(format!(
                "the ConfigMap {config_map} must not hold {file}, which the operator writes: use spec.extraConf"
            )));
        }
        if let Err(error) = check_file(file, &String::from_utf8_lossy(content)) {
            return Err(Trouble::invalid(format!("{file} in the ConfigMap {config_map}: {error}")));
        }
    }
    Ok(())
}

/// How slurmctld is to run. `own` are the files that we write.
pub(super) fn slurmctld<'a>(
    controller: &'a Controller,
    seen: &'a Seen,
    parent: &Parent,
    own: &Texts,
) -> Result<Slurmctld<'a>, Trouble> {
    let spec = &controller.spec;
    let (slurm_key, jwt_key) = (spec.slurm_key_ref.as_ref(), spec.jwt_key());
    let slurm_hash = hash_of(&seen.slurm_key, slurm_key, "Slurm's key", "spec.slurmKeyRef")
        .map_err(|trouble| or_generate(trouble, &seen.slurm_key, spec, seen))?;
    let jwt_hash = hash_of(&seen.jwt_key, jwt_key, "the key that signs tokens", "spec.jwtKeyRef")
        .map_err(|trouble| or_generate(trouble, &seen.jwt_key, spec, seen))?;
    let (Some(slurm_key), Some(jwt_key)) = (slurm_key, jwt_key) else {
        return Err(Trouble::invalid("name Slurm's keys in spec.slurmKeyRef and spec.jwtKeyRef"));
    };
    let Some(image) = spec.slurmctld.text("image") else {
        return Err(Trouble::invalid("name the image of slurmctld in spec.slurmctld.image"));
    };
    check_shared_claim(spec, seen)?;
    let mut hashes = Texts::from([
        (hashes::SLURM_KEY.to_owned(), slurm_hash.to_owned()),
        (hashes::JWT_KEY.to_owned(), jwt_hash.to_owned()),
    ]);
    if !spec.inplace_reconfigure {
        hashes.insert(hashes::SLURM_CONFIG.to_owned(), config_hash(own, seen));
    }
    Ok(Slurmctld {
        parent: parent.clone(),
        cluster: controller.cluster_name(),
        replicas: spec.replicas(),
        image,
        container: &spec.slurmctld,
        reconfigure: spec.inplace_reconfigure.then_some(&spec.reconfigure),
        logfile: &spec.logfile,
        template: &spec.template,
        state: spec.state_volume(),
        slurm_key,
        jwt_key,
        jwks: spec.jwks_key_ref.as_ref(),
        config_maps: config_maps(spec),
        hashes,
    })
}

/// Whether daemons run with the cluster's keys: a new key would cut them off from each other, and with them their jobs
/// (never-replaced).
pub(super) fn has_run(seen: &Seen) -> bool {
    seen.stateful_set.is_some() || seen.has_workers
}

/// A Secret of a new cluster can be generated; one that a running cluster has lost must be restored.
fn or_generate(mut trouble: Trouble, key: &KeySeen, spec: &ControllerSpec, seen: &Seen) -> Trouble {
    if *key != KeySeen::NoSecret {
        return trouble;
    }
    trouble.message.push_str(if has_run(seen) {
        ". Daemons of this cluster run with the old key, so it is not generated again: restore it from a backup"
    } else if spec.generate_keys {
        ""
    } else {
        ", or set spec.generateKeys"
    });
    trouble
}

/// All that slurmctld reads from /etc/slurm but keys.
fn config_hash(own: &Texts, seen: &Seen) -> String {
    let own = own.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
    let users = seen.config_maps.values().flatten().flatten().map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    hash(own.chain(users))
}

/// All slurmctld of a cluster write to one claim.
fn check_shared_claim(spec: &ControllerSpec, seen: &Seen) -> Result<(), Trouble> {
    let Some(modes) = seen.claim_modes.as_ref().filter(|_| spec.replicas() > 1) else { return Ok(()) };
    if modes.iter().any(|mode| mode == "ReadWriteMany") {
        return Ok(());
    }
    let claim = spec.persistence.as_ref().and_then(|persistence| persistence.existing_claim.as_deref());
    Err(Trouble::invalid(format!(
        "the claim {} cannot be written by several pods ({}): name one with ReadWriteMany in \
         spec.persistence.existingClaim, or set spec.ha.enabled to false",
        claim.unwrap_or_default(),
        modes.join(", ")
    )))
}
