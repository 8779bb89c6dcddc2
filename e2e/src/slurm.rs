//! A small real Slurm cluster without the operator: slurmctld, two slurmd that register themselves and slurmrestd, in the
//! version under test. For tests of clients of Slurm.

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use kube::{
    Resource,
    api::{DeleteParams, LogParams, PostParams},
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

/// A NodeSet without nodes.
pub const NODE_SET: &str = "gpus";

/// A node whose slurmd has ended; see [`SlurmCluster::add_machine`].
pub const SILENT: &str = "silent";

/// The pod for other slurmd.
const MACHINE: &str = "machine";

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

    /// Adds a machine for another slurmd, and a node that was drained with this reason and whose slurmd has ended.
    pub async fn add_machine(&self, reason: &str) -> Result<()> {
        // tini reaps the processes that exec leaves behind.
        let pod = self.slurmd_pod(MACHINE, "node2", json!({"command": ["tini", "--", "sleep", "infinity"]}))?;
        self.scene.pods().create(&PostParams::default(), &pod).await?;
        self.scene.ready(MACHINE).await?;
        self.start_slurmd(SILENT, "", "Features=e2e").await?;
        // An address that cannot be reached at all: the next slurmd on this machine must not answer for it, and slurmctld would
        // try a closed port for 10 s, in which it asks no other node.
        let update = format!("update nodename={SILENT} nodeaddr=255.255.255.255 state=drain reason={reason}");
        self.scontrol(update).await?;
        self.end_slurmd().await
    }

    /// Starts a slurmd on the additional machine, and ends the one before. Returns when slurmctld has accepted or refused its
    /// registration.
    pub async fn start_slurmd(&self, node: &str, options: &str, conf: &str) -> Result<()> {
        self.end_slurmd().await?;
        let namespace = self.scene.namespace.name();
        let refused = self.refused_registrations(node).await?;
        let command =
            format!("slurmd -D -vv -Z --conf-server slurmctld.{namespace}:6817 -N {node} {options} --conf '{conf}'");
        self.scene.exec(MACHINE, &format!("rm -f /tmp/log; setsid {command} >/tmp/log 2>&1 &")).await?;
        wait_for(&format!("slurmctld to answer the registration of {node}"), SOON, async || {
            let accepted = self.scene.exec(MACHINE, "grep -a -c _handle_node_reg_resp /tmp/log || true").await?;
            let is_answered = accepted.trim() != "0" || self.refused_registrations(node).await? > refused;
            ensure!(is_answered, "{}", self.scene.exec(MACHINE, "tail -n 3 /tmp/log").await?);
            Ok(())
        })
        .await
    }

    /// Ends the slurmd on the additional machine.
    async fn end_slurmd(&self) -> Result<()> {
        let script = "pkill -x slurmd; while pgrep -x slurmd >/dev/null; do sleep 0.1; done";
        self.scene.exec(MACHINE, script).await.map(drop)
    }

    /// How often slurmctld has refused the registration of a node. slurmd does not show it.
    async fn refused_registrations(&self, node: &str) -> Result<usize> {
        let log = self.scene.pods().logs("slurmctld", &LogParams::default()).await?;
        Ok(log.matches(&format!("_slurm_rpc_node_registration node={node}: ")).count())
    }

    /// Ends the slurmd on the additional machine, and lets a worker's own slurmd register again.
    pub async fn stop_slurmd(&self, node: &str) -> Result<()> {
        self.end_slurmd().await?;
        if !WORKERS.contains(&node) {
            return Ok(());
        }
        self.scene.exec(node, "kill -HUP $(cat /run/slurmd.pid)").await?;
        let pod = self.scene.pods().get(node).await?;
        let address = pod.status.and_then(|status| status.pod_ip).with_context(|| format!("{node} has no address"))?;
        wait_for(&format!("{node} to register again"), SOON, async || {
            let found = self.run(&format!("sinfo --noheader --nodes {node} --format %o")).await?;
            ensure!(found.trim() == address, "{found} instead of {address}");
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
        let container = json!({
            "args": ["-Z", "--conf-server", format!("slurmctld.{namespace}:6817"),
                     "--conf", shell_word(&conf.to_string())],
            "readinessProbe": {"tcpSocket": {"port": 6818}, "periodSeconds": 1},
        });
        let pod = self.slurmd_pod(name, node, container)?;
        self.scene.pods().create(&PostParams::default(), &pod).await.with_context(|| format!("the pod {name}"))?;
        Ok(())
    }

    /// A pod in which a slurmd can run, with these fields of its container.
    fn slurmd_pod(&self, name: &str, node: &str, mut container: Value) -> Result<Pod> {
        let namespace = self.scene.namespace.name();
        container["name"] = json!("slurmd");
        container["image"] = json!(slurm_image("slurmd")?);
        container["imagePullPolicy"] = json!("Never");
        container["securityContext"] = json!({"privileged": true});
        container["volumeMounts"] = json!([{"name": "slurm-etc", "mountPath": "/etc/slurm", "readOnly": true}]);
        let spec = json!({
            "nodeSelector": {"kubernetes.io/hostname": node},
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 1,
            "hostname": name,
            "subdomain": "slurmd",
            "dnsConfig": {"searches": [format!("slurmd.{namespace}.svc.cluster.local")]},
            "containers": [container],
            "volumes": [projected(0o600, &[json!({"secret": {"name": "keys", "items": [item("slurm.key")]}})])],
        });
        let labels = json!({"app": name, "slurmd": "yes"});
        Ok(serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}))?)
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
        // Short, to see soon what becomes of a node that does not respond, and of a job that its node does not know.
        .number("SlurmdTimeout", 30_u16)?
        .number("BatchStartTimeout", 1_u16)?
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
    conf.record(Record::new("NodeSet", NODE_SET)?.name("Feature", "gpu")?);
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
