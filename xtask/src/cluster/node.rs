//! One node: containerd and kubelet in namespaces of their own.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{
    network,
    pki::Authority,
    sandbox::{Process, Sandbox},
};
use crate::{
    image::{self, PAUSE, Store},
    paths,
    shell::{self, Cmd},
    tools::Kubernetes,
};

const CONTAINERD: &str = "/usr/bin/containerd";

/// A node, as the state file has it. Its processes exist while it is powered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    pub number: u8,
    pub sandbox: Sandbox,
    pub kubelet: Option<Process>,
}

impl Node {
    pub fn name(&self) -> String {
        name(self.number)
    }

    pub fn is_powered(&self) -> bool {
        self.sandbox.init.is_alive()
    }

    pub fn has_kubelet(&self) -> bool {
        self.kubelet.is_some_and(Process::is_alive)
    }

    fn dir(&self) -> PathBuf {
        dir(self.number)
    }

    /// Writes what the node keeps across restarts: its identity, its configuration, its images.
    pub fn install(number: u8, authority: &Authority, store: &Store) -> Result<()> {
        let dir = dir(number);
        let name = name(number);
        let address = network::node_address(number);
        fs::create_dir_all(dir.join("cni"))?;
        let user = format!("system:node:{name}");
        authority.issue(&user, Some("system:nodes"), &[&name], &[network::parse(&address)?])?.write(&dir, "kubelet")?;
        authority.kubeconfig(&dir.join("kubeconfig"), &network::server(), &user, Some("system:nodes"))?;
        fs::write(dir.join("cni/10-bridge.conflist"), cni_config(number, &dir).to_string())?;
        fs::write(dir.join("containerd.toml"), containerd_config(&dir))?;
        fs::write(dir.join("kubelet.json"), kubelet_config(&dir, &address).to_string())?;
        store.copy_to(&dir.join("containerd"))
    }

    /// Powers the node on: namespaces and containerd.
    pub fn start(cluster: Sandbox, number: u8) -> Result<Self> {
        network::add_node(cluster, number)?;
        let sandbox = cluster.node(&log("sandbox", number))?;
        // Files that programs keep at fixed paths (shim sockets, network namespaces, log links, kubelet's socket for device
        // plugins) belong to the node, and go when it is powered off. If nodes shared them, kubelets that start at the same
        // moment would take each other's socket, and one would end.
        for place in ["/run", "/var/log", "/var/lib/cni", "/var/lib/kubelet"] {
            fs::create_dir_all(place)?;
            sandbox.enter("mount").args(["-t", "tmpfs", "tmpfs", place]).text()?;
        }
        let node = Self { number, sandbox, kubelet: None };
        let config = node.dir().join("containerd.toml");
        let log = log("containerd", number);
        let before = shell::size(&log);
        sandbox.daemon(Path::new(CONTAINERD), [Path::new("--config"), &config], &log)?;
        // The service for kubelet, which ends if that does not answer, starts after the others: it reads all images first.
        shell::wait_until("containerd", Duration::from_mins(1), || {
            Ok(shell::tail(&log, before, usize::MAX).contains("Start streaming server"))
        })?;
        Ok(node)
    }

    pub fn start_kubelet(&mut self, kubernetes: &Kubernetes) -> Result<()> {
        let dir = self.dir();
        let args = [
            format!("--config={}", dir.join("kubelet.json").display()),
            format!("--kubeconfig={}", dir.join("kubeconfig").display()),
            format!("--root-dir={}", dir.join("kubelet").display()),
            format!("--cert-dir={}", dir.join("kubelet-certs").display()),
            format!("--hostname-override={}", self.name()),
            format!("--node-ip={}", network::node_address(self.number)),
        ];
        let kubelet = kubernetes.program("kubelet");
        self.kubelet = Some(self.sandbox.daemon(&kubelet, args, &log("kubelet", self.number))?);
        Ok(())
    }

    /// Fails with kubelet's own words if it has ended.
    pub fn check_kubelet(&self) -> Result<()> {
        if !self.has_kubelet() {
            let log = log("kubelet", self.number);
            bail!("kubelet of {} ended:\n{}", self.name(), shell::tail(&log, 0, shell::LAST));
        }
        Ok(())
    }

    /// Stops kubelet only: containers keep running, as when it crashed.
    pub fn stop_kubelet(&mut self) -> Result<()> {
        match self.kubelet.take() {
            Some(kubelet) => kubelet.end(Duration::from_secs(10)),
            None => Ok(()),
        }
    }

    /// Powers the node off without a shutdown.
    pub fn kill(&mut self) -> Result<()> {
        self.kubelet = None;
        self.sandbox.kill()
    }

    /// Loads an image archive.
    pub fn load(&self, archive: &Path) -> Result<()> {
        image::import(|| self.ctr(), archive)
            .with_context(|| format!("cannot load {} into {}", archive.display(), self.name()))
    }

    fn ctr(&self) -> Cmd {
        Cmd::new("ctr").arg("--address").arg(self.dir().join("containerd.sock")).args(["--namespace", "k8s.io"])
    }
}

fn name(number: u8) -> String {
    format!("node{number}")
}

fn dir(number: u8) -> PathBuf {
    paths::cluster().join(name(number))
}

fn log(program: &str, number: u8) -> PathBuf {
    super::log(&format!("{program}-{number}"))
}

/// The pods of a node are on a bridge of its own; the kernel routes between the bridges.
fn cni_config(number: u8, dir: &Path) -> serde_json::Value {
    serde_json::json!({
        "cniVersion": "1.0.0",
        "name": format!("pods{number}"),
        "plugins": [{
            "type": "bridge",
            "bridge": format!("pods{number}"),
            "isGateway": true,
            "hairpinMode": true,
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": network::pods_of(number)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": dir.join("addresses"),
            },
        }, {"type": "loopback"}],
    })
}

/// `state` is in the node's own /run, so that a node that starts again has no containers, as after a reboot.
pub fn containerd_config(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/containerd"
state = "/run/containerd"

[grpc]
address = "{dir}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
# The machine may lack the right to lower it (CAP_SYS_RESOURCE); then no container would start.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_port = "0"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{dir}/cni"
"#
    )
}

fn kubelet_config(dir: &Path, address: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "healthzBindAddress": address,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": paths::cluster().join("pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": dir.join("kubelet.crt"),
        "tlsPrivateKeyFile": dir.join("kubelet.key"),
        "clusterDNS": [network::DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{}", dir.join("containerd.sock").display()),
        "resolvConf": "/dev/null",
        // Works with any layout of control groups, also the mixed one of some virtual machines.
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": false,
        "enforceNodeAllocatable": [],
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 250,
        "podLogsDir": dir.join("pod-logs"),
        // A node that fails is detected in seconds.
        "nodeLeaseDurationSeconds": 10,
        "nodeStatusUpdateFrequency": "4s",
        // The defaults make a burst of pods wait for the API.
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "serializeImagePulls": false,
        "shutdownGracePeriod": "0s",
    })
}

/// Removes the empty control groups that killed containers leave behind.
pub fn remove_control_groups() -> Result<()> {
    let Ok(controllers) = fs::read_dir("/sys/fs/cgroup") else { return Ok(()) };
    for controller in controllers {
        let group = controller.context("cannot list control groups")?.path().join("k8s.io");
        if group.is_dir() {
            remove_empty(&group);
        }
    }
    remove_empty(Path::new("/sys/fs/cgroup/k8s.io"));
    Ok(())
}

/// A group that still has processes cannot be removed, and stays.
fn remove_empty(group: &Path) {
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    let _ = fs::remove_dir(group);
}
