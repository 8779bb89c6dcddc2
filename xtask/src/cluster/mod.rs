//! A real Kubernetes on this machine: one control plane and some nodes, in namespaces of their own.

mod addons;
mod control_plane;
mod network;
mod node;
mod pki;
mod sandbox;
pub mod volumes;

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub use sandbox::Sandbox;

use self::{control_plane::ControlPlane, node::Node, pki::Authority};
use crate::{
    cache, host, image, paths,
    paths::Lock,
    shell::{self, Cmd, Progress},
    tools::{self, Kubernetes},
};

/// What a cluster consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A control plane and this many real nodes.
    Nodes(u8),
    /// A control plane only, with this many nodes simulated by kwok.
    ControlPlane { kwok: u32, audit: Audit },
}

impl Shape {
    fn audit(self) -> Audit {
        match self {
            Self::Nodes(_) => Audit::Writes,
            Self::ControlPlane { audit, .. } => audit,
        }
    }
}

/// What is written to the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Audit {
    /// All requests of the operator, and all writes of others, except those of kubelets, which write all the time
    #[default]
    Writes,
    /// All requests of the operator, reads included, and no others
    Operator,
}

/// The running cluster, as a file keeps it for later commands.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    checkout: PathBuf,
    shape: Shape,
    sandbox: Sandbox,
    nodes: Vec<Node>,
    /// Archives of the images that every node has.
    #[serde(default)]
    images: Vec<PathBuf>,
    /// Whether it has started. After a run that was killed before, the next one starts a new cluster.
    is_started: bool,
}

impl State {
    fn path() -> PathBuf {
        paths::cluster().join("state.json")
    }

    /// The cluster that runs now, if one does.
    fn load() -> Option<Self> {
        serde_json::from_slice::<Self>(&fs::read(Self::path()).ok()?).ok().filter(Self::is_running)
    }

    fn is_running(&self) -> bool {
        self.is_started && self.sandbox.init.is_alive()
    }

    fn running() -> Result<Self> {
        Self::load().context("no cluster is running here: start one with `cargo xtask cluster up`")
    }

    fn save(&self) -> Result<()> {
        let path = Self::path();
        let partial = path.with_extension("partial");
        fs::write(&partial, serde_json::to_string_pretty(self)?)?;
        fs::rename(&partial, &path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Loads images into the nodes, except those that they have already.
    fn load_images(&mut self, archives: &[PathBuf]) -> Result<()> {
        let missing: Vec<_> = archives.iter().filter(|archive| !self.images.contains(archive)).cloned().collect();
        thread::scope(|scope| {
            let powered = self.nodes.iter().filter(|node| node.is_powered());
            let nodes: Vec<_> =
                powered.map(|node| scope.spawn(|| missing.iter().try_for_each(|archive| node.load(archive)))).collect();
            nodes.into_iter().try_for_each(|node| node.join().unwrap_or_else(|_| bail!("loading images ended early")))
        })?;
        if self.nodes.iter().all(Node::is_powered) {
            self.images.extend(missing);
        }
        Ok(())
    }

    fn node(&mut self, number: u8) -> Result<&mut Node> {
        let all = self.nodes.len();
        self.nodes
            .iter_mut()
            .find(|node| node.number == number)
            .with_context(|| format!("there is no node {number}: this cluster has {all}"))
    }
}

/// The kubeconfig of the local cluster.
pub fn kubeconfig() -> PathBuf {
    paths::cluster().join("admin.kubeconfig")
}

/// Output of the cluster's programs. It is kept until the next cluster starts.
fn logs() -> PathBuf {
    paths::logs().join("cluster")
}

/// The audit log of the local cluster: one line of JSON for each request.
pub fn audit_log() -> PathBuf {
    logs().join("audit.log")
}

fn log(program: &str) -> PathBuf {
    logs().join(format!("{program}.log"))
}

/// Builds the programs and images that a cluster of this shape needs, apart from those of Slurm and the operator.
pub fn build(shape: Shape) -> Result<()> {
    Kubernetes::build()?;
    match shape {
        Shape::Nodes(_) => image::build_system().map(drop),
        Shape::ControlPlane { kwok: 0, .. } => Ok(()),
        Shape::ControlPlane { .. } => tools::kwok().map(drop),
    }
}

/// Starts a cluster, unless it runs already.
pub fn up(lock: &Lock, shape: Shape) -> Result<()> {
    host::install_packages()?;
    let checkout = paths::checkout()?;
    if let Some(state) = State::load() {
        if state.checkout != checkout {
            bail!(
                "a cluster of the checkout {} is running: stop it first with `cargo xtask cluster down`, here or there",
                state.checkout.display()
            );
        }
        if state.shape != shape {
            bail!(
                "a cluster of another shape ({:?}) is running: stop it first with `cargo xtask cluster down`",
                state.shape
            );
        }
        wait_ready(&state)?;
        eprintln!("the cluster is up: {}", kubeconfig().display());
        return Ok(());
    }
    down(lock)?;
    let kubernetes = Kubernetes::build()?;
    let images = match shape {
        Shape::Nodes(_) => Some(image::store()?),
        Shape::ControlPlane { .. } => None,
    };
    let kwok = match shape {
        Shape::ControlPlane { kwok: 1.., .. } => Some(tools::kwok()?),
        _ => None,
    };
    paths::check_disk(2)?;
    let start = Instant::now();
    let progress = Progress::new("starting the cluster");
    if let Err(error) = start_all(&checkout, shape, &kubernetes, images.as_ref(), kwok.as_deref()) {
        shell::forget_interrupt();
        down(lock).context("and cleaning up failed too")?;
        return Err(error.context("the cluster did not start; what had started was stopped again"));
    }
    progress.done();
    eprintln!("the cluster is up after {}: {}", shell::human(start.elapsed()), kubeconfig().display());
    Ok(())
}

fn start_all(
    checkout: &Path,
    shape: Shape,
    kubernetes: &Kubernetes,
    images: Option<&image::Store>,
    kwok: Option<&Path>,
) -> Result<()> {
    let dir = paths::cluster();
    fs::create_dir_all(&dir)?;
    cache::remove(&logs())?;
    let sandbox = Sandbox::new(&log("sandbox"))?;
    let images_of_nodes = images.map(|store| store.archives.clone()).unwrap_or_default();
    let mut state = State {
        checkout: checkout.to_owned(),
        shape,
        sandbox,
        nodes: Vec::new(),
        images: images_of_nodes,
        is_started: false,
    };
    network::connect(sandbox)?;
    volumes::prepare(sandbox)?;
    let authority = Authority::new()?;
    let control_plane = ControlPlane { sandbox, kubernetes, dir: &dir, authority: &authority, audit: shape.audit() };

    // Nodes unpack their images while the API server starts.
    let count = if let Shape::Nodes(count) = shape { count } else { 0 };
    state.nodes = thread::scope(|scope| {
        let nodes: Vec<_> = (1..=count)
            .map(|number| {
                let authority = &authority;
                scope.spawn(move || {
                    if let Some(images) = images {
                        Node::install(number, authority, images)?;
                    }
                    Node::start(sandbox, number).with_context(|| format!("node {number} does not start"))
                })
            })
            .collect();
        let control = control_plane.start_api_server().and_then(|()| control_plane.start_controllers(shape));
        let nodes: Result<Vec<Node>> = nodes
            .into_iter()
            .map(|node| node.join().unwrap_or_else(|_| bail!("a node's thread ended early")))
            .collect();
        control.and(nodes)
    })?;
    for node in &mut state.nodes {
        node.start_kubelet(kubernetes)?;
    }
    if count > 0 {
        control_plane.start_proxy()?;
        addons::apply(&control_plane)?;
        state.load_images(image::operator_archive()?.as_slice())?;
    }
    if let (Shape::ControlPlane { kwok: fake, .. }, Some(kwok)) = (shape, kwok) {
        addons::kwok(&control_plane, kwok, fake)?;
    }
    wait_ready(&state)?;
    state.is_started = true;
    state.save()
}

/// Waits until nodes are ready and names resolve.
fn wait_ready(state: &State) -> Result<()> {
    let kubernetes = Kubernetes::build()?;
    let kubectl = |args: &[&str]| {
        Cmd::new(kubernetes.program("kubectl")).arg("--kubeconfig").arg(kubeconfig()).args(args.iter().copied())
    };
    let expected = match state.shape {
        Shape::Nodes(count) => usize::from(count),
        Shape::ControlPlane { kwok, .. } => usize::try_from(kwok)?,
    };
    shell::wait_until("ready nodes", Duration::from_secs(90), || {
        state.nodes.iter().try_for_each(Node::check_kubelet)?;
        let ready = r#"jsonpath={range .items[*].status.conditions[?(@.type=="Ready")]}{.status}{"\n"}{end}"#;
        let nodes = kubectl(&["get", "nodes", "--output", ready]).text().unwrap_or_default();
        Ok(nodes.lines().filter(|line| *line == "True").count() >= expected)
    })?;
    if let Shape::Nodes(1..) = state.shape {
        kubectl(&["rollout", "status", "deployment/coredns", "--namespace", "kube-system", "--timeout", "90s"])
            .text()?;
    }
    Ok(())
}

/// Stops the local cluster of this machine, whichever checkout started it, and removes its data.
pub fn down(_lock: &Lock) -> Result<()> {
    sandbox::kill_all()?;
    network::wait_gone()?;
    node::remove_control_groups()?;
    cache::remove(&paths::cluster())?;
    volumes::forget();
    Ok(())
}

/// Prints what is running, in a few lines.
pub fn status() {
    let Some(state) = State::load() else {
        println!("no cluster is running");
        return;
    };
    println!("checkout    {}", state.checkout.display());
    println!("kubeconfig  {}", kubeconfig().display());
    println!("logs        {}", logs().display());
    for node in &state.nodes {
        let condition = match (node.is_powered(), node.has_kubelet()) {
            (false, _) => "stopped",
            (true, false) => "running without kubelet",
            (true, true) => "running",
        };
        println!("{:<11} {condition}", node.name());
    }
    if let Shape::ControlPlane { kwok, .. } = state.shape {
        println!("nodes       {kwok} simulated by kwok");
    }
}

/// What can be done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NodeAction {
    /// Stop kubelet; pods keep running
    KubeletStop,
    /// Start kubelet again
    KubeletStart,
    /// Kill kubelet, containerd and all containers at once, as in a power failure
    Kill,
    /// Start a killed node again
    Start,
}

pub fn node(_lock: &Lock, action: NodeAction, number: u8) -> Result<()> {
    let mut state = State::running()?;
    let sandbox = state.sandbox;
    let node = state.node(number)?;
    match action {
        NodeAction::KubeletStop => node.stop_kubelet()?,
        NodeAction::Kill => node.kill()?,
        NodeAction::KubeletStart => {
            if !node.is_powered() {
                bail!("node {number} is stopped: `cargo xtask cluster node start {number}` first");
            }
            if !node.has_kubelet() {
                node.start_kubelet(&Kubernetes::build()?)?;
            }
        }
        NodeAction::Start => {
            if !node.is_powered() {
                *node = Node::start(sandbox, number)?;
            }
            if !node.has_kubelet() {
                node.start_kubelet(&Kubernetes::build()?)?;
            }
        }
    }
    state.save()
}

/// Loads image archives into the nodes of the running cluster, if there is one.
pub fn load_images(archives: &[PathBuf]) -> Result<()> {
    let Some(mut state) = State::load() else { return Ok(()) };
    state.load_images(archives)?;
    state.save()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox::Process;

    /// A run that was killed while it started leaves living processes, but no cluster to use.
    #[test]
    fn a_cluster_that_never_came_up_does_not_count_as_running() {
        let me = i32::try_from(std::process::id()).ok().and_then(Process::of).unwrap();
        let mut state = State {
            checkout: PathBuf::from("/checkout"),
            shape: Shape::Nodes(3),
            sandbox: Sandbox { init: me },
            nodes: Vec::new(),
            images: Vec::new(),
            is_started: false,
        };
        assert!(!state.is_running());
        state.is_started = true;
        assert!(state.is_running());
    }
}
