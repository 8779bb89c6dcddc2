//! etcd and the daemons of the control plane.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    Audit, Shape, network, pki,
    pki::Authority,
    sandbox::{Process, Sandbox},
};
use crate::{
    shell::{self, Cmd},
    tools::Kubernetes,
};

/// The operator's account, as its chart names it.
const OPERATOR: &str = "system:serviceaccount:slurm-operator:slurm-operator";

pub struct ControlPlane<'a> {
    pub sandbox: Sandbox,
    pub kubernetes: &'a Kubernetes,
    pub dir: &'a Path,
    pub authority: &'a Authority,
    pub audit: Audit,
}

impl ControlPlane<'_> {
    fn start(&self, name: &str, args: &[String]) -> Result<Process> {
        let log = super::log(name);
        self.sandbox.daemon(&self.kubernetes.program(name), args, &log)
    }

    /// A flag with the path of a file of the cluster.
    fn flag(&self, flag: &str, file: &str) -> String {
        format!("--{flag}={}", self.dir.join(file).display())
    }

    fn kubeconfig(&self, name: &str, user: &str, group: Option<&str>) -> Result<String> {
        let path = self.dir.join(format!("{name}.kubeconfig"));
        self.authority.kubeconfig(&path, &network::server(), user, group)?;
        Ok(path.display().to_string())
    }

    /// Writes a file with these settings; the flag with its path.
    fn settings(&self, flag: &str, file: &str, settings: &Value) -> Result<String> {
        fs::write(self.dir.join(file), settings.to_string())?;
        Ok(self.flag(flag, file))
    }

    /// The audit policy.
    fn audit_policy(&self) -> Result<String> {
        let rules = match self.audit {
            Audit::Writes => json!([
                // The check of its permissions compares its reads, too.
                {"level": "Metadata", "users": [OPERATOR]},
                {"level": "None", "userGroups": ["system:nodes"]},
                {"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]},
            ]),
            Audit::Operator => json!([{"level": "Metadata", "users": [OPERATOR]}]),
        };
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": rules,
        });
        self.settings("audit-policy-file", "audit-policy.json", &policy)
    }

    /// Starts etcd and the API server, and waits until it serves.
    pub fn start_api_server(&self) -> Result<()> {
        let pki = self.dir.join("pki");
        fs::create_dir_all(&pki)?;
        pki::write_private(&pki.join("ca.crt"), &self.authority.certificate)?;
        pki::write_key_pair(&pki, "service-accounts")?;
        self.authority
            .issue(
                "kube-apiserver",
                None,
                &[
                    "localhost",
                    "kubernetes",
                    "kubernetes.default",
                    "kubernetes.default.svc",
                    "kubernetes.default.svc.cluster.local",
                ],
                &[
                    network::parse(network::API_SERVER)?,
                    network::parse(network::FIRST_SERVICE)?,
                    network::parse("127.0.0.1")?,
                ],
            )?
            .write(&pki, "apiserver")?;
        self.authority.issue("kube-apiserver", Some("system:masters"), &[], &[])?.write(&pki, "apiserver-client")?;
        self.kubeconfig("admin", "admin", Some("system:masters"))?;

        let etcd = "http://127.0.0.1:2379";
        let flags = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        let etcd_process = self.start(
            "etcd",
            // The data is removed with the cluster, so it need not be synced to the disk.
            &flags(&[
                "--unsafe-no-fsync",
                &self.flag("data-dir", "etcd"),
                &format!("--listen-client-urls={etcd}"),
                &format!("--advertise-client-urls={etcd}"),
                "--listen-peer-urls=http://127.0.0.1:2380",
                "--quota-backend-bytes=4294967296",
            ]),
        )?;
        let api_process = self.start(
            "kube-apiserver",
            &flags(&[
                &format!("--etcd-servers={etcd}"),
                &format!("--bind-address={}", network::API_SERVER),
                &format!("--advertise-address={}", network::API_SERVER),
                "--secure-port=6443",
                &self.flag("tls-cert-file", "pki/apiserver.crt"),
                &self.flag("tls-private-key-file", "pki/apiserver.key"),
                &self.flag("client-ca-file", "pki/ca.crt"),
                &self.flag("kubelet-certificate-authority", "pki/ca.crt"),
                &self.flag("kubelet-client-certificate", "pki/apiserver-client.crt"),
                &self.flag("kubelet-client-key", "pki/apiserver-client.key"),
                // Names of nodes are not in any DNS.
                "--kubelet-preferred-address-types=InternalIP",
                &self.flag("service-account-key-file", "pki/service-accounts.pub"),
                &self.flag("service-account-signing-key-file", "pki/service-accounts.key"),
                "--service-account-issuer=https://kubernetes.default.svc",
                &format!("--service-cluster-ip-range={}", network::SERVICES),
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                // The default is five minutes: tests that wait for evicted pods need not wait as long.
                "--default-not-ready-toleration-seconds=60",
                "--default-unreachable-toleration-seconds=60",
                "--profiling=false",
                &self.audit_policy()?,
                &format!("--audit-log-path={}", super::audit_log().display()),
                // Requests are counted from this file, so it must not be rotated.
                match self.audit {
                    Audit::Writes => "--audit-log-maxsize=500",
                    Audit::Operator => "--audit-log-maxsize=4000",
                },
                "--audit-log-maxbackup=1",
            ]),
        )?;
        let ready = || {
            for (name, process) in [("etcd", etcd_process), ("kube-apiserver", api_process)] {
                if !process.is_alive() {
                    let log = super::log(name);
                    anyhow::bail!("{name} ended; the log is {}:\n{}", log.display(), shell::tail(&log, 0, shell::LAST));
                }
            }
            Ok(self.kubectl(&["get", "--raw", "/readyz"]).ok())
        };
        shell::wait_until("the API server", Duration::from_mins(1), ready)
    }

    /// Starts what makes objects into pods on nodes.
    pub fn start_controllers(&self, shape: Shape) -> Result<()> {
        let manager = self.kubeconfig("controller-manager", "system:kube-controller-manager", None)?;
        let pace = match shape {
            // Tests of dead nodes need not wait the usual 50 s.
            Shape::Nodes(_) => ["--node-monitor-grace-period=15s", "--node-monitor-period=2s"],
            // Thousands of workers behind one Service: by default all of its endpoints are computed anew for each of them, which
            // takes more than all else together.
            Shape::ControlPlane { .. } => {
                ["--endpointslice-updates-batch-period=1s", "--endpoint-updates-batch-period=1s"]
            }
        };
        self.start(
            "kube-controller-manager",
            &[
                format!("--kubeconfig={manager}"),
                self.flag("service-account-private-key-file", "pki/service-accounts.key"),
                self.flag("root-ca-file", "pki/ca.crt"),
                "--use-service-account-credentials=true".into(),
                "--leader-elect=false".into(),
                "--bind-address=127.0.0.1".into(),
                "--enable-hostpath-provisioner=true".into(),
                "--profiling=false".into(),
            ]
            .into_iter()
            .chain(pace.map(str::to_owned))
            .collect::<Vec<_>>(),
        )?;
        self.start_scheduler(shape)
    }

    fn start_scheduler(&self, shape: Shape) -> Result<()> {
        let kubeconfig = self.kubeconfig("scheduler", "system:kube-scheduler", None)?;
        let plugins = match shape {
            Shape::Nodes(_) => json!([]),
            // By default pods of one Service are spread over the nodes, for which all of them are counted for each: with 10,000 workers
            // that takes more than the operator, kwok and etcd together.
            Shape::ControlPlane { .. } => {
                json!([{"name": "PodTopologySpread", "args": {"defaultingType": "List"}}])
            }
        };
        let config = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "enableProfiling": false,
            // By default it places 50 pods a second, and all that waits for pods waits for that.
            "clientConnection": {"kubeconfig": kubeconfig, "qps": 2000, "burst": 4000},
            "profiles": [{"schedulerName": "default-scheduler", "pluginConfig": plugins}],
        });
        let config = self.settings("config", "scheduler.json", &config)?;
        self.start("kube-scheduler", &[config, "--bind-address=127.0.0.1".into()])?;
        Ok(())
    }

    /// Starts the one proxy that serves all nodes: they share the cluster's network namespace.
    pub fn start_proxy(&self) -> Result<()> {
        let kubeconfig = self.kubeconfig("proxy", "system:kube-proxy", None)?;
        let config = json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": network::PODS,
            "hostnameOverride": "node1",
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "clientConnection": {"kubeconfig": kubeconfig},
            "conntrack": {"maxPerCore": 0},
            "iptables": {"minSyncPeriod": "0s", "syncPeriod": "30s"},
        });
        let config = self.settings("config", "proxy.json", &config)?;
        self.start("kube-proxy", &[config])?;
        Ok(())
    }

    pub fn kubectl(&self, args: &[&str]) -> Cmd {
        Cmd::new(self.kubernetes.program("kubectl"))
            .args(["--kubeconfig"])
            .arg(self.dir.join("admin.kubeconfig"))
            .args(args)
    }
}
