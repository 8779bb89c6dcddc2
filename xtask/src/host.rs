//! What the machine must have, and installing it.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    paths,
    shell::{Cmd, with_retries},
};

/// Debian packages by the program or file that shows they are there.
const PACKAGES: &[(&str, &str)] = &[
    ("/usr/bin/containerd", "containerd"),
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/usr/sbin/iptables", "iptables"),
    ("/usr/sbin/conntrack", "conntrack"),
    ("/usr/bin/ip", "iproute2"),
    ("/usr/bin/unshare", "util-linux"),
    ("/usr/bin/buildah", "buildah"),
    ("/usr/bin/mmdebstrap", "mmdebstrap"),
    ("/usr/bin/cc", "gcc"),
    ("/usr/include/stdio.h", "libc6-dev"),
];

/// An error unless we are root: namespaces, mounts and containers need it.
pub fn require_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the local cluster needs root (namespaces, mounts, containers): run `sudo env PATH=\"$PATH\" HOME=\"$HOME\" cargo xtask …`"
        );
    }
    Ok(())
}

/// Installs the Debian packages that are missing.
pub fn install_packages() -> Result<()> {
    let mut missing: Vec<&str> =
        PACKAGES.iter().filter(|(path, _)| !Path::new(path).exists()).map(|(_, package)| *package).collect();
    // Helm is downloaded with it; it need not be Debian's own.
    if !Cmd::new("python3").args(["-m", "pip", "--version"]).ok() {
        missing.push("python3-pip");
    }
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    if !release.contains("ID=debian") && !release.contains("ID_LIKE=debian") {
        bail!("this machine does not run Debian: install what these packages contain, and run again: {list}");
    }
    require_root().with_context(|| format!("these packages are missing: {list}"))?;
    let log = paths::logs().join("packages.log");
    let apt = || Cmd::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive");
    with_retries("installing packages", || {
        // A package source that does not answer is no error: what counts is whether the packages can be installed.
        let _ = apt().arg("update").log(&log).run();
        apt()
            .args(["install", "--yes", "--no-install-recommends"])
            .args(&missing)
            .run_showing(&format!("installing {list}"), &log)
    })
}

/// An error that says what to do unless there is a Go that can build Kubernetes.
pub fn require_go() -> Result<()> {
    let version = Cmd::new("go")
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .text()
        .context("Kubernetes is built from its Go modules: install Go 1.21 or newer and run again")?;
    let minor = version.trim().strip_prefix("go1.").and_then(|v| v.split('.').next()).and_then(|v| v.parse().ok());
    match minor {
        // From 1.21 on, go fetches the toolchain that a module asks for.
        Some(21u32..) => Ok(()),
        _ => bail!("{} is too old to build Kubernetes: install Go 1.21 or newer and run again", version.trim()),
    }
}
