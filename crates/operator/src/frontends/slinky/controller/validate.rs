//! What is wrong with the spec of a Controller, as far as it alone shows.

use slurm::conf::{Finding, check};
use slurm_operator_api::{
    common::{storage::StateVolume, validation::FieldError},
    slinky::Controller,
};

use super::model::version;
use crate::{
    frontends::slinky::external_ips,
    machine::{Findings, Reference, Referenced},
};

/// The longest name of a cluster: the accounting database has tables with it in their names.
const MAX_CLUSTER_NAME: usize = 40;

/// Files that users must not provide.
const OURS: &[&str] = &["jwt.key", "slurm.conf", "slurm.jwks", "slurm.key", "slurmdbd.conf"];

/// Files that Slurm reads by themselves. Others must be named in one of these, or in slurm.conf.
const KNOWN: &[&str] = &[
    "acct_gather.conf",
    "burst_buffer.conf",
    "cgroup.conf",
    "cli_filter.lua",
    "gres.conf",
    "helpers.conf",
    "job_container.conf",
    "job_submit.lua",
    "mpi.conf",
    "namespace.yaml",
    "oci.conf",
    "plugstack.conf",
    "topology.conf",
    "topology.yaml",
];

pub(super) fn validate(controller: &Controller) -> Vec<FieldError> {
    let spec = &controller.spec;
    if spec.external {
        let message = "required while spec.external is true: set it, or set spec.external to false";
        return match spec.elsewhere() {
            Some(_) => Vec::new(),
            None => vec![FieldError::new("spec.externalConfig", message)],
        };
    }
    let mut errors = running(controller);
    let found = check("slurm.conf", spec.extra_conf.as_deref().unwrap_or_default(), version(controller));
    let refused = found.into_iter().filter(Finding::is_error);
    errors.extend(refused.map(|finding| FieldError::new("spec.extraConf", finding.text)));
    errors
}

/// What slurmctld needs to run.
pub(super) fn running(controller: &Controller) -> Vec<FieldError> {
    let spec = &controller.spec;
    let keys = [
        (spec.slurm_key_ref.is_some(), "spec.slurmKeyRef", "set it to the Secret with Slurm's key"),
        (spec.jwt_key().is_some(), "spec.jwtKeyRef", "set it to the Secret with the key that signs tokens"),
    ];
    let missing = keys.into_iter().filter(|(is_set, ..)| !is_set);
    let mut errors: Vec<FieldError> = missing.map(|(_, path, message)| FieldError::new(path, message)).collect();
    if spec.slurmctld.text("image").is_none() {
        errors.push(FieldError::required("spec.slurmctld.image"));
    }
    errors
}

/// Why a file of a `ConfigMap` cannot be used.
pub(super) fn reserved(config_map: &str, file: &str) -> Option<String> {
    let text = || {
        format!("the ConfigMap {config_map} must not contain {file}, which the operator generates: use spec.extraConf")
    };
    OURS.contains(&file).then(text)
}

/// Why several slurmctld cannot share a claim with these access modes.
pub(super) fn unshareable(claim: &str, modes: &[String]) -> Option<String> {
    let text = || {
        format!(
            "the claim {claim} cannot be mounted read-write by several pods ({}): set \
             spec.persistence.existingClaim to one with ReadWriteMany, or set spec.ha.enabled to false",
            modes.join(", ")
        )
    };
    (!modes.iter().any(|mode| mode == "ReadWriteMany")).then(text)
}

/// What admission looks at.
pub(super) fn references(controller: &Controller) -> Vec<Reference> {
    let files = controller.spec.config_file_refs.iter().map(|reference| &reference.name);
    let files = files.filter(|name| !name.is_empty()).map(|name| Reference::ConfigMap(name.clone()));
    let claim = shared_claim(controller).map(|name| Reference::Claim(name.to_owned()));
    files.chain(claim).collect()
}

/// The claim that all slurmctld use.
fn shared_claim(controller: &Controller) -> Option<&str> {
    match controller.spec.state_volume() {
        StateVolume::Existing(name) if controller.spec.replicas() > 1 => Some(name),
        _ => None,
    }
}

/// What admission says beyond `validate`.
pub(super) fn admission(controller: &Controller, referenced: &Referenced) -> Findings {
    let mut found = Findings::default();
    found.warnings.extend(external_ips(&controller.spec.service));
    let name = controller.cluster_name();
    if !controller.spec.external && name.chars().count() > MAX_CLUSTER_NAME {
        let message = format!("`{name}` has more than {MAX_CLUSTER_NAME} characters: set a shorter one");
        found.errors.push(FieldError::new("spec.clusterName", message));
    }
    for (index, reference) in controller.spec.config_file_refs.iter().enumerate() {
        let path = format!("spec.configFileRefs[{index}]");
        match referenced.config_maps.get(&reference.name) {
            None => {}
            Some(None) => {
                let message = format!("the ConfigMap {} does not exist: slurmctld waits for it", reference.name);
                found.warnings.push(FieldError::new(path, message));
            }
            Some(Some(files)) => {
                for file in files {
                    if let Some(text) = reserved(&reference.name, file) {
                        found.errors.push(FieldError::new(path.clone(), text));
                    } else if is_unread(controller, file) {
                        let message = format!("Slurm does not read {file} unless another file names it");
                        found.warnings.push(FieldError::new(path.clone(), message));
                    }
                }
            }
        }
    }
    let claim = shared_claim(controller).and_then(|name| Some((name, referenced.claims.get(name)?)));
    if let Some(text) = claim.and_then(|(name, modes)| unshareable(name, modes)) {
        found.errors.push(FieldError::new("spec.persistence.existingClaim", text));
    }
    found
}

fn is_unread(controller: &Controller, file: &str) -> bool {
    let is_named = controller.spec.extra_conf.as_deref().is_some_and(|extra| extra.contains(file));
    !KNOWN.contains(&file) && !is_named
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn controller(spec: &Value) -> Controller {
        let metadata = json!({"name": "slurm", "namespace": "hpc"});
        let object =
            json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller", "metadata": metadata, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    fn found(spec: &Value, referenced: &Referenced) -> (Vec<String>, Vec<String>) {
        let Findings { errors, warnings } = admission(&controller(spec), referenced);
        let texts = |found: Vec<FieldError>| found.iter().map(ToString::to_string).collect();
        (texts(errors), texts(warnings))
    }

    #[test]
    fn the_name_of_the_cluster_has_at_most_40_characters() {
        let none = Referenced::default();
        assert_eq!(found(&json!({"clusterName": "a".repeat(40)}), &none), (vec![], vec![]));
        let (errors, _) = found(&json!({"clusterName": "a".repeat(41)}), &none);
        assert!(errors.concat().starts_with("spec.clusterName: "), "{errors:?}");
        let mut long = controller(&json!({}));
        long.metadata.namespace = Some("n".repeat(35));
        assert_eq!(admission(&long, &none).errors.len(), 1, "the default name counts");
        assert_eq!(found(&json!({"external": true, "clusterName": "a".repeat(41)}), &none).0.len(), 0);
    }

    #[test]
    fn files_are_looked_at() {
        let spec = json!({"configFileRefs": [{"name": "files"}, {"name": "gone"}, {"name": ""}, {"name": "unread"}],
            "extraConf": "Include included.conf"});
        let names = ["gres.conf", "slurm.conf", "included.conf", "notes.txt"].map(str::to_owned);
        let config_maps = [("files".to_owned(), Some(names.into())), ("gone".to_owned(), None)].into();
        let referenced = Referenced { config_maps, ..Referenced::default() };
        let read = references(&controller(&spec));
        assert_eq!(read, ["files", "gone", "unread"].map(|name| Reference::ConfigMap(name.into())));
        let (errors, warnings) = found(&spec, &referenced);
        let reserved =
            "the ConfigMap files must not contain slurm.conf, which the operator generates: use spec.extraConf";
        assert_eq!(errors, [format!("spec.configFileRefs[0]: {reserved}")]);
        assert_eq!(
            warnings,
            [
                "spec.configFileRefs[0]: Slurm does not read notes.txt unless another file names it",
                "spec.configFileRefs[1]: the ConfigMap gone does not exist: slurmctld waits for it",
            ]
        );
    }

    #[test]
    fn backups_need_a_claim_that_can_be_shared() {
        let spec = |ha: bool| json!({"ha": {"enabled": ha}, "persistence": {"existingClaim": "state"}});
        let with = |modes: &[&str]| Referenced {
            claims: [("state".to_owned(), modes.iter().map(ToString::to_string).collect())].into(),
            ..Referenced::default()
        };
        assert_eq!(references(&controller(&spec(true))), [Reference::Claim("state".into())]);
        assert_eq!(references(&controller(&spec(false))), []);
        assert_eq!(found(&spec(true), &Referenced::default()), (vec![], vec![]), "it may come later");
        assert_eq!(found(&spec(true), &with(&["ReadWriteOnce", "ReadWriteMany"])), (vec![], vec![]));
        assert_eq!(found(&spec(true), &with(&["ReadWriteOnce"])).0.len(), 1);
    }

    #[test]
    fn external_ips_are_ignored() {
        let spec = |ips: Value| json!({"service": {"spec": {"externalIPs": ips}}});
        let (errors, warnings) = found(&spec(json!(["10.0.0.1"])), &Referenced::default());
        assert!(errors.is_empty() && warnings.concat().starts_with("spec.service.spec.externalIPs: ignored"));
        assert_eq!(found(&spec(Value::Null), &Referenced::default()), (vec![], vec![]));
    }
}
