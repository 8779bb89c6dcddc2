//! A file tree that others own and may change at any time: paths are resolved beneath its root, without symbolic links.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    hash::{BuildHasher, RandomState},
    io::{Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
    sync::LazyLock,
};

use anyhow::{Context, Result, bail};
use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};

/// The kernel takes paths of up to 4,096 bytes. Longer ones are resolved in parts.
const LONGEST_PATH: usize = 4000;

/// Another process renamed something while the kernel resolved a path: try again, but not for ever.
const ATTEMPTS: usize = 128;

const PART: (&str, &str) = (".slurm-jail-", ".part");

/// The name of files that are not whole yet, of this process.
static PART_NAME: LazyLock<OsString> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(std::process::id());
    format!("{}{random:016x}{}", PART.0, PART.1).into()
});

/// Whether a file of this name is one that a process of ours could not finish.
pub fn is_part(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.starts_with(PART.0.as_bytes()) && name.ends_with(PART.1.as_bytes())
}

/// The name under which this process makes files, one at a time in each folder, before they are moved into place.
pub fn part_name() -> &'static OsStr {
    &PART_NAME
}

/// A file tree, by its open root.
pub struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

impl Tree {
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty()).with_context(|| {
            let what = if path.exists() { "cannot open the folder" } else { "there is no folder" };
            format!("{what} {}", path.display())
        })?;
        Ok(Self { root, path: path.to_owned() })
    }

    pub fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// The path as messages show it.
    pub fn show(&self, path: &Path) -> String {
        self.path.join(path).display().to_string()
    }

    /// Opens a folder.
    pub fn dir(&self, path: &Path) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.resolve(path, flags).with_context(|| format!("cannot open the folder {}", self.show(path)))
    }

    /// A handle of a file or folder that serves as a place to mount on.
    pub fn place(&self, path: &Path) -> Result<OwnedFd> {
        self.resolve(path, OFlags::PATH | OFlags::CLOEXEC).with_context(|| format!("cannot open {}", self.show(path)))
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let parts = parts(path)?;
        let (last, before) = parts.split_last().ok_or(Errno::INVAL)?;
        let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = None;
        for part in before {
            at = Some(beneath(at.as_ref().map_or(self.root(), AsFd::as_fd), part, folder)?);
        }
        beneath(at.as_ref().map_or(self.root(), AsFd::as_fd), last, flags)
    }

    /// Opens a folder, which is made with all its parents if it is not there.
    pub fn make_dir(&self, path: &Path) -> Result<OwnedFd> {
        let make = || {
            let mut at = self.dir(Path::new(""))?;
            for name in names(path)? {
                match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                at = rustix::fs::openat(&at, name, flags, Mode::empty())?;
            }
            anyhow::Ok(at)
        };
        make().with_context(|| format!("cannot make the folder {}", self.show(path)))
    }

    /// What is at a path, if anything is. The last part may be a symbolic link.
    pub fn look(&self, path: &Path) -> Result<Option<Stat>> {
        let (parent, name) = split(path)?;
        let found = match self.resolve(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC) {
            Ok(parent) => stat(&parent, name),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error),
        };
        found.with_context(|| format!("cannot look at {}", self.show(path)))
    }

    /// The content of a file, if it is there. What a symbolic link leads to is not.
    pub fn read(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        // Not blocked by a pipe that somebody put there.
        let file = match self.resolve(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(error),
        };
        let Some(file) = file.with_context(|| format!("cannot open {}", self.show(path)))? else { return Ok(None) };
        let mut content = Vec::new();
        File::from(file).read_to_end(&mut content).with_context(|| format!("cannot read {}", self.show(path)))?;
        Ok(Some(content))
    }

    /// Writes a file into a folder that exists. Readers see the old content or the new one, and after this returns, so does
    /// everyone after a power failure.
    pub fn write(&self, path: &Path, content: &[u8], mode: u32) -> Result<()> {
        let write = || {
            let (parent, name) = split(path)?;
            let parent = self.dir(parent)?;
            let mut file = File::from(create_part(&parent)?);
            file.write_all(content)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            file.sync_all()?;
            put(&parent, name)?;
            rustix::fs::fsync(&parent)?;
            anyhow::Ok(())
        };
        write().with_context(|| format!("cannot write {}", self.show(path)))
    }

    /// Removes a file or symbolic link, if it is there.
    pub fn remove(&self, path: &Path) -> Result<()> {
        if self.look(path)?.is_none() {
            return Ok(());
        }
        let remove = || {
            let (parent, name) = split(path)?;
            let parent = self.dir(parent)?;
            rustix::fs::unlinkat(&parent, name, AtFlags::empty())?;
            rustix::fs::fsync(&parent)?;
            anyhow::Ok(())
        };
        remove().with_context(|| format!("cannot remove {}", self.show(path)))
    }
}

fn beneath(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    for _ in 1..ATTEMPTS {
        match rustix::fs::openat2(at, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN) => {}
            result => return result,
        }
    }
    rustix::fs::openat2(at, path, flags, Mode::empty(), resolve)
}

/// The names in a relative path.
fn names(path: &Path) -> rustix::io::Result<Vec<&OsStr>> {
    let name = |component| match component {
        Component::Normal(name) => Ok(name),
        _ => Err(Errno::INVAL),
    };
    path.components().map(name).collect()
}

/// The path in parts that are short enough for the kernel; at least one.
fn parts(path: &Path) -> rustix::io::Result<Vec<PathBuf>> {
    let mut parts = Vec::new();
    let mut part = PathBuf::new();
    for name in names(path)? {
        if part.as_os_str().len() + name.len() >= LONGEST_PATH {
            parts.push(std::mem::take(&mut part));
        }
        part.push(name);
    }
    if part.as_os_str().is_empty() {
        part.push(".");
    }
    parts.push(part);
    Ok(parts)
}

/// The folder and the name in it.
fn split(path: &Path) -> Result<(&Path, &OsStr)> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        _ => bail!("{} names no file", path.display()),
    }
}

/// What is in a folder under a name. Symbolic links are not followed.
pub fn stat(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<Option<Stat>> {
    match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The names in a folder, sorted.
pub fn list(dir: impl AsFd) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// A new file that is not whole yet, open for writing.
pub fn create_part(dir: impl AsFd) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    make_part(dir.as_fd(), |name| rustix::fs::openat(dir.as_fd(), name, flags, Mode::from_raw_mode(0o600)))
}

/// Makes something under the name of what is not whole yet. What an error of this process left there goes.
pub fn make_part<T>(dir: BorrowedFd<'_>, make: impl Fn(&OsStr) -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    match make(part_name()) {
        Err(Errno::EXIST) => {
            rustix::fs::unlinkat(dir, part_name(), AtFlags::empty())?;
            make(part_name())
        }
        result => result,
    }
}

/// Gives what was made its name.
pub fn put(dir: impl AsFd, name: &OsStr) -> rustix::io::Result<()> {
    let dir = dir.as_fd();
    rustix::fs::renameat(dir, part_name(), dir, name)
}

/// Removes whatever has this name, with everything below it. Symbolic links are not followed.
pub fn remove_all(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        Err(Errno::NOENT) => return Ok(()),
        result => return result,
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    for name in list(&inner)? {
        remove_all(inner.as_fd(), &name)?;
    }
    rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)
}
