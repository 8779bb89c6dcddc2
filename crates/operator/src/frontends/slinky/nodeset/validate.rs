//! What is wrong with the spec of a `NodeSet`, as far as it alone shows.

use engine::{
    config::{ConfigError, NodeSetLine, check_line},
    gres::{NONE, is_valid},
};
use jiff::SignedDuration;
use slurm_operator_api::{
    common::validation::FieldError,
    slinky::{
        NodeSet,
        nodeset::{MaxUnavailable, UpdateType},
    },
};

use super::model::{Parsed, version};
use crate::machine::Findings;

pub(super) fn validate(set: &NodeSet) -> Vec<FieldError> {
    errors(set, &Parsed::of(set))
}

pub(super) fn errors(set: &NodeSet, parsed: &Parsed) -> Vec<FieldError> {
    let Parsed { pod, drain_timeout, update, conf } = parsed;
    let image = set.spec.slurmd.text("image").is_none().then(|| FieldError::required("spec.slurmd.image"));
    let invalid = [pod.as_ref().err(), drain_timeout.as_ref().err(), update.as_ref().err(), conf.as_ref().err()];
    invalid.into_iter().flatten().cloned().chain(image).chain(partition(set)).chain(gres(set)).collect()
}

/// The longest prefix of a hostname: it has at most 63 characters, and one is a digit.
const MAX_HOSTNAME: usize = 62;

/// The shortest maintenance reservation.
const SHORTEST: SignedDuration = SignedDuration::from_mins(1);

/// What admission refuses beyond `validate`: with these, workers would wait for what never comes.
pub(super) fn admission(set: &NodeSet) -> Findings {
    let spec = &set.spec;
    let required = [
        ("spec.controllerRef.name", spec.controller_ref.name.is_empty()),
        ("spec.ssh.sssdConfRef.name", spec.ssh().is_some_and(|ssh| ssh.sssd_conf_ref.name.is_empty())),
    ];
    let missing =
        required.into_iter().filter(|(_, is_missing)| *is_missing).map(|(path, _)| FieldError::required(path));
    let errors = missing.chain(hostname(set)).chain(duration(set)).collect();
    Findings { errors, warnings: standstill(set).into_iter().collect() }
}

/// The API server would refuse the pods.
fn hostname(set: &NodeSet) -> Option<FieldError> {
    let hostname = set.spec.template.hostname()?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_valid = hostname.len() <= MAX_HOSTNAME && hostname.chars().all(is_plain) && !hostname.starts_with('-');
    let message = format!(
        "`{}` must have at most {MAX_HOSTNAME} lower-case letters, digits and hyphens, and no hyphen first",
        hostname.escape_debug()
    );
    (!is_valid).then(|| FieldError::new("spec.template.spec.hostname", message))
}

/// Slurm counts in minutes.
fn duration(set: &NodeSet) -> Option<FieldError> {
    let scheduled = set.spec.update_strategy.as_ref()?.scheduled_update.as_ref()?;
    let is_short = scheduled.duration().is_ok_and(|duration| duration < SHORTEST);
    let path = "spec.updateStrategy.scheduledUpdate.duration";
    is_short.then(|| FieldError::new(path, "must be at least 1 minute"))
}

/// A rolling update that may make no worker unavailable does nothing.
fn standstill(set: &NodeSet) -> Option<FieldError> {
    let strategy = set.spec.update_strategy.as_ref().filter(|strategy| strategy.type_ == UpdateType::RollingUpdate)?;
    let is_none = match &strategy.rolling_update.as_ref()?.max_unavailable {
        MaxUnavailable::Int(number) => *number == 0,
        MaxUnavailable::String(text) => text.strip_suffix('%').is_some_and(|number| number.parse() == Ok(0_u32)),
        MaxUnavailable::Other(_) => false,
    };
    let path = "spec.updateStrategy.rollingUpdate.maxUnavailable";
    is_none.then(|| FieldError::new(path, "with 0 no worker is replaced: set at least 1 to update workers"))
}

fn gres(set: &NodeSet) -> Option<FieldError> {
    let (resource, wrong) = set.spec.gres.iter().find(|(_, gres)| !is_valid(gres))?;
    let message = format!(
        "`{wrong}` must be a generic resource without a count, for example gpu or gpu:h100, or {NONE} for none"
    );
    Some(FieldError::new(format!("spec.gres[{resource}]"), message))
}

/// Slurm must be able to read the partition: otherwise the Controller leaves the set out of slurm.conf.
fn partition(set: &NodeSet) -> Option<FieldError> {
    let parameters = set.spec.partition()?.config.clone().unwrap_or_default();
    // The name is checked with the features of the nodes.
    let line = NodeSetLine { origin: String::new(), name: "name".to_owned(), partition: Some(parameters) };
    let text = match check_line(&line, version(set)).err()? {
        ConfigError::Notation { error, .. } => error.to_string(),
        ConfigError::Refused { text, .. } => text,
        ConfigError::SameName { .. } | ConfigError::Fixed { .. } => return None,
    };
    Some(FieldError::new("spec.partition.config", text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_invalid_fields_are_reported_at_once() {
        let set: NodeSet = serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"name": "gpu"},
            "spec": {
                "controllerRef": {"name": "slurm"},
                "drain": {"timeout": "soon"},
                "extraConf": "no equals sign",
                "gres": {"nvidia.com/gpu": "gpu:8"},
                "partition": {"enabled": true, "config": "MaxTime=1 day"},
                "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "many"}},
                "template": {"spec": {"nodeSelector": 7}},
            },
        }))
        .unwrap();
        let paths: Vec<String> = validate(&set).into_iter().map(|error| error.path).collect();
        assert_eq!(
            paths,
            [
                "spec.template.spec",
                "spec.drain.timeout",
                "spec.updateStrategy.rollingUpdate.maxUnavailable",
                "spec.extraConf",
                "spec.slurmd.image",
                "spec.partition.config",
                "spec.gres[nvidia.com/gpu]",
            ]
        );
    }

    #[test]
    fn admission_names_what_would_wait_for_ever() {
        let found = |spec: serde_json::Value| {
            let set: NodeSet = serde_json::from_value(json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"name": "gpu"}, "spec": spec,
            }))
            .unwrap();
            let Findings { errors, warnings } = admission(&set);
            let paths =
                |found: Vec<FieldError>| found.into_iter().map(|found| found.path).collect::<Vec<_>>().join(" ");
            (paths(errors), paths(warnings))
        };
        let none = (String::new(), String::new());
        let hostname =
            |name: &str| found(json!({"controllerRef": {"name": "slurm"}, "template": {"spec": {"hostname": name}}}));
        assert_eq!(
            [hostname("gpu-"), hostname("4-gpu"), hostname(&"a".repeat(62))],
            [none.clone(), none.clone(), none.clone()]
        );
        let refused = ("spec.template.spec.hostname".to_owned(), String::new());
        for name in ["GPU-", "-gpu", "a.b-", "a b", "é", &"a".repeat(63)] {
            assert_eq!(hostname(name), refused, "{name}");
        }
        let sssd = json!({"name": "", "key": "sssd.conf"});
        let spec = json!({"controllerRef": {}, "ssh": {"enabled": true, "sssdConfRef": sssd}});
        assert_eq!(found(spec).0, "spec.controllerRef.name spec.ssh.sssdConfRef.name");
        let spec = json!({"controllerRef": {"name": "slurm"}, "ssh": {"enabled": false, "sssdConfRef": sssd}});
        assert_eq!(found(spec), none);
        let update =
            |update: serde_json::Value| found(json!({"controllerRef": {"name": "slurm"}, "updateStrategy": update}));
        assert_eq!(update(json!({"scheduledUpdate": {"duration": "1m"}})), none);
        assert_eq!(
            update(json!({"scheduledUpdate": {"duration": "59s"}})).0,
            "spec.updateStrategy.scheduledUpdate.duration"
        );
        for max in [json!(0), json!("0%"), json!("00%")] {
            let warned = update(json!({"rollingUpdate": {"maxUnavailable": max}}));
            assert_eq!(warned, (String::new(), "spec.updateStrategy.rollingUpdate.maxUnavailable".to_owned()), "{max}");
        }
        assert_eq!(update(json!({"rollingUpdate": {"maxUnavailable": 1}})), none);
        assert_eq!(update(json!({"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 0}})), none);
    }

    #[test]
    fn keys_that_slurm_does_not_know_are_reported() {
        let found = |image: &str, extra: &str, partition: &str| -> Vec<String> {
            let set: NodeSet = serde_json::from_value(json!({
                "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"name": "gpu"},
                "spec": {
                    "controllerRef": {"name": "slurm"}, "slurmd": {"image": image}, "extraConf": extra,
                    "partition": {"enabled": true, "config": partition},
                },
            }))
            .unwrap();
            validate(&set).iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            found("slurmd:24.11", "Weigth=1", "MaxTiem=1"),
            [
                "spec.extraConf: Weigth is not known to Slurm 24.11; did you mean Weight?",
                "spec.partition.config: MaxTiem is not known to Slurm 24.11; did you mean MaxTime?",
            ]
        );
        assert_eq!(found("slurmd:25.05", "Topology=t:s", "Topology=t"), [""; 0]);
        assert_eq!(found("slurmd:latest", "Weigth=1", "MaxTiem=1"), [""; 0], "the version is not known");
    }
}
