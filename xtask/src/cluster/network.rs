//! The addresses of the cluster, and the one link between it and the host.

use std::{net::IpAddr, path::Path, time::Duration};

use anyhow::{Context, Result, bail};

use super::sandbox::Sandbox;
use crate::shell::{Cmd, wait_until};

/// The link on the host's side; the other end is in the cluster's network namespace.
const LINK: &str = "slurm-dev";
const HOST: &str = "10.200.0.254";
pub const API_SERVER: &str = "10.200.0.1";
const NODES: &str = "10.200.0.0/24";
pub const SERVICES: &str = "10.96.0.0/16";
pub const FIRST_SERVICE: &str = "10.96.0.1";
pub const DNS: &str = "10.96.0.10";
pub const PODS: &str = "10.244.0.0/16";

/// Where everybody, on the host or in a pod, finds the API server.
pub fn server() -> String {
    format!("https://{API_SERVER}:6443")
}

pub fn node_address(number: u8) -> String {
    format!("10.200.0.{}", 10 + number)
}

pub fn pods_of(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

pub fn parse(address: &str) -> Result<IpAddr> {
    address.parse().with_context(|| format!("not an address: {address}"))
}

/// Makes the link. Nothing else joins the cluster with the world: the host reaches nodes, pods and services, and they reach
/// nothing but each other and this one address of the host.
pub fn connect(sandbox: Sandbox) -> Result<()> {
    for range in [NODES, PODS, SERVICES] {
        let within = Cmd::new("ip").args(["route", "show", "to", "root", range]).text()?;
        let around = Cmd::new("ip").args(["route", "show", "to", "match", range]).text()?;
        if let Some(route) = within.lines().chain(around.lines()).find(|route| !route.starts_with("default")) {
            bail!(
                "the local cluster needs the addresses {range}, and this machine uses some of them (`{}`)",
                route.trim()
            );
        }
    }
    let inside = "host";
    Cmd::new("ip")
        .args(["link", "add", LINK, "type", "veth", "peer", "name", inside, "netns"])
        .arg(sandbox.pid())
        .text()
        .context("cannot link the cluster with the host")?;
    Cmd::new("ip").args(["address", "add", HOST, "peer", API_SERVER, "dev", LINK]).text()?;
    Cmd::new("ip").args(["link", "set", LINK, "up"]).text()?;
    for range in [NODES, PODS, SERVICES] {
        Cmd::new("ip").args(["route", "add", range, "via", API_SERVER]).text()?;
    }
    let ip = |args: &[&str]| sandbox.enter("ip").args(args).text();
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", API_SERVER, "peer", HOST, "dev", inside])?;
    ip(&["link", "set", inside, "up"])?;
    // For pods on the network of their node: without a route to services their packets never reach kube-proxy's rules.
    ip(&["route", "add", SERVICES, "dev", inside, "src", API_SERVER])?;
    sandbox.enter("sysctl").args(["-qw", "net.ipv4.ip_forward=1"]).text()?;
    // Without it a reply between two pods of one node goes past the rules that would rewrite it.
    let _ = Cmd::new("modprobe").arg("br_netfilter").ok();
    let _ = sandbox.enter("sysctl").args(["-qw", "net.bridge.bridge-nf-call-iptables=1"]).ok();
    Ok(())
}

pub fn add_node(sandbox: Sandbox, number: u8) -> Result<()> {
    let address = format!("{}/32", node_address(number));
    sandbox.enter("ip").args(["address", "replace", &address, "dev", "lo"]).text().map(drop)
}

/// The kernel takes the link away with the namespace, a moment after its last process.
pub fn wait_gone() -> Result<()> {
    let link = Path::new("/sys/class/net").join(LINK);
    let gone = wait_until("the end of the cluster's network", Duration::from_secs(5), || Ok(!link.exists()));
    if gone.is_err() {
        Cmd::new("ip").args(["link", "delete", LINK]).text()?;
    }
    Ok(())
}
