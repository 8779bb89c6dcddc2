//! The programs of the local cluster, built once from pinned sources under `dev/`.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    cache::{self, Inputs},
    host, paths,
    shell::{Cmd, with_retries},
};

/// A Go module under `dev/` and the programs it builds: (name, package).
struct Module {
    name: &'static str,
    programs: &'static [(&'static str, &'static str)],
    /// Variables that hold the Kubernetes version it should say it is of, or is made for: (variable, value).
    versions: &'static [(&'static str, &'static str)],
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
    versions: &[
        ("k8s.io/component-base/version.gitVersion", "v1.34.4"),
        ("k8s.io/component-base/version.gitMajor", "1"),
        ("k8s.io/component-base/version.gitMinor", "34"),
    ],
};
const COREDNS: Module = Module { name: "coredns", programs: &[("coredns", ".")], versions: &[] };
const KWOK: Module = Module { name: "kwok", programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")], versions: &[] };
const HELM: Module = Module {
    name: "helm",
    programs: &[("helm", "helm.sh/helm/v3/cmd/helm")],
    // What `helm template` takes a cluster for when it asks none.
    versions: &[
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor", "1"),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "34"),
    ],
};

impl Module {
    fn dir(&self) -> Result<PathBuf> {
        Ok(paths::checkout()?.join("dev").join(self.name))
    }

    fn ldflags(&self) -> String {
        self.versions.iter().fold("-s -w".to_owned(), |mut flags, (variable, value)| {
            let _ = write!(flags, " -X {variable}={value}");
            flags
        })
    }

    /// The folder with the module's programs.
    fn build(&self) -> Result<PathBuf> {
        let dir = self.dir()?;
        let hash = Inputs::default().text(&self.ldflags()).text(&format!("{:?}", self.programs)).path(&dir)?.hash();
        cache::get(self.name, &hash, |out| {
            host::require_go()?;
            paths::check_disk(10)?;
            fs::create_dir_all(out)?;
            let log = paths::logs().join(format!("build-{}.log", self.name));
            for (i, (program, package)) in self.programs.iter().enumerate() {
                let what = match self.programs.len() {
                    1 => format!("building {program}"),
                    all => format!("building {program} ({} of {all} of {})", i + 1, self.name),
                };
                with_retries(&what, || {
                    Cmd::new("go")
                        .args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", &self.ldflags()])
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
    let source = paths::checkout()?.join("dev/pause/pause.c");
    let hash = Inputs::default().path(&source)?.hash();
    cache::get("pause", &hash, |out| {
        fs::create_dir_all(out)?;
        compile(&source, &out.join("pause"))
    })
}

fn compile(source: &Path, program: &Path) -> Result<()> {
    Cmd::new("cc").args(["-static", "-Os", "-s", "-o"]).arg(program).arg(source).text().map(drop)
}
