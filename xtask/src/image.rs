//! Container images: built with buildah from Containerfiles that work anywhere, on a base that mmdebstrap makes from
//! Debian's packages, because this needs no image registry.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    cache::{self, Inputs},
    cluster::Sandbox,
    host, nebius, paths,
    shell::{self, Cmd, Progress, with_retries},
    tools,
};

pub const PAUSE: &str = "localhost/slurm-operator/pause:1";
pub const COREDNS: &str = "localhost/slurm-operator/coredns:1.12.4";

pub const SLURM_DAEMONS: &[&str] = &["slurmctld", "slurmd", "slurmdbd", "slurmrestd", "login"];

/// What users ask for when they want the newest Slurm, whichever it is.
pub const NEWEST: &str = "newest";

/// The name of the file in the cache with the release of Debian's unstable suite.
const RELEASE: &str = "slurm-release";

/// A release of Slurm, such as 24.11, and the Debian suite that carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmRelease {
    pub version: String,
    suite: Suite,
}

impl SlurmRelease {
    /// The release of Debian's stable suite, which does not change.
    pub fn stable() -> Self {
        Self { version: "24.11".to_owned(), suite: Suite::Trixie }
    }

    /// The release that Debian's unstable suite carries. Once found, it stays until the images are built anew.
    pub fn newest() -> Result<Self> {
        let suite = Suite::Sid;
        let file = cache::get(RELEASE, &Self::hash(suite)?, |out| {
            prepare()?;
            Ok(fs::write(out, suite.slurm_version()?)?)
        })?;
        let version = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(Self { version, suite })
    }

    /// All releases that may have images already.
    pub fn known() -> Result<Vec<Self>> {
        let newest = cache::place(RELEASE, &Self::hash(Suite::Sid)?);
        let newest = if newest.exists() { Some(Self::newest()?) } else { None };
        Ok([Self::stable()].into_iter().chain(newest).collect())
    }

    /// The release of this version, or the newest one.
    pub fn named(version: &str) -> Result<Self> {
        let stable = Self::stable();
        if version == stable.version {
            return Ok(stable);
        }
        let newest = Self::newest()?;
        if version != NEWEST && version != newest.version {
            bail!("there is no Slurm {version} here: Debian carries {} and {}", stable.version, newest.version);
        }
        Ok(newest)
    }

    fn hash(suite: Suite) -> Result<String> {
        Ok(Inputs::default().text(&suite.hash()).path(&paths::checkout()?.join("images/slurm"))?.hash())
    }

    /// Builds the images of these daemons; the archives with them.
    pub fn build(&self, daemons: &[&'static str]) -> Result<Vec<PathBuf>> {
        let images = paths::checkout()?.join("images/slurm");
        self.build_images(daemons.iter().map(|daemon| self.image(&images, daemon)))
    }

    pub fn build_images(&self, images: impl Iterator<Item = Image>) -> Result<Vec<PathBuf>> {
        prepare()?;
        let archives: Result<_> = images.map(|image| image.build_patiently()).collect();
        // The suite carries another release by now: the next run must look again.
        if archives.as_ref().is_err_and(|error| format!("{error:#}").contains("this base carries Slurm")) {
            cache::remove(&cache::place(RELEASE, &Self::hash(self.suite)?))?;
        }
        archives
    }

    fn image(&self, dir: &Path, daemon: &'static str) -> Image {
        self.image_called(daemon, dir, daemon)
    }

    /// The image of this name, from a target of the Containerfile in a folder.
    pub fn image_called(&self, name: &str, dir: &Path, target: &'static str) -> Image {
        Image {
            reference: format!("localhost/slurm-operator/{name}:{}", self.version),
            containerfile: dir.join("Containerfile"),
            context: dir.to_owned(),
            target: Some(target),
            debian: Some((self.suite, self.version.clone())),
        }
    }
}

/// `26.05` of a package's version such as `26.05.2-1`.
fn release_of(package: &str) -> Option<String> {
    let mut parts = package.trim().split('.');
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    let (year, month) = (parts.next()?, parts.next()?.split(['-', '~', '+']).next()?);
    (two_digits(year) && two_digits(month)).then(|| format!("{year}.{month}"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    Trixie,
    Sid,
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Trixie => &[],
            // Its index is often older than its own limit.
            Self::Sid => &[r#"--aptopt=Acquire::Check-Valid-Until "false""#],
        }
    }

    fn hash(self) -> String {
        Inputs::default().text(self.name()).text(&self.options().join(" ")).hash()
    }

    fn base(self) -> String {
        format!("localhost/slurm-operator/debian:{}-{}", self.name(), self.hash())
    }

    /// Makes the base image, if buildah does not have it yet.
    fn build_base(self) -> Result<()> {
        if buildah().args(["inspect", "--type", "image", &self.base()]).ok() {
            return Ok(());
        }
        let log = paths::logs().join(format!("debian-{}.log", self.name()));
        let context = cache::get(&format!("debian-{}", self.name()), &self.hash(), |out| {
            fs::create_dir_all(out)?;
            let what = format!("fetching Debian {}", self.name());
            with_retries(&what, || {
                Cmd::new("mmdebstrap")
                    .arg("--variant=minbase")
                    .args(self.options())
                    .args([self.name()])
                    .arg(out.join("root.tar"))
                    .run_showing(&what, &log)
            })?;
            fs::write(out.join("Containerfile"), "FROM scratch\nADD root.tar /\nCMD [\"bash\"]\n")?;
            Ok(())
        })?;
        buildah()
            .args(["build", "--isolation", "chroot", "--tag", &self.base()])
            .arg(&context)
            .run_showing(&format!("making the base image of Debian {}", self.name()), &log)
    }

    /// The release of Slurm that the suite carries now.
    fn slurm_version(self) -> Result<String> {
        self.build_base()?;
        let what = format!("finding the Slurm release of Debian {}", self.name());
        let progress = Progress::new(&what);
        let container = format!("slurm-release-{}", self.name());
        // A killed run may have left it behind.
        let remove = || buildah().args(["rm", &container]).ok();
        remove();
        let script = "apt-get update >&2 && apt-cache show --no-all-versions slurm-client";
        let shown = with_retries(&what, || {
            buildah().args(["from", "--name", &container, &self.base()]).text()?;
            let shown = buildah().args(["run", "--isolation", "chroot", &container, "sh", "-c", script]).text();
            remove();
            shown
        })?;
        let version = shown.lines().find_map(|line| line.strip_prefix("Version: ")).and_then(release_of);
        let version = version.with_context(|| format!("Debian {} carries no package slurm-client", self.name()))?;
        progress.done();
        Ok(version)
    }
}

/// buildah with a store of its own, in a mount namespace of its own, so that it leaves no mount behind.
fn buildah() -> Cmd {
    Cmd::new("unshare")
        .args(["--mount", "--propagation", "slave", "buildah", "--root"])
        .arg(paths::cache().join("buildah"))
        .arg("--runroot")
        .arg(paths::cache().join("buildah-run"))
        .args(["--storage-driver", "overlay"])
}

/// An image to build.
pub struct Image {
    /// Its name on the nodes.
    pub reference: String,
    containerfile: PathBuf,
    context: PathBuf,
    target: Option<&'static str>,
    /// The Debian suite that it is based on, and the Slurm release that must be installed from it.
    debian: Option<(Suite, String)>,
}

impl Image {
    fn system() -> Result<Vec<Self>> {
        let dev = paths::checkout()?.join("dev");
        let image = |reference: &str, name: &str, context| Self {
            reference: reference.to_owned(),
            containerfile: dev.join(name).join("Containerfile"),
            context,
            target: None,
            debian: None,
        };
        Ok(vec![image(PAUSE, "pause", tools::pause()?), image(COREDNS, "coredns", tools::coredns()?)])
    }

    /// What only tests use: the database for accounting, and the Prometheus for dashboards and alerts.
    fn for_tests() -> Result<Vec<Self>> {
        let images = paths::checkout()?.join("images");
        let image = |name: &str, tag: &str| Self {
            reference: format!("localhost/slurm-operator/{name}:{tag}"),
            containerfile: images.join(name).join("Containerfile"),
            context: images.join(name),
            target: None,
            debian: Some((Suite::Trixie, String::new())),
        };
        Ok(vec![image("mariadb", "11.8"), image("prometheus", "2.53")])
    }

    fn name(&self) -> String {
        let name = self.reference.rsplit('/').next().unwrap_or(&self.reference);
        format!("image-{}", name.replace(':', "-"))
    }

    fn hash(&self) -> Result<String> {
        let base = self.debian.as_ref().map(|(suite, slurm)| format!("{} {slurm}", suite.hash())).unwrap_or_default();
        Ok(Inputs::default()
            .text(self.target.unwrap_or_default())
            .text(&base)
            .path(&self.containerfile)?
            .path(&self.context)?
            .hash())
    }

    /// The archive, if it was built before.
    pub fn cached(&self) -> Result<Option<PathBuf>> {
        let path = cache::place(&self.name(), &self.hash()?);
        Ok(path.exists().then_some(path))
    }

    /// Tries again if the network fails.
    fn build_patiently(&self) -> Result<PathBuf> {
        with_retries(&self.reference, || self.build())
    }

    /// The archive with the image.
    fn build(&self) -> Result<PathBuf> {
        cache::get(&self.name(), &self.hash()?, |archive| {
            paths::check_disk(5)?;
            let mut build = buildah().args(["build", "--isolation", "chroot", "--layers", "--tag", &self.reference]);
            if let Some((suite, slurm)) = &self.debian {
                suite.build_base()?;
                build = build.args(["--build-arg", &format!("BASE={}", suite.base())]);
                if !slurm.is_empty() {
                    build = build.args(["--build-arg", &format!("SLURM={slurm}")]);
                }
            }
            if let Some(target) = self.target {
                build = build.args(["--target", target]);
            }
            let log = paths::logs().join(format!("{}.log", self.name()));
            build
                .arg("--file")
                .arg(&self.containerfile)
                .arg(&self.context)
                .run_showing(&format!("building {}", self.reference), &log)?;
            let destination = format!("docker-archive:{}:{}", archive.display(), self.reference);
            buildah().args(["push", "--quiet", &self.reference, &destination]).log(&log).run()
        })
    }
}

/// Builds the images that only tests use.
pub fn build_for_tests() -> Result<Vec<PathBuf>> {
    prepare()?;
    Image::for_tests()?.iter().map(Image::build_patiently).collect()
}

/// Builds the images of all Slurm releases.
pub fn build_slurm() -> Result<Vec<PathBuf>> {
    let mut archives = SlurmRelease::stable().build(SLURM_DAEMONS)?;
    archives.extend(SlurmRelease::newest()?.build(SLURM_DAEMONS)?);
    Ok(archives)
}

/// Builds the images of all Slurm releases, and those for tests.
pub fn build_all() -> Result<Vec<PathBuf>> {
    let mut archives = build_slurm()?;
    archives.extend(build_for_tests()?);
    Ok(archives)
}

/// Builds the images that every cluster with nodes needs.
pub fn build_system() -> Result<Vec<PathBuf>> {
    prepare()?;
    Image::system()?.iter().map(Image::build).collect()
}

/// The operator's image with the program that was compiled last.
fn operator() -> Result<Image> {
    Ok(Image {
        reference: "localhost/slurm-operator/operator:dev".to_owned(),
        containerfile: paths::checkout()?.join("images/operator/Containerfile"),
        context: paths::cache().join("operator"),
        target: Some("prebuilt"),
        debian: None,
    })
}

/// The operator's image, if it was built. It changes too often to be part of the store.
pub fn operator_archive() -> Result<Option<PathBuf>> {
    let image = operator()?;
    if image.context.exists() { image.cached() } else { Ok(None) }
}

/// Cargo's profile for the operator in an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Without link-time optimisation: compiled in a fraction of the time.
    Local,
    Release,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Release => "release",
        }
    }
}

/// The operator for tests.
pub struct Operator {
    pub program: PathBuf,
    /// Only for the local cluster.
    pub image: Option<PathBuf>,
}

/// The operator for tests, from this checkout.
pub fn operator_for_tests(is_local: bool) -> Result<Operator> {
    if !is_local {
        return Ok(Operator { program: compile("slurm-operator", "slurm-operator", Profile::Local)?, image: None });
    }
    let image = build_operator(Profile::Local)?;
    Ok(Operator { program: operator()?.context.join("slurm-operator"), image: Some(image) })
}

/// The operator's image, from this checkout.
pub fn build_operator(profile: Profile) -> Result<PathBuf> {
    prepare()?;
    let program = compile("slurm-operator", "slurm-operator", profile)?;
    let image = operator()?;
    fs::create_dir_all(&image.context)?;
    fs::copy(&program, image.context.join("slurm-operator"))
        .with_context(|| format!("cannot find {}", program.display()))?;
    image.build()
}

/// Compiles a program for an image: no library is needed at run time, so that the image need not hold anything else.
pub fn compile(package: &str, program: &str, profile: Profile) -> Result<PathBuf> {
    let host = Cmd::new("rustc").arg("-vV").text()?;
    let triple = host.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    paths::cargo()?
        .args(["build", "--locked", "--profile", profile.name(), "--package", package, "--target", triple])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .run_showing(&format!("compiling {program}"), &paths::logs().join(format!("{program}.log")))?;
    Ok(paths::target()?.join(triple).join(profile.name()).join(program))
}

fn prepare() -> Result<()> {
    host::install_packages()?;
    fs::create_dir_all(paths::cache()).with_context(|| format!("cannot make {}", paths::cache().display()))
}

/// containerd's folder with images already unpacked, to be linked into each node: unpacking them there again would take a
/// minute per node.
pub struct Store {
    root: PathBuf,
    /// The archives that it was made from.
    pub archives: Vec<PathBuf>,
}

/// The store with the cluster's own images and all others that were built.
pub fn store() -> Result<Store> {
    let mut archives = build_system()?;
    let slurm = paths::checkout()?.join("images/slurm");
    for release in SlurmRelease::known()? {
        for daemon in SLURM_DAEMONS {
            archives.extend(release.image(&slurm, daemon).cached()?);
        }
        archives.extend(nebius::cached(&release)?);
    }
    for image in Image::for_tests()? {
        archives.extend(image.cached()?);
    }
    let names: Vec<String> = archives.iter().map(|path| path.display().to_string()).collect();
    let hash = Inputs::default().text(&names.join("\n")).text("with digests").hash();
    let store = cache::get("store", &hash, |out| {
        let progress = Progress::new(format!("unpacking {} images", archives.len()));
        fs::create_dir_all(out)?;
        let socket = out.join("containerd.sock");
        let config = out.join("containerd.toml");
        let log = paths::logs().join("store.log");
        let dir = out.display();
        fs::write(
            &config,
            format!(
                r#"version = 2
root = "{dir}/root"
state = "{dir}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]

[grpc]
address = "{dir}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
"#
            ),
        )?;
        let sandbox = Sandbox::new(&log)?;
        let imported = unpack(sandbox, &config, &socket, &archives, &log);
        sandbox.kill()?;
        imported?;
        progress.done();
        Ok(())
    })?;
    Ok(Store { root: store.join("root"), archives })
}

fn unpack(sandbox: Sandbox, config: &Path, socket: &Path, archives: &[PathBuf], log: &Path) -> Result<()> {
    let containerd = sandbox.daemon(Path::new("/usr/bin/containerd"), [Path::new("--config"), config], log)?;
    let ctr = || Cmd::new("ctr").arg("--address").arg(socket).args(["--namespace", "k8s.io"]);
    shell::wait_until("containerd", Duration::from_secs(20), || Ok(ctr().arg("version").ok()))?;
    for archive in archives {
        shell::check_interrupt()?;
        import(ctr, archive)?;
    }
    containerd.end(Duration::from_secs(10))
}

/// Imports an image archive into containerd. The image can then also be named by its digest, as one of a registry can.
pub fn import(ctr: impl Fn() -> Cmd, archive: &Path) -> Result<()> {
    let output = ctr().args(["images", "import"]).arg(archive).text()?;
    for (image, digest) in output.lines().filter_map(imported) {
        let (repository, _) = image.rsplit_once(':').unwrap_or((image, ""));
        ctr().args(["images", "tag", "--force", image, &format!("{repository}@{digest}")]).text()?;
    }
    Ok(())
}

/// The image and its digest in a line such as `unpacking localhost/slurmd:26.05 (sha256:0123…)...done`.
fn imported(line: &str) -> Option<(&str, &str)> {
    let (image, rest) = line.strip_prefix("unpacking ")?.split_once(" (")?;
    Some((image, rest.split_once(')')?.0))
}

impl Store {
    /// Links the store into a node. Image files are never changed, so all nodes share them; each node has databases of its
    /// own.
    pub fn copy_to(&self, root: &Path) -> Result<()> {
        Cmd::new("cp").args(["--archive", "--link"]).arg(&self.root).arg(root).text()?;
        let databases =
            ["io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"];
        for database in databases {
            let own = root.join(database);
            fs::remove_file(&own).with_context(|| format!("cannot replace {}", own.display()))?;
            fs::copy(self.root.join(database), &own).with_context(|| format!("cannot copy {}", own.display()))?;
        }
        if !root.join("io.containerd.content.v1.content").is_dir() {
            bail!("the image store at {} is incomplete: remove it and run again", self.root.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_digest_of_an_imported_image() {
        assert_eq!(imported("unpacking localhost/a/b:1 (sha256:01)...done"), Some(("localhost/a/b:1", "sha256:01")));
        assert_eq!(imported("unpacking localhost/a/b:1 (sha256:01)..."), Some(("localhost/a/b:1", "sha256:01")));
        assert_eq!(imported(""), None);
    }

    #[test]
    fn reads_the_release_of_a_package() {
        for (version, release) in [
            ("24.11.5-4", Some("24.11")),
            ("26.11~rc1-1", Some("26.11")),
            ("26.11.0~rc1-1", Some("26.11")),
            ("3.10.2-1", None),
            ("", None),
        ] {
            assert_eq!(release_of(version).as_deref(), release, "{version}");
        }
    }
}
