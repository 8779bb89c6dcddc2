//! Shows in the jail what processes there need of the worker: in the mount namespace of this container only.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, StatVfsMountFlags, fstatvfs},
    io::Errno,
    mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags},
};

use crate::{
    layout::{self, Link, Mount, Show},
    tree::Tree,
    wait,
};

/// Completes a jail for this worker. What was done before is left as it is.
pub fn run(jail: &Path, upper: &Path, arch: &str, say: &dyn Fn(&str)) -> Result<()> {
    let path = fs::canonicalize(jail).with_context(|| format!("there is no folder {}", jail.display()))?;
    let points = layout::mount_points(&fs::read("/proc/self/mountinfo").context("cannot read the mount points")?);
    let mounted: BTreeSet<PathBuf> =
        points.iter().filter_map(|point| point.strip_prefix(&path).ok()).map(Path::to_owned).collect();
    if !mounted.contains(Path::new("")) {
        bail!("{} is no mount point: the volume of the jail must be mounted there", jail.display());
    }
    let tree = Tree::open(&path)?;
    if !wait::is_populated(&tree)? {
        bail!("the jail {} is not populated: wait for that with `slurm-jail wait`", jail.display());
    }
    // What is mounted here must not appear in other containers.
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change(&path, propagation).with_context(|| {
        format!("cannot mount anything in {}: the container must be privileged, or have CAP_SYS_ADMIN", jail.display())
    })?;
    let jail = Jail { tree, mounted, say };
    jail.own_run()?;
    for mount in layout::mounts(upper, &points) {
        jail.mount(&mount)?;
    }
    for link in layout::links(arch) {
        jail.link(&link)?;
    }
    Ok(())
}

struct Jail<'a> {
    tree: Tree,
    /// Where something was mounted before, relative to the jail.
    mounted: BTreeSet<PathBuf>,
    say: &'a dyn Fn(&str),
}

impl Jail<'_> {
    /// Every worker has a `/run` of its own. That of the container is not shown: it has secrets.
    fn own_run(&self) -> Result<()> {
        let run = Path::new("run");
        if self.mounted.contains(run) {
            return Ok(());
        }
        let place = self.tree.make_dir(run)?;
        rustix::mount::mount(
            "tmpfs",
            magic_path(&place),
            "tmpfs",
            MountFlags::NOSUID | MountFlags::NODEV,
            c"mode=0755",
        )
        .with_context(|| format!("cannot mount a tmpfs on {}", self.tree.show(run)))?;
        let lock = self.tree.make_dir(&run.join("lock"))?;
        Ok(rustix::fs::fchmod(&lock, Mode::from_raw_mode(0o1777))?)
    }

    fn mount(&self, mount: &Mount) -> Result<()> {
        if self.mounted.contains(&mount.at) {
            return Ok(());
        }
        let Ok(from) = fs::metadata(&mount.from) else {
            if mount.needed {
                bail!("the jail needs {} of the container, which is not there", mount.from.display());
            }
            return Ok(());
        };
        let place = if from.is_dir() { self.tree.make_dir(&mount.at) } else { self.empty_file(&mount.at) };
        let place = place.with_context(|| format!("{} cannot be shown in the jail", mount.from.display()))?;
        self.attach(&mount.from, &place, mount.show, &mount.at)
    }

    /// A file to mount on, which is made if nothing is there.
    fn empty_file(&self, path: &Path) -> Result<OwnedFd> {
        if self.tree.look(path)?.is_none() {
            let folder = self.tree.make_dir(path.parent().unwrap_or(Path::new("")))?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = path.file_name().unwrap_or_default();
            match rustix::fs::openat(&folder, name, flags, Mode::from_raw_mode(0o644)) {
                // Another worker has just made it.
                Ok(_) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error).with_context(|| format!("cannot make {}", self.tree.show(path))),
            }
        }
        self.tree.place(path)
    }

    fn attach(&self, from: &Path, place: &OwnedFd, show: Show, at: &Path) -> Result<()> {
        let attach = || {
            let recursive = if show == Show::Folder { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | recursive;
            let copy = rustix::mount::open_tree(CWD, from, flags)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            rustix::mount::move_mount(&copy, "", place, "", flags)?;
            if show != Show::Folder {
                let flags = MountFlags::BIND | MountFlags::RDONLY | kept_flags(&copy)?;
                rustix::mount::mount_remount(magic_path(&copy), flags, c"")?;
            }
            rustix::io::Result::Ok(())
        };
        attach().with_context(|| format!("cannot mount {} on {}", from.display(), self.tree.show(at)))
    }

    /// Sees to it that a name in the jail leads to what the worker has. Jails that `slurm-jail` populated have these links. In
    /// others, what has the name is covered, and a link is made where there is nothing: that is the same for all workers.
    fn link(&self, link: &Link) -> Result<()> {
        let Ok(from) = fs::metadata(&link.from) else { return Ok(()) };
        let Some(stat) = self.tree.look(&link.at)? else {
            self.make_link(link);
            return Ok(());
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => self.check_link(link),
            kind if kind.is_dir() == from.is_dir() => {
                if self.mounted.contains(&link.at) {
                    return Ok(());
                }
                let show = if from.is_dir() { Show::ReadOnlyFolder } else { Show::ReadOnlyFile };
                self.attach(&link.from, &self.tree.place(&link.at)?, show, &link.at)
            }
            _ => {
                let at = self.tree.show(&link.at);
                (self.say)(&format!("warning: {at} is left alone: it should be like {}", link.from.display()));
                Ok(())
            }
        }
    }

    fn make_link(&self, link: &Link) {
        let make = || {
            let folder = self.tree.make_dir(link.at.parent().unwrap_or(Path::new("")))?;
            match rustix::fs::symlinkat(&link.to, &folder, link.at.file_name().unwrap_or_default()) {
                // Another worker has just made it.
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(error) => Err(anyhow::Error::from(error)),
            }
        };
        if let Err(error) = make() {
            // Jobs can run without it.
            (self.say)(&format!("warning: cannot make the link {}: {error:#}", self.tree.show(&link.at)));
        }
    }

    fn check_link(&self, link: &Link) -> Result<()> {
        let folder = self.tree.dir(link.at.parent().unwrap_or(Path::new("")))?;
        let name: &OsStr = link.at.file_name().unwrap_or_default();
        let to = rustix::fs::readlinkat(folder.as_fd(), name, Vec::new())?;
        if to.to_bytes() != link.to.as_os_str().as_encoded_bytes() {
            let (at, to) = (self.tree.show(&link.at), to.to_string_lossy());
            (self.say)(&format!(
                "warning: {at} leads to {to} and is left alone: it should lead to {}",
                link.to.display()
            ));
        }
        Ok(())
    }
}

/// The path of what is open, whatever its names are now.
fn magic_path(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Flags of a mount that must stay: a container may not take them away.
fn kept_flags(mount: &OwnedFd) -> rustix::io::Result<MountFlags> {
    let has = fstatvfs(mount)?.f_flag;
    let flags = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let kept = flags.into_iter().filter(|(flag, _)| has.contains(*flag));
    Ok(kept.fold(MountFlags::empty(), |all, (_, flag)| all | flag))
}
