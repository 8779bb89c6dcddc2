//! Upgrades of releases of the Go operator's charts to ours, on a real API server: Helm deletes what a release no longer contains, and
//! with a CRD go all its objects.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{install::kubectl, paths, shell::Cmd, tools};

/// The namespace of both releases.
const NAMESPACE: &str = "from-go";

const IMAGE: &str = "operator.image.repository=registry.example.com/slurm-operator";

pub fn check(checkout: &Path, kubeconfig: &Path) -> Result<()> {
    let cluster = Cluster { checkout, kubeconfig, theirs: paths::logs().join("charts-of-the-go-operator") };
    cluster.kubectl(&["create", "namespace", NAMESPACE])?;
    cluster.operator().context("slurm-operator")?;
    cluster.slurm().context("slurm")?;
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    fs::remove_dir_all(&cluster.theirs).context("cannot remove the charts")
}

struct Cluster<'a> {
    checkout: &'a Path,
    kubeconfig: &'a Path,
    /// Where their charts are written.
    theirs: PathBuf,
}

impl Cluster<'_> {
    /// With CRDs as a subchart, which are templates there that nothing keeps.
    fn operator(&self) -> Result<()> {
        let folder = self.checkout.join("charts/slurm-operator-crds/templates");
        self.kubectl(&["delete", "--ignore-not-found", "--filename", &folder.display().to_string()])?;
        let mut crds = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let mut crd: Value = serde_saphyr::from_str(&fs::read_to_string(entry?.path())?)?;
            if let Some(metadata) = crd.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("annotations");
            }
            crds.push(crd);
        }
        self.install("slurm-operator", &crds)?;
        let crds = folder.display().to_string();
        self.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "--filename", &crds])?;
        let token = object(
            "slinky.slurm.net/v1beta1",
            "Token",
            "alps",
            &json!({"spec": {
                "username": "slurm", "jwtKeyRef": {"name": "slurm-auth-jwt", "key": "jwt.key"},
            }}),
        );
        self.apply(&token)?;
        let uid = || {
            self.kubectl(&["get", "token", "alps", "--namespace", NAMESPACE, "--output", "jsonpath={.metadata.uid}"])
        };
        let before = uid()?;

        let refusal = self.upgrade("slurm-operator", &[IMAGE]).err().context("Helm would have deleted the CRDs")?;
        ensure!(refusal.to_string().contains("helm.sh/resource-policy=keep"), "{refusal}");
        // With their values, with those of a release of slurm-operator-crds, and without the release.
        self.upgrade("slurm-operator", &[IMAGE, "crds.enabled=true"])?;
        self.upgrade("slurm-operator", &[IMAGE, "crds.enabled=false"])?;
        self.helm(&["uninstall", "slurm-operator"])?;
        ensure!(uid()? == before, "the Token was deleted");
        Ok(())
    }

    /// The keys are Secrets of their release, and not of ours.
    fn slurm(&self) -> Result<()> {
        let secret = |name: &str, key: &str| {
            object("v1", "Secret", name, &json!({"immutable": true, "stringData": {key: "k".repeat(64)}}))
        };
        let key = |name: &str, key: &str| json!({"name": name, "key": key});
        let controller = json!({"spec": {
            "slurmKeyRef": key("slurm-auth-slurm", "slurm.key"),
            "jwtKeyRef": key("slurm-auth-jwt", "jwt.key"),
            "slurmctld": {"image": "ghcr.io/slinkyproject/slurmctld:26.05-ubuntu26.04"},
        }});
        let login =
            json!({"spec": {"controllerRef": {"name": "slurm"}, "sssdConfRef": key("slurm-sssd-conf", "sssd.conf")}});
        let theirs = [
            secret("slurm-auth-slurm", "slurm.key"),
            secret("slurm-auth-jwt", "jwt.key"),
            object("v1", "Secret", "slurm-sssd-conf", &json!({"stringData": {"sssd.conf": "[sssd]"}})),
            object("slinky.slurm.net/v1beta1", "Controller", "slurm", &controller),
            object("slinky.slurm.net/v1beta1", "LoginSet", "slurm-login-people", &login),
        ];
        self.install("slurm", &theirs)?;
        let uids = || {
            let kinds = "controllers.slinky.slurm.net,loginsets.slinky.slurm.net,secrets";
            let names = r"jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.uid}{'\n'}{end}";
            let all = self.kubectl(&["get", kinds, "--namespace", NAMESPACE, "--output", names])?;
            // Without Helm's own records.
            Ok::<_, anyhow::Error>(
                all.lines().filter(|line| !line.contains("sh.helm.release")).map(str::to_owned).collect::<Vec<_>>(),
            )
        };
        let before = uids()?;
        let values = ["loginsets.people.enabled=true", "controller.slurmctld.image.tag=26.05-ubuntu26.04"];

        let refusal = self.upgrade("slurm", &values).err().context("Helm would have deleted the keys")?.to_string();
        let command = "annotate secret slurm-auth-slurm slurm-auth-jwt helm.sh/resource-policy=keep";
        ensure!(refusal.contains(command), "{refusal}");
        for name in ["slurm-auth-slurm", "slurm-auth-jwt"] {
            self.kubectl(&["annotate", "--namespace", NAMESPACE, "secret", name, "helm.sh/resource-policy=keep"])?;
        }
        // The default images are older than what runs, which cannot read the state of a newer slurmctld.
        let refusal =
            self.upgrade("slurm", &["loginsets.people.enabled=true"]).err().context("a downgrade")?.to_string();
        ensure!(refusal.contains("26.05") && refusal.contains("25.11"), "{refusal}");
        self.upgrade("slurm", &values)?;
        ensure!(before.len() == 5 && uids()? == before, "before: {before:?}\nafter: {:?}", uids()?);
        self.upgrade("slurm", &values)?;
        self.helm(&["uninstall", "slurm"])?;
        let keys = self.kubectl(&["get", "secrets", "--namespace", NAMESPACE, "--output", "name"])?;
        ensure!(keys.contains("slurm-auth-slurm") && keys.contains("slurm-auth-jwt"), "left: {keys}");
        Ok(())
    }

    /// Installs a release as their chart of this name would.
    fn install(&self, chart: &str, objects: &[Value]) -> Result<()> {
        let folder = self.theirs.join(chart);
        fs::create_dir_all(folder.join("templates"))?;
        fs::write(folder.join("Chart.yaml"), format!("{{apiVersion: v2, name: {chart}, version: 1.3.0}}"))?;
        let objects: Vec<String> = objects.iter().map(Value::to_string).collect();
        fs::write(folder.join("templates/objects.yaml"), objects.join("\n---\n"))?;
        self.helm(&["install", chart, &folder.display().to_string()]).map(drop)
    }

    /// Upgrades it to our chart.
    fn upgrade(&self, chart: &str, values: &[&str]) -> Result<String> {
        let folder = self.checkout.join("charts").join(chart);
        self.helm(&["upgrade", chart, &folder.display().to_string(), "--set", &values.join(",")])
    }

    fn helm(&self, args: &[&str]) -> Result<String> {
        Cmd::new(tools::helm()?).args(args).args(["--namespace", NAMESPACE]).env("KUBECONFIG", self.kubeconfig).text()
    }

    fn kubectl(&self, args: &[&str]) -> Result<String> {
        kubectl(self.kubeconfig, args)?.text()
    }

    fn apply(&self, object: &Value) -> Result<()> {
        kubectl(self.kubeconfig, &["apply", "--filename", "-"])?.feed(&object.to_string()).map(drop)
    }
}

fn object(version: &str, kind: &str, name: &str, fields: &Value) -> Value {
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}});
    if let (Some(object), Some(fields)) = (object.as_object_mut(), fields.as_object()) {
        object.extend(fields.clone());
    }
    object
}
