//! Dynamic volumes: the controller manager's own host-path provisioner makes a folder per claim, which every node sees.
//! It makes the folders for root only; a watcher of ours opens each to all users, as a storage system would that honours
//! a pod's group.

use std::{
    fs,
    mem::MaybeUninit,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use rustix::fs::inotify;

use super::sandbox::Sandbox;
use crate::paths;

/// Where the provisioner puts folders; it cannot be told otherwise.
const FIXED: &str = "/tmp/hostpath_pv";

/// Keeps the folders within the cluster's own, and starts the watcher.
pub fn prepare(sandbox: Sandbox) -> Result<()> {
    let dir = paths::cluster().join("volumes");
    fs::create_dir_all(&dir)?;
    fs::create_dir_all(FIXED).with_context(|| format!("cannot make {FIXED}"))?;
    sandbox.enter("mount").arg("--bind").arg(&dir).arg(FIXED).text()?;
    let me = std::env::current_exe().context("cannot find myself")?;
    let log = super::log("volumes");
    sandbox.daemon(&me, [Path::new("cluster"), Path::new("open-volumes"), &dir], &log)?;
    Ok(())
}

pub fn forget() {
    // Only when it is empty, so only when nobody else uses it.
    let _ = fs::remove_dir(FIXED);
}

/// Opens every folder that appears, for as long as it lives.
pub fn open_all(dir: &Path) -> Result<()> {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).context("cannot watch folders")?;
    inotify::add_watch(&watch, dir, inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO)
        .with_context(|| format!("cannot watch {}", dir.display()))?;
    let folders: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    for folder in &folders {
        open(folder);
    }
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    loop {
        let event = events.next().context("cannot read events")?;
        if let Some(name) = event.file_name().and_then(|name| name.to_str().ok()) {
            open(&dir.join(name));
        }
    }
}

fn open(path: &Path) {
    if let Err(error) = fs::set_permissions(path, fs::Permissions::from_mode(0o777)) {
        eprintln!("cannot open {}: {error}", path.display());
    }
}
