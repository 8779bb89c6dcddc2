//! Copies single files with everything that belongs to them.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result};
use rustix::{
    fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags},
    io::Errno,
};

use crate::tree;

/// Extended attributes that could not be copied, most often because the file system has none.
#[derive(Debug, Default)]
pub struct Lost(Mutex<(u64, Option<String>)>);

impl Lost {
    fn add(&self, name: &str, file: &str, error: Errno) {
        let mut lost = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.0 += 1;
        lost.1.get_or_insert_with(|| format!("{name} of {file}: {error}"));
    }

    /// How many, and the first one.
    pub fn take(&self) -> Option<(u64, String)> {
        let (count, first) = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        first.map(|first| (count, first))
    }
}

/// Copies a file. `show` is its path, for messages.
pub fn file(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr, lost: &Lost, show: &str) -> Result<()> {
    // Not blocked by a pipe that has just taken the place of the file.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut source = File::from(rustix::fs::openat(from, name, flags, Mode::empty()).context("cannot open it")?);
    let mut target = File::from(tree::create_part(to)?);
    content(&mut source, &mut target)?;
    metadata(&source, &target, lost, show)?;
    drop(target);
    Ok(tree::put(to, name)?)
}

/// Copies what is in a file, without the holes: some files are far longer than they are large.
fn content(source: &mut File, target: &mut File) -> io::Result<()> {
    let meta = source.metadata()?;
    if meta.blocks().saturating_mul(512) >= meta.len() {
        io::copy(source, target)?;
        return Ok(());
    }
    let mut end = 0;
    loop {
        let start = match rustix::fs::seek(&*source, rustix::fs::SeekFrom::Data(end)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        end = rustix::fs::seek(&*source, rustix::fs::SeekFrom::Hole(start))?;
        source.seek(SeekFrom::Start(start))?;
        target.seek(SeekFrom::Start(start))?;
        io::copy(&mut (&*source).take(end.saturating_sub(start)), target)?;
    }
    target.set_len(meta.len())
}

/// Copies owner, permissions, extended attributes and time of a file or folder.
pub fn metadata(source: &File, target: &File, lost: &Lost, show: &str) -> Result<()> {
    let meta = source.metadata()?;
    let (owner, group) = (Uid::from_raw(meta.uid()), Gid::from_raw(meta.gid()));
    // Before the permissions: a change of the owner takes set-user-ID away.
    rustix::fs::fchown(target, Some(owner), Some(group)).map_err(|error| anyhow::anyhow!(owned(error, meta.uid())))?;
    rustix::fs::fchmod(target, Mode::from_raw_mode(meta.mode()))?;
    attributes(source, target, lost, show)?;
    Ok(rustix::fs::futimens(target, &times(meta.mtime(), meta.mtime_nsec()))?)
}

fn owned(error: Errno, owner: u32) -> String {
    let why = if error == Errno::PERM { "; on NFS, export the volume with no_root_squash" } else { "" };
    format!("it cannot be given to user {owner}: {error}{why}")
}

fn times(seconds: i64, nanoseconds: i64) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: seconds, tv_nsec: nanoseconds },
    }
}

/// Whether an attribute belongs to the file, and not to the machine or the file system where the source lies.
fn is_kept(name: &str) -> bool {
    name.starts_with("user.") || name.starts_with("system.posix_acl_") || name == "security.capability"
}

fn attributes(source: &File, target: &File, lost: &Lost, show: &str) -> Result<()> {
    let mut names = vec![0; 65536];
    let length = match rustix::fs::flistxattr(source, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
        Err(error) => return Err(error).context("cannot read its extended attributes"),
    };
    names.truncate(length);
    let names = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    for name in names.filter(|name| is_kept(name)) {
        let mut value = vec![0; 65536];
        let copied = rustix::fs::fgetxattr(source, name, &mut value[..]).and_then(|length| {
            value.truncate(length);
            rustix::fs::fsetxattr(target, name, &value, XattrFlags::empty())
        });
        if let Err(error) = copied {
            lost.add(name, show, error);
        }
    }
    Ok(())
}

/// Copies a symbolic link, which may lead anywhere.
pub fn symlink(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr, stat: &Stat) -> Result<()> {
    let target = rustix::fs::readlinkat(from, name, Vec::new())?;
    tree::make_part(to, |part| rustix::fs::symlinkat(target.as_c_str(), to, part))?;
    let part = tree::part_name();
    let (owner, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(to, part, Some(owner), Some(group), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| anyhow::anyhow!(owned(error, stat.st_uid)))?;
    // Not all file systems keep the time of a link.
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or_default();
    let _ = rustix::fs::utimensat(to, part, &times(stat.st_mtime, nanoseconds), AtFlags::SYMLINK_NOFOLLOW);
    Ok(tree::put(to, name)?)
}

/// Gives a file another name; false where the file system cannot.
pub fn hard_link(from: BorrowedFd<'_>, first: &OsStr, to: BorrowedFd<'_>, name: &OsStr) -> Result<bool> {
    match tree::make_part(to, |part| rustix::fs::linkat(from, first, to, part, AtFlags::empty())) {
        Ok(()) => {}
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK | Errno::XDEV | Errno::NOSYS) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    tree::put(to, name)?;
    // Where both are the same file already, nothing was renamed.
    match rustix::fs::unlinkat(to.as_fd(), tree::part_name(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
