//! The programs of the local cluster, built once from pinned sources under `dev/`.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    cache::{self, Inputs},
    home, host,
    shell::{Cmd, with_retries},
};

pub const KUBERNETES_VERSION: &str = "1.34.4";

/// A Go module under `dev/` and the programs it builds: (name, package).
struct Module {
    name: &'static str,
    programs: &'static [(&'static str, &'static str)],
}

const KUBERNETES: Module = Module {
    name: "kubernetes",
    programs: &[
        ("etcd", "go.etcd.io/etcd/server/v3"),
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
};
const COREDNS: Module = Module { name: "coredns", programs: &[("coredns", ".")] };
const KWOK: Module = Module { name: "kwok", programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")] };
const HELM: Module = Module { name: "helm", programs: &[("helm", "helm.sh/helm/v3/cmd/helm")] };

impl Module {
    fn dir(&self) -> Result<PathBuf> {
        Ok(home::checkout()?.join("dev").join(self.name))
    }

    fn ldflags() -> String {
        let mut flags = "-s -w".to_owned();
        for (key, value) in [
            ("gitVersion", format!("v{KUBERNETES_VERSION}")),
            ("gitMajor", "1".to_owned()),
            ("gitMinor", "34".to_owned()),
        ] {
            for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
                let _ = write!(flags, " -X {package}.{key}={value}");
            }
        }
        flags
    }

    /// The folder with the module's programs.
    fn build(&self) -> Result<PathBuf> {
        let dir = self.dir()?;
        let hash = Inputs::default().text(&Self::ldflags()).text(&format!("{:?}", self.programs)).path(&dir)?.hash();
        cache::get(self.name, &hash, |out| {
            host::require_go()?;
            home::check_disk(10)?;
            fs::create_dir_all(out)?;
            let log = home::logs().join(format!("build-{}.log", self.name));
            for (i, (program, package)) in self.programs.iter().enumerate() {
                let what = match self.programs.len() {
                    1 => format!("building {program}"),
                    all => format!("building {program} ({} of {all} of {})", i + 1, self.name),
                };
                with_retries(&what, || {
                    Cmd::new("go")
                        .args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", &Self::ldflags()])
                        .arg("-o")
                        .arg(out.join(program))
                        .arg(package)
                        .env("CGO_ENABLED", "0")
                        .env("GOTOOLCHAIN", "auto")
                        .env("GOFLAGS", "")
                        .dir(&dir)
                        .run_showing(&what, &log)
                })?;
            }
            Ok(())
        })
        .with_context(|| format!("cannot build {}", self.name))
    }
}

/// Kubernetes' own programs and etcd.
pub struct Kubernetes(PathBuf);

impl Kubernetes {
    pub fn build() -> Result<Self> {
        KUBERNETES.build().map(Self)
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

pub fn kwok() -> Result<PathBuf> {
    Ok(KWOK.build()?.join("kwok"))
}

pub fn helm() -> Result<PathBuf> {
    Ok(HELM.build()?.join("helm"))
}

/// The folder with CoreDNS, to make its image from.
pub fn coredns() -> Result<PathBuf> {
    COREDNS.build()
}

/// The folder with the program that waits and reaps: process 1 of pods and of our own namespaces.
pub fn pause() -> Result<PathBuf> {
    let source = home::checkout()?.join("dev/pause/pause.c");
    let hash = Inputs::default().path(&source)?.hash();
    cache::get("pause", &hash, |out| {
        fs::create_dir_all(out)?;
        compile(&source, &out.join("pause"))
    })
}

fn compile(source: &Path, program: &Path) -> Result<()> {
    Cmd::new("cc").args(["-static", "-Os", "-s", "-o"]).arg(program).arg(source).text().map(drop)
}
