//! A small real Slurm cluster without the operator: slurmctld, two slurmd that register themselves and slurmrestd, in the
//! version under test. For tests of clients of Slurm.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use kube::{
    Resource,
    api::{DeleteParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use slurm::{
    conf::{ConfBuilder, ConfError, Extra, NodeConf, Record, shell_word},
    token::{self, Claims, Key, Token},
};
use testkit::wait_for;

use crate::{SOON, Scene, slurm_image};

/// The Slurm nodes.
pub const WORKERS: [&str; 2] = ["w0", "w1"];

/// The partition with all nodes.
pub const PARTITION: &str = "all";

/// The Slurm user with all permissions.
pub const ADMIN: &str = "slurm";

/// The cluster; it is deleted with the scene's namespace.
pub struct SlurmCluster<'a> {
    scene: &'a Scene,
    url: String,
    jwt_key: Vec<u8>,
}

impl<'a> SlurmCluster<'a> {
    /// Starts everything and waits until both nodes are idle.
    pub async fn start(scene: &'a Scene) -> Result<Self> {
        let namespace = scene.namespace.name();
        // Long enough for HS256, and different in each namespace.
        let key = |what: &str| format!("{what} key of {namespace}, no secret at all ").repeat(2);
        let (slurm_key, jwt_key) = (key("slurm"), key("jwt"));
        let keys = json!({
            "metadata": {"name": "keys"},
            "stringData": {"slurm.key": slurm_key, "jwt.key": jwt_key},
        });
        create::<Secret>(scene, keys).await?;
        let config = json!({
            "metadata": {"name": "config"},
            "data": {"slurm.conf": slurm_conf(namespace)?, "cgroup.conf": cgroup_conf()?},
        });
        create::<ConfigMap>(scene, config).await?;
        // Jobs and nodes must survive a restart of slurmctld.
        let claim = json!({
            "metadata": {"name": "statesave"},
            "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "100Mi"}}},
        });
        create::<PersistentVolumeClaim>(scene, claim).await?;
        // A stable address for slurmctld: the daemons resolve it only once.
        create::<Service>(scene, service("slurmctld", &json!({"app": "slurmctld"}), 6817, false)).await?;
        create::<Service>(scene, service("slurmd", &json!({"slurmd": "yes"}), 6818, true)).await?;

        let mut cluster = Self { scene, url: String::new(), jwt_key: jwt_key.into_bytes() };
        cluster.start_slurmctld().await?;
        for (worker, node) in WORKERS.into_iter().zip(["node1", "node2"]) {
            cluster.create_worker(worker, node).await?;
        }
        scene.pod("slurmrestd", slurmrestd()?).await?;
        for pod in WORKERS.into_iter().chain(["slurmrestd"]) {
            scene.ready(pod).await?;
        }
        let pod = scene.pods().get("slurmrestd").await?;
        let address = pod.status.and_then(|status| status.pod_ip).context("slurmrestd has no address")?;
        cluster.url = format!("http://{address}:6820");
        cluster.nodes_idle().await?;
        Ok(cluster)
    }

    /// The URL of slurmrestd. Pod addresses are reachable from the host.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The key that slurmctld verifies tokens with.
    pub fn jwt_key(&self) -> &[u8] {
        &self.jwt_key
    }

    /// A token for a Slurm user, valid for 15 minutes.
    pub fn token(&self, user: &str) -> Result<Token> {
        let claims = Claims::new("e2e", user, Timestamp::now(), SignedDuration::from_mins(15));
        Ok(token::mint(&Key::new(&self.jwt_key)?, &claims))
    }

    /// Runs a command in the slurmctld pod, and returns its output.
    pub async fn run(&self, script: &str) -> Result<String> {
        self.scene.exec("slurmctld", script).await
    }

    /// Waits until both nodes are idle.
    pub async fn nodes_idle(&self) -> Result<()> {
        wait_for("both nodes to be idle", SOON, async || {
            let nodes = self.run("sinfo --noheader --Node --format '%N %T'").await?;
            let idle = WORKERS.iter().all(|worker| nodes.lines().any(|line| line == format!("{worker} idle")));
            ensure!(idle, "{nodes}");
            Ok(())
        })
        .await
    }

    /// Deletes slurmctld; slurmd and slurmrestd keep running.
    pub async fn stop_slurmctld(&self) -> Result<()> {
        let pods = self.scene.pods();
        pods.delete("slurmctld", &DeleteParams::default()).await?;
        wait_for("slurmctld to be gone", SOON, async || {
            ensure!(pods.get_opt("slurmctld").await?.is_none(), "its pod still exists");
            Ok(())
        })
        .await
    }

    /// Runs scontrol in the slurmctld pod.
    pub async fn scontrol(&self, command: String) -> Result<()> {
        self.scene.exec("slurmctld", &format!("scontrol {command}")).await.map(drop)
    }

    /// Starts slurmctld with the saved state of the previous one.
    pub async fn start_slurmctld(&self) -> Result<()> {
        self.scene.pod("slurmctld", slurmctld()?).await?;
        self.scene.ready("slurmctld").await?;
        Ok(())
    }

    /// Stops slurmctld and starts it again.
    pub async fn restart_slurmctld(&self) -> Result<()> {
        self.stop_slurmctld().await?;
        self.start_slurmctld().await?;
        self.nodes_idle().await
    }

    async fn create_worker(&self, name: &str, node: &str) -> Result<()> {
        let namespace = self.scene.namespace.name();
        let mut conf = NodeConf::default();
        conf.feature("e2e")?;
        let spec = json!({
            "nodeSelector": {"kubernetes.io/hostname": node},
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "hostname": name,
            "subdomain": "slurmd",
            "dnsConfig": {"searches": [format!("slurmd.{namespace}.svc.cluster.local")]},
            "containers": [{
                "name": "slurmd", "image": slurm_image("slurmd")?, "imagePullPolicy": "Never",
                "args": ["-Z", "--conf-server", format!("slurmctld.{namespace}:6817"),
                         "--conf", shell_word(&conf.to_string())],
                "readinessProbe": {"tcpSocket": {"port": 6818}, "periodSeconds": 1},
                "securityContext": {"privileged": true},
                "volumeMounts": [{"name": "slurm-etc", "mountPath": "/etc/slurm", "readOnly": true}],
            }],
            "volumes": [projected(0o600, &[json!({"secret": {"name": "keys", "items": [item("slurm.key")]}})])],
        });
        let labels = json!({"app": name, "slurmd": "yes"});
        let pod = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}))?;
        self.scene.pods().create(&PostParams::default(), &pod).await.with_context(|| format!("the pod {name}"))?;
        Ok(())
    }
}

async fn create<K>(scene: &Scene, object: Value) -> Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Serialize
        + std::fmt::Debug,
{
    let created = scene.namespace.api::<K>().create(&PostParams::default(), &serde_json::from_value(object)?).await;
    created.with_context(|| format!("cannot create a {}", K::kind(&())))?;
    Ok(())
}

/// A Service that also has the addresses of pods that are not ready: daemons need each other to become ready.
fn service(name: &str, selector: &Value, port: u16, headless: bool) -> Value {
    let mut spec = json!({"selector": selector, "ports": [{"port": port}], "publishNotReadyAddresses": true});
    if headless {
        spec["clusterIP"] = json!("None");
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn item(key: &str) -> Value {
    json!({"key": key, "path": key})
}

/// The volume of /etc/slurm. auth/slurm rejects a key that is readable by others.
fn projected(mode: i32, sources: &[Value]) -> Value {
    json!({"name": "slurm-etc", "projected": {"defaultMode": mode, "sources": sources}})
}

fn slurmctld() -> Result<Value> {
    Ok(json!({
        // Not on node3, which other tests break.
        "nodeSelector": {"kubernetes.io/hostname": "node1"},
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 5,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 401, "runAsGroup": 401, "fsGroup": 401},
        "containers": [{
            "name": "slurmctld", "image": slurm_image("slurmctld")?, "imagePullPolicy": "Never",
            "readinessProbe": {"tcpSocket": {"port": 6817}, "periodSeconds": 1},
            "volumeMounts": [
                {"name": "slurm-etc", "mountPath": "/etc/slurm", "readOnly": true},
                {"name": "run", "mountPath": "/run"},
                {"name": "statesave", "mountPath": "/var/spool/slurmctld"},
            ],
        }],
        "volumes": [
            projected(0o610, &[
                json!({"configMap": {"name": "config"}}),
                json!({"secret": {"name": "keys"}}),
            ]),
            {"name": "run", "emptyDir": {"medium": "Memory"}},
            {"name": "statesave", "persistentVolumeClaim": {"claimName": "statesave"}},
        ],
    }))
}

fn slurmrestd() -> Result<Value> {
    Ok(json!({
        "nodeSelector": {"kubernetes.io/hostname": "node1"},
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 1,
        // slurmrestd refuses to run as root or as SlurmUser.
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65534, "runAsGroup": 65534, "fsGroup": 65534},
        "containers": [{
            "name": "slurmrestd", "image": slurm_image("slurmrestd")?, "imagePullPolicy": "Never",
            // Without accounting, the slurmdbd plugin makes 24.11 exit.
            "args": ["-s", "openapi/slurmctld", "0.0.0.0:6820"],
            "env": [
                {"name": "SLURM_JWT", "value": "daemon"},
                {"name": "SLURMRESTD_SECURITY", "value": "disable_unshare_files,disable_unshare_sysv"},
            ],
            "readinessProbe": {"tcpSocket": {"port": 6820}, "periodSeconds": 1},
            "volumeMounts": [{"name": "slurm-etc", "mountPath": "/etc/slurm", "readOnly": true}],
        }],
        "volumes": [projected(0o600, &[
            json!({"configMap": {"name": "config", "items": [item("slurm.conf")]}}),
            json!({"secret": {"name": "keys", "items": [item("slurm.key")]}}),
        ])],
    }))
}

fn slurm_conf(namespace: &str) -> Result<String, ConfError> {
    let mut conf = ConfBuilder::new();
    conf.section("GENERAL")?
        .name("ClusterName", "e2e")?
        .name("SlurmUser", ADMIN)?
        .word("SlurmctldHost", &format!("slurmctld(slurmctld.{namespace})"))?
        .number("SlurmctldPort", 6817_u16)?
        .word("StateSaveLocation", "/var/spool/slurmctld")?
        .name("SlurmdUser", "root")?
        .number("SlurmdPort", 6818_u16)?
        .word("SlurmdSpoolDir", "/var/spool/slurmd")?
        .number("MaxNodeCount", 64_u16)?
        .section("PLUGINS & PARAMETERS")?
        .word("AuthType", "auth/slurm")?
        .word("CredType", "cred/slurm")?
        .word("AuthAltTypes", "auth/jwt")?
        .list("AuthAltParameters", ["jwt_key=/etc/slurm/jwt.key"])?
        .list("AuthInfo", ["use_client_ids"])?
        .list("SlurmctldParameters", ["enable_configless"])?
        .word("AccountingStorageType", "accounting_storage/none")?
        .word("ProctrackType", "proctrack/cgroup")?
        .list("TaskPlugin", ["task/cgroup", "task/affinity"])?
        .section("PARTITIONS")?;
    let partition = Record::new("PartitionName", PARTITION)?.name("Nodes", "ALL")?;
    conf.record(partition.name("Default", "YES")?.name("State", "UP")?.name("MaxTime", "UNLIMITED")?);
    conf.render(&Extra::default())
}

fn cgroup_conf() -> Result<String, ConfError> {
    let mut conf = ConfBuilder::new();
    // The host of the local cluster may have cgroups v1, v2 or both.
    conf.name("CgroupPlugin", "autodetect")?.name("IgnoreSystemd", "yes")?;
    Ok(conf.to_string())
}
