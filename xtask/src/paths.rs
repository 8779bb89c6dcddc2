//! Paths outside the checkout: one folder per machine, with build results and the cluster's state; and cargo's target folder.

use std::{
    env,
    fs::{self, File},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{FlockOperation, flock, statvfs},
    process::geteuid,
};

use crate::{host, shell::Cmd};

/// The variable that moves the folder.
pub const VARIABLE: &str = "SLURM_OPERATOR_DEV_DIR";

/// The folder of this machine. It is the same for every checkout, so that there is one cluster and one cache. Without root
/// there is no cluster, but tools can be built.
pub fn dir() -> PathBuf {
    if let Some(dir) = env::var_os(VARIABLE) {
        return PathBuf::from(dir);
    }
    match env::var_os("HOME") {
        Some(home) if !geteuid().is_root() => Path::new(&home).join(".cache/slurm-operator-dev"),
        _ => PathBuf::from("/var/lib/slurm-operator-dev"),
    }
}

/// Build results, named by the hash of their inputs.
pub fn cache() -> PathBuf {
    dir().join("cache")
}

/// State of the running cluster.
pub fn cluster() -> PathBuf {
    dir().join("cluster")
}

/// Output of builds and of background processes.
pub fn logs() -> PathBuf {
    dir().join("log")
}

/// The checkout that this program was built from.
pub fn checkout() -> Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).context("xtask must lie in the checkout")
}

/// Cargo's target folder: the one that this program was built in, wherever a variable or a configuration put it.
pub fn target() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find the path of this program")?;
    program
        .parent()
        .and_then(Path::parent)
        .map(Path::to_owned)
        .with_context(|| format!("{} is not in cargo's target folder", program.display()))
}

/// Cargo in the checkout, with the target folder of this program.
pub fn cargo() -> Result<Cmd> {
    Ok(Cmd::new("cargo").env("CARGO_TARGET_DIR", target()?).dir(&checkout()?))
}

/// Set for the children of a command that holds the lock: they work on its behalf.
const LOCK_HELD: &str = "SLURM_OPERATOR_DEV_LOCK_HELD";

/// Held while a command changes the cluster or the cache; the file names the process.
pub struct Lock(#[expect(dead_code, reason = "the open file is the lock")] Option<File>);

impl Lock {
    pub fn take() -> Result<Self> {
        if env::var_os(LOCK_HELD).is_some() {
            return Ok(Self(None));
        }
        host::require_root()?;
        let dir = dir();
        fs::create_dir_all(&dir)
            .with_context(|| format!("cannot make {} (set {VARIABLE} to move it)", dir.display()))?;
        let path = dir.join("lock");
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            bail!("another `cargo xtask` is running here ({}): wait for it to end, or end it", holder.trim());
        }
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "process {} in {}", std::process::id(), checkout()?.display())?;
        Ok(Self(Some(file)))
    }
}

/// Lets a child process use the lock of this one.
pub fn lend(_lock: &Lock, child: Cmd) -> Cmd {
    child.env(LOCK_HELD, "1")
}

/// An error if less than this is free, so that work does not fail halfway.
pub fn check_disk(gibibytes: u64) -> Result<()> {
    let dir = dir();
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {} (set {VARIABLE} to move it)", dir.display()))?;
    let stat = statvfs(&dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    let free = (stat.f_bavail * stat.f_frsize) >> 30;
    if free < gibibytes {
        bail!(
            "{} has {free} GiB free and this needs {gibibytes} GiB: free some space, or set {VARIABLE} to a folder on a larger disk",
            dir.display()
        );
    }
    Ok(())
}
