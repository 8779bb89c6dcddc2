//! Checks, after e2e, that the operator used what it may read and write, and asked for nothing that it may not.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// The user of the operator.
const OPERATOR: &str = "system:serviceaccount:slurm-operator:slurm-operator";

/// Permissions that e2e does not use, or not in every run, and why the operator has them.
const UNUSED: &[(&str, &str, &str)] = &[
    (
        "*/finalizers",
        "update",
        "an API server with OwnerReferencesPermissionEnforcement asks for it when a child is created",
    ),
    ("configmaps", "delete", "a copy of a ConfigMap that configFileRefs no longer names"),
    ("services", "delete", "a Controller that becomes external, or the last NodeSet of a cluster"),
    ("statefulsets", "delete", "a Controller or Accounting that becomes external, or whose serviceName must change"),
    ("deployments", "delete", "a LoginSet or RestApi whose selector must change"),
    ("deployments", "patch", "every change of a LoginSet or RestApi"),
    ("secrets", "delete", "a Token whose Secret has another name, or is immutable"),
    ("secrets", "patch", "tokens and passwords that change"),
    ("poddisruptionbudgets", "delete", "the last NodeSet of a cluster"),
    ("persistentvolumeclaims", "patch", "claims that grow, and owners of claims"),
    ("controllerrevisions", "delete", "revisionHistoryLimit"),
    ("controllerrevisions", "patch", "a revision that is used again"),
    ("servicemonitors", "create", "only with the Prometheus operator"),
    ("servicemonitors", "delete", "only with the Prometheus operator"),
    ("servicemonitors", "patch", "only with the Prometheus operator"),
    ("pods/exec", "create", "workers that slurmctld has forgotten; some clients send it as get"),
    ("nodesets", "patch", "the finalizer of drain.onDelete"),
    ("events", "patch", "an event that happens again"),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: Status,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    name: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    code: u16,
    message: String,
}

/// A group, a resource, and a verb.
pub type Permission = (String, String, String);

/// Reads the rules of the chart and the audit log, with the file that was rotated away.
pub fn check(checkout: &Path, log: &Path) -> Result<()> {
    let mut granted = BTreeSet::new();
    for file in ["operator_rbac_rules.yaml", "operator_rbac_cluster_rules.yaml"] {
        let path = checkout.join("charts/slurm-operator/files").join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let rules: Vec<Value> =
            serde_saphyr::from_str(&text).with_context(|| format!("{} is not a list of rules", path.display()))?;
        granted.extend(rules.iter().flat_map(permissions));
    }
    let mut used = BTreeSet::new();
    for path in logs(log)? {
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        used.extend(requests(&text)?);
    }
    ensure!(!used.is_empty(), "the audit log has no request of {OPERATOR}");
    let unused = unused(&granted, &used);
    if !unused.is_empty() {
        bail!(
            "the operator may do what no test needs; remove it from NEEDS, or add it to UNUSED with a reason: {unused:?}"
        );
    }
    Ok(())
}

/// The log, and those that were rotated away.
fn logs(log: &Path) -> Result<Vec<PathBuf>> {
    let folder = log.parent().context("the audit log is not in a folder")?;
    let stem = log.file_stem().context("the audit log has no name")?.to_string_lossy().into_owned();
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let is_log = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&stem));
    Ok(paths.into_iter().filter(is_log).collect())
}

/// The permissions of a rule.
pub fn permissions(rule: &Value) -> Vec<Permission> {
    let texts = |key: &str| -> Vec<String> {
        let list = rule.get(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (groups, resources, verbs) = (texts("apiGroups"), texts("resources"), texts("verbs"));
    let pairs = groups.iter().flat_map(|group| resources.iter().map(move |resource| (group, resource)));
    pairs
        .flat_map(|(group, resource)| verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())))
        .collect()
}

/// What the operator has done. Fails if it was not allowed to do something.
fn requests(log: &str) -> Result<BTreeSet<Permission>> {
    let complete = log.rsplit_once('\n').map_or("", |(complete, _)| complete);
    let mut used = BTreeSet::new();
    for line in complete.lines().filter(|line| line.contains(OPERATOR)) {
        let Request { verb, user, object_ref, response_status } =
            serde_json::from_str(line).context("cannot read a line of the audit log")?;
        if user.username != OPERATOR {
            continue;
        }
        let slash = if object_ref.subresource.is_empty() { "" } else { "/" };
        let resource = [object_ref.resource.as_str(), slash, &object_ref.subresource].concat();
        // Other refusals, such as those of a namespace that is being deleted, are 403, too.
        if response_status.code == 403 && response_status.message.contains(" cannot ") {
            bail!("the operator may not {verb} {resource} ({}/{})", object_ref.namespace, object_ref.name);
        }
        // An apply that creates an object needs both.
        if verb == "patch" && response_status.code == 201 {
            used.insert((object_ref.api_group.clone(), resource.clone(), "create".to_owned()));
        }
        used.insert((object_ref.api_group, resource, verb));
    }
    Ok(used)
}

/// What is granted, was not used, and has no reason.
fn unused(granted: &BTreeSet<Permission>, used: &BTreeSet<Permission>) -> Vec<Permission> {
    let has_reason = |resource: &str, verb: &str| {
        let is_it =
            |known: &str| known == resource || known.strip_prefix('*').is_some_and(|end| resource.ends_with(end));
        UNUSED.iter().any(|(known, with, _)| is_it(known) && *with == verb)
    };
    let is_needless = |permission: &&Permission| {
        let (_, resource, verb) = permission;
        !used.contains(*permission) && !has_reason(resource, verb)
    };
    granted.iter().filter(is_needless).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verb: &str, resource: &str, code: u16, message: &str) -> String {
        let line = serde_json::json!({
            "stage": "ResponseComplete", "verb": verb, "user": {"username": OPERATOR},
            "objectRef": {"apiGroup": "apps", "resource": resource, "name": "n", "namespace": "ns"},
            "responseStatus": {"code": code, "message": message},
        });
        format!("{line}\n")
    }

    #[test]
    fn what_nobody_uses_must_have_a_reason() {
        let rule = serde_json::json!({
            "apiGroups": ["apps"], "resources": ["statefulsets", "daemonsets", "x/finalizers"],
            "verbs": ["get", "create", "delete", "update"],
        });
        let granted: BTreeSet<_> = permissions(&rule).into_iter().collect();
        let log = ["get", "update"].map(|verb| line(verb, "statefulsets", 200, "")).concat();
        let used = requests(&(log + &line("patch", "statefulsets", 201, ""))).unwrap();
        let left: Vec<_> =
            unused(&granted, &used).into_iter().map(|(_, resource, verb)| format!("{verb} {resource}")).collect();
        let expected = [
            "create daemonsets",
            "delete daemonsets",
            "get daemonsets",
            "update daemonsets",
            "create x/finalizers",
            "delete x/finalizers",
            "get x/finalizers",
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn a_request_that_is_not_allowed_is_found() {
        let denied = line("delete", "daemonsets", 403, "User \"x\" cannot delete resource");
        assert!(requests(&denied).unwrap_err().to_string().contains("delete daemonsets"));
        let terminating = line("create", "daemonsets", 403, "because it is being terminated");
        assert_eq!(requests(&terminating).unwrap().len(), 1);
        let of_others = denied.replace("slurm-operator:slurm-operator", "slurm-operator:slurm-operator-webhook");
        assert!(requests(&of_others).unwrap().is_empty());
    }
}
