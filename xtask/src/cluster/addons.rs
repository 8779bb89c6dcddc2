//! Addons of a cluster: DNS, storage, and simulated nodes.

use std::{fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result};

use super::{control_plane::ControlPlane, network};
use crate::image;

pub fn apply(control_plane: &ControlPlane) -> Result<()> {
    let manifest = include_str!("addons.yaml").replace("$COREDNS", image::COREDNS).replace("$DNS", network::DNS);
    control_plane.kubectl(&["apply", "--server-side", "--filename", "-"]).feed(&manifest).map(drop)
}

/// Nodes simulated by kwok: pods on them run and end as if there were a kubelet.
pub fn kwok(control_plane: &ControlPlane, program: &Path, count: u32) -> Result<()> {
    let kubeconfig = control_plane.dir.join("admin.kubeconfig");
    let config = control_plane.dir.join("kwok.yaml");
    fs::write(&config, include_str!("kwok.yaml")).with_context(|| format!("cannot write {}", config.display()))?;
    control_plane.sandbox.daemon(
        program,
        [
            &*format!("--kubeconfig={}", kubeconfig.display()),
            &*format!("--config={}", config.display()),
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--cidr=10.244.0.0/16",
            "--node-lease-duration-seconds=40",
        ],
        &super::log("kwok"),
    )?;
    let mut nodes = String::new();
    for number in 0..count {
        let node = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": format!("kwok-{number}"),
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"type": "kwok", "kubernetes.io/hostname": format!("kwok-{number}"), "kubernetes.io/os": "linux"},
            },
            "status": {
                "allocatable": {"cpu": "64", "memory": "512Gi", "pods": "250"},
                "capacity": {"cpu": "64", "memory": "512Gi", "pods": "250"},
            },
        });
        writeln!(nodes, "---\n{node}")?;
    }
    control_plane.kubectl(&["apply", "--server-side", "--filename", "-"]).feed(&nodes).map(drop)
}
