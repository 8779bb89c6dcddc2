//! The local cluster of a run, started by `cargo xtask`.

use std::{
    env, fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

/// The operator's namespace, service account and cluster role.
pub const OPERATOR: &str = "slurm-operator";

/// The operator's user in the audit log.
pub const USER: &str = "system:serviceaccount:slurm-operator:slurm-operator";

/// A control plane with fake nodes.
pub struct Cluster {
    /// A client with all rights.
    pub admin: Client,
    /// The operator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// A client with the operator's rights.
    pub operator: Client,
    /// The audit log, with the requests of the operator.
    pub audit_log: PathBuf,
}

impl Cluster {
    /// Replaces the local cluster that runs.
    pub async fn start(nodes: u32, crds: &Path, rules: &[PathBuf]) -> Result<Self> {
        xtask(&["cluster", "down"], None)?;
        let nodes = nodes.to_string();
        xtask(&["cluster", "up", "--control-plane-only", "--kwok", &nodes, "--audit", "operator"], None)?;
        let crds = crds.display().to_string();
        kubectl(&["apply", "--server-side", "--filename", &crds], None)?;
        kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "--filename", &crds], None)?;
        kubectl(&["apply", "--server-side", "--filename", "-"], Some(&account(rules)?.to_string()))?;
        let token = kubectl(&["create", "token", OPERATOR, "--namespace", OPERATOR, "--duration=24h"], None)?;
        let admin = path_of("KUBECONFIG")?;
        let kubeconfig = admin.with_file_name("bench-operator.kubeconfig");
        let config = as_operator(&fs::read_to_string(&admin)?, token.trim())?;
        write_private(&kubeconfig, &config)?;
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        Ok(Self {
            admin: testkit::api_server::client().await?,
            kubeconfig,
            operator: Client::try_from(config)?,
            audit_log: path_of("AUDIT_LOG")?,
        })
    }
}

/// A path from the environment, set by `cargo xtask bench`.
pub fn path_of(variable: &str) -> Result<PathBuf> {
    let path = env::var_os(variable).with_context(|| format!("{variable} is not set: run `cargo xtask bench`"))?;
    Ok(PathBuf::from(path))
}

fn kubectl(args: &[&str], input: Option<&str>) -> Result<String> {
    let all: Vec<&str> = ["cluster", "kubectl"].iter().chain(args).copied().collect();
    xtask(&all, input)
}

/// Runs `cargo xtask`. Returns its output.
fn xtask(args: &[&str], input: Option<&str>) -> Result<String> {
    let mut child = Command::new(path_of("XTASK")?)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start xtask")?;
    if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("`xtask {}` failed", args.join(" "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The operator's service account with the rules of its chart.
fn account(files: &[PathBuf]) -> Result<Value> {
    let read = |file: &PathBuf| -> Result<Vec<Value>> {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("{} is not a list of rules", file.display()))
    };
    let mut rules = files.iter().map(read).collect::<Result<Vec<_>>>()?.concat();
    // The chart has a Role for it.
    rules.push(
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]}),
    );
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": OPERATOR});
    let subject = json!({"kind": "ServiceAccount", "name": OPERATOR, "namespace": OPERATOR});
    let rbac = "rbac.authorization.k8s.io/v1";
    Ok(json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OPERATOR}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": OPERATOR, "namespace": OPERATOR}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": OPERATOR}, "rules": rules},
        {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": OPERATOR},
            "roleRef": role, "subjects": [subject]},
    ]}))
}

/// A kubeconfig for the same cluster with the operator's token.
fn as_operator(kubeconfig: &str, token: &str) -> Result<String> {
    let mut config: Value = serde_saphyr::from_str(kubeconfig).context("cannot parse the kubeconfig of the cluster")?;
    let cluster = config.pointer("/clusters/0/name").cloned().context("the kubeconfig names no cluster")?;
    let context = json!({"cluster": cluster, "user": OPERATOR, "namespace": OPERATOR});
    let fields = config.as_object_mut().context("the kubeconfig of the cluster is not an object")?;
    fields.insert("users".to_owned(), json!([{"name": OPERATOR, "user": {"token": token}}]));
    fields.insert("contexts".to_owned(), json!([{"name": OPERATOR, "context": context}]));
    fields.insert("current-context".to_owned(), json!(OPERATOR));
    Ok(config.to_string())
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    let mut file = fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_gets_its_own_user() {
        let admin = r#"{"apiVersion":"v1","kind":"Config","current-context":"dev",
            "clusters":[{"name":"dev","cluster":{"server":"https://10.0.0.1:6443"}}],
            "users":[{"name":"admin","user":{"client-key-data":"c2VjcmV0"}}],
            "contexts":[{"name":"dev","context":{"cluster":"dev","user":"admin"}}]}"#;
        let config: Value = serde_json::from_str(&as_operator(admin, "token").unwrap()).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://10.0.0.1:6443");
        assert_eq!(config["users"], json!([{"name": OPERATOR, "user": {"token": "token"}}]));
        assert_eq!(config["contexts"][0]["context"]["namespace"], OPERATOR);
    }

    #[test]
    fn the_operator_gets_the_rules_of_its_chart() {
        let files = ["operator_rbac_rules.yaml", "operator_rbac_cluster_rules.yaml"];
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/slurm-operator/files");
        let list = account(&files.map(|file| folder.join(file))).unwrap();
        let rules = list["items"][2]["rules"].to_string();
        assert!(["pods/status", "nodes", "leases"].iter().all(|resource| rules.contains(resource)), "{rules}");
    }
}
