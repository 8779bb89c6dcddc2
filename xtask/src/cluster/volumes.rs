//! Dynamic volumes: the host-path provisioner of the controller manager creates a folder for each claim, which every node
//! sees. Only root can write to it; a watcher gives all users access, as a storage system does that honours `fsGroup`.

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

/// The folder that the provisioner uses; it has no setting for it.
const FIXED: &str = "/tmp/hostpath_pv";

/// Mounts a folder of the cluster there, and starts the watcher.
pub fn prepare(sandbox: Sandbox) -> Result<()> {
    let dir = paths::cluster().join("volumes");
    fs::create_dir_all(&dir)?;
    fs::create_dir_all(FIXED).with_context(|| format!("cannot make {FIXED}"))?;
    sandbox.enter("mount").arg("--bind").arg(&dir).arg(FIXED).text()?;
    let me = std::env::current_exe().context("cannot find the path of this program")?;
    let log = super::log("volumes");
    sandbox.daemon(&me, [Path::new("cluster"), Path::new("open-volumes"), &dir], &log)?;
    Ok(())
}

pub fn forget() {
    // Fails unless it is empty, so it stays if something else uses it.
    let _ = fs::remove_dir(FIXED);
}

/// Gives all users access to every folder that appears, until the process is ended.
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
