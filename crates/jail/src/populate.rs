//! Fills a jail from a folder with a root file system. An interrupted run goes on where it was; the sentinel comes last.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    io,
    num::NonZeroUsize,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Error, Result, bail};
use rustix::{
    fs::{FileType, Gid, Mode, Uid},
    io::Errno,
};

use crate::{
    copy::{self, Lost},
    journal::{self, Header, Journal, Locked},
    layout,
    scan::{self, Inventory},
    tree::{self, Tree},
};

/// Folders that a file system has of its own.
const LOST_AND_FOUND: &str = "lost+found";

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    pub source: PathBuf,
    pub jail: PathBuf,
    /// Make the jail equal to the source, also if it is populated: what is not in the source goes.
    pub overwrite: bool,
    /// Identifies the request to overwrite: it is done once, however often this runs. Without it, each run overwrites.
    pub request: String,
    pub threads: NonZeroUsize,
    /// The architecture of the workers, as `std::env::consts::ARCH` names it.
    pub arch: &'static str,
    /// How often what was copied is brought to the disk. An interrupted run has to repeat what was not.
    pub sync: Duration,
}

/// How a run connects to the rest of the program.
pub struct Outside<'a> {
    /// Fails once the run should end. It is asked before every step.
    pub stop: &'a (dyn Fn() -> Result<()> + Sync),
    /// Tells people what goes on.
    pub say: &'a (dyn Fn(&str) + Sync),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The jail was populated before.
    Already,
    /// Somebody else has populated it; now it has the sentinel.
    Adopted,
    Populated,
}

/// What a jail shows before a run.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// The request that the sentinel names, if the jail has one.
    sentinel: Option<String>,
    /// Whether soperator populated it, when it wrote another sentinel or none.
    is_old: bool,
    /// The run that did not end.
    last: Option<Header>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Nothing,
    Adopt,
    Fresh,
    Resume,
}

fn decide(seen: &Seen, wanted: &Header) -> Start {
    if wanted.overwrite {
        if !wanted.request.is_empty() && seen.sentinel.as_deref() == Some(&wanted.request) {
            return Start::Nothing;
        }
        return if seen.last.as_ref() == Some(wanted) { Start::Resume } else { Start::Fresh };
    }
    match &seen.last {
        _ if seen.sentinel.is_some() => Start::Nothing,
        // Whether or not it removed other files: all files of the source are there.
        Some(last) if last.source == wanted.source => Start::Resume,
        None if seen.is_old => Start::Adopt,
        _ => Start::Fresh,
    }
}

const REQUEST: &str = "request=";

fn sentinel(request: &str) -> String {
    format!("populated by slurm-jail\n{REQUEST}{request}\n")
}

fn see(jail: &Tree, last: Option<Header>) -> Result<Seen> {
    let sentinel = jail.read(Path::new(layout::SENTINEL))?.map(|content| {
        let content = String::from_utf8_lossy(&content);
        content.lines().find_map(|line| line.strip_prefix(REQUEST)).unwrap_or_default().to_owned()
    });
    let is_folder = |path: &str| {
        let found = jail.look(Path::new(path))?;
        anyhow::Ok(found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()))
    };
    let is_old = jail.look(Path::new(layout::OLD_SENTINEL))?.is_some() || (is_folder("dev")? && is_folder("usr")?);
    Ok(Seen { sentinel, is_old, last })
}

/// Populates a jail.
pub fn run(options: &Options, outside: &Outside<'_>) -> Result<Outcome> {
    let jail = Tree::open(&options.jail)?;
    let is_done = |jail: &Tree| {
        let request = see(jail, None)?.sentinel;
        anyhow::Ok(if options.overwrite {
            !options.request.is_empty() && request.as_ref() == Some(&options.request)
        } else {
            request.is_some()
        })
    };
    if is_done(&jail)? {
        journal::remove(&jail)?;
        return Ok(Outcome::Already);
    }
    let source = Tree::open(&options.source).context("the source of the jail is missing")?;
    let left_alone = scan::left_alone(options.arch);
    let inventory = scan::scan(&source, &left_alone, outside.stop)?;
    let wanted = Header {
        source: inventory.fingerprint.clone(),
        overwrite: options.overwrite,
        request: options.request.clone(),
    };
    let locked = Locked::take(&jail, outside.stop)?;
    let start = decide(&see(&jail, locked.header())?, &wanted);
    if matches!(start, Start::Nothing | Start::Adopt) {
        if start == Start::Adopt {
            jail.write(Path::new(layout::SENTINEL), sentinel("").as_bytes(), 0o644)?;
        }
        journal::remove(&jail)?;
        return Ok(if start == Start::Adopt { Outcome::Adopted } else { Outcome::Already });
    }
    // Nobody may take it for populated from here on.
    for name in [layout::SENTINEL, layout::OLD_SENTINEL] {
        (outside.stop)()?;
        jail.remove(Path::new(name))?;
    }
    let journal = locked.begin(&wanted, start == Start::Resume, options.sync)?;
    if journal.before() > 0 {
        (outside.say)(&format!("going on: {} of {} folders are done", journal.before(), inventory.folders));
    }
    let run = Run {
        other_names: inventory.other_names.iter().map(|name| name.other.clone()).collect(),
        options,
        outside,
        source,
        jail,
        left_alone,
        inventory,
        journal: Mutex::new(journal),
        files: AtomicU64::new(0),
        lost: Lost::default(),
    };
    run.all().map_err(|error| run.explain(error))?;
    Ok(Outcome::Populated)
}

struct Run<'a> {
    options: &'a Options,
    outside: &'a Outside<'a>,
    source: Tree,
    jail: Tree,
    left_alone: BTreeSet<PathBuf>,
    inventory: Inventory,
    /// Files that get their names when all others are there.
    other_names: BTreeSet<PathBuf>,
    journal: Mutex<Journal>,
    /// Copied by this run.
    files: AtomicU64,
    lost: Lost,
}

/// Folders that wait to be copied.
#[derive(Default)]
struct Queue {
    folders: Vec<PathBuf>,
    busy: usize,
    failure: Option<Error>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run<'_> {
    fn all(&self) -> Result<()> {
        self.folders()?;
        lock(&self.journal).sync(&self.jail)?;
        for name in &self.inventory.other_names {
            self.stop()?;
            let place = || format!("cannot make {}", self.jail.show(&name.other));
            self.other_name(&name.first, &name.other).with_context(place)?;
        }
        for link in layout::links(self.options.arch) {
            self.stop()?;
            let place = || format!("cannot make the link {}", self.jail.show(&link.at));
            self.link(&link).with_context(place)?;
        }
        rustix::fs::syncfs(self.jail.root()).context("cannot write the jail to its disk")?;
        self.stop()?;
        self.jail.write(Path::new(layout::SENTINEL), sentinel(&self.options.request).as_bytes(), 0o644)?;
        journal::remove(&self.jail)?;
        if let Some((count, first)) = self.lost.take() {
            let text = format!("{count} extended attributes could not be copied, the first one was {first}");
            (self.outside.say)(&text);
        }
        if self.inventory.left_out > 0 {
            let text = format!("{} devices, sockets and pipes were left out", self.inventory.left_out);
            (self.outside.say)(&text);
        }
        Ok(())
    }

    fn stop(&self) -> Result<()> {
        (self.outside.stop)()
    }

    /// Copies all folders, several at a time. A folder comes after the one that it is in.
    fn folders(&self) -> Result<()> {
        let queue = Mutex::new(Queue { folders: vec![PathBuf::new()], ..Queue::default() });
        let changed = Condvar::new();
        thread::scope(|scope| {
            for _ in 0..self.options.threads.get() {
                scope.spawn(|| self.work(&queue, &changed));
            }
        });
        match lock(&queue).failure.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn work(&self, queue: &Mutex<Queue>, changed: &Condvar) {
        loop {
            let mut guard = lock(queue);
            let folder = loop {
                if guard.failure.is_some() {
                    return;
                }
                if let Some(folder) = guard.folders.pop() {
                    break folder;
                }
                if guard.busy == 0 {
                    return;
                }
                guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
            };
            guard.busy += 1;
            drop(guard);
            let result = self.folder(&folder);
            let mut guard = lock(queue);
            guard.busy -= 1;
            match result {
                Ok(mut below) => guard.folders.append(&mut below),
                Err(error) => {
                    guard.failure.get_or_insert(error);
                }
            }
            changed.notify_all();
        }
    }

    /// Copies what is in a folder, but not what is in the folders below it, which are returned.
    fn folder(&self, path: &Path) -> Result<Vec<PathBuf>> {
        self.stop()?;
        let from = self.source.dir(path)?;
        let names = tree::list(&from).with_context(|| format!("cannot read {}", self.source.show(path)))?;
        let is_done = lock(&self.journal).has(path);
        let to = self.jail.dir(path).or_else(|error| {
            // It was made when the folder above it was copied: somebody else is at work here.
            lock(&self.journal).discard()?;
            Err(error)
        })?;
        if !is_done {
            self.clean(path, &names, to.as_fd())?;
        }
        let mut below = Vec::new();
        for name in names {
            let path = path.join(&name);
            if self.left_alone.contains(&path) {
                continue;
            }
            let stat =
                tree::stat(&from, &name).with_context(|| format!("cannot look at {}", self.source.show(&path)))?;
            let Some(stat) = stat else { bail!("{} has just vanished", self.source.show(&path)) };
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind.is_dir() {
                below.push(path.clone());
            }
            if is_done {
                continue;
            }
            self.stop()?;
            let copy = || match kind {
                FileType::Directory => make_folder(to.as_fd(), &name),
                FileType::RegularFile if self.other_names.contains(&path) => Ok(()),
                FileType::RegularFile => {
                    self.clear(to.as_fd(), &name)?;
                    copy::file(from.as_fd(), to.as_fd(), &name, &self.lost, &path.display().to_string())
                }
                FileType::Symlink => {
                    self.clear(to.as_fd(), &name)?;
                    copy::symlink(from.as_fd(), to.as_fd(), &name, &stat)
                }
                _ => Ok(()),
            };
            copy().with_context(|| format!("cannot make {}", self.jail.show(&path)))?;
            self.files.fetch_add(1, Ordering::Relaxed);
        }
        if !is_done {
            self.finish(path, &File::from(from), &File::from(to))?;
            let mut journal = lock(&self.journal);
            if journal.done(&self.jail, path.to_owned())? {
                let copied = self.files.load(Ordering::Relaxed);
                let text = format!("copied {copied} files; the source has {}", self.inventory.files);
                (self.outside.say)(&text);
            }
        }
        Ok(below)
    }

    /// Removes what interrupted runs have left in a folder and, to overwrite, what the source does not have.
    fn clean(&self, path: &Path, names: &[OsString], to: BorrowedFd<'_>) -> Result<()> {
        let is_top = path.as_os_str().is_empty();
        let what = || format!("cannot clean {}", self.jail.show(path));
        for name in tree::list(to).with_context(what)? {
            let is_kept = is_top && (name == journal::FOLDER || name == LOST_AND_FOUND);
            let is_stale = self.options.overwrite && !is_kept && names.binary_search(&name).is_err();
            if tree::is_part(&name) || is_stale {
                self.stop()?;
                tree::remove_all(to, &name).with_context(what)?;
            }
        }
        Ok(())
    }

    /// Makes way for a file: a folder is not replaced unless the jail is overwritten.
    fn clear(&self, to: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
        match tree::stat(to, name)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
                if !self.options.overwrite {
                    bail!("there is a folder of this name, where the source has a file: move it away");
                }
                Ok(tree::remove_all(to, name)?)
            }
            _ => Ok(()),
        }
    }

    /// Gives a folder its owner, permissions and time.
    fn finish(&self, path: &Path, from: &File, to: &File) -> Result<()> {
        let finish = || {
            copy::metadata(from, to, &self.lost, &path.display().to_string())?;
            if path.as_os_str().is_empty() {
                // Volumes are often open to everyone, which sshd refuses.
                rustix::fs::fchown(to, Some(Uid::ROOT), Some(Gid::ROOT))?;
                rustix::fs::fchmod(to, Mode::from_raw_mode(0o755))?;
            }
            anyhow::Ok(())
        };
        finish().with_context(|| format!("cannot set permissions of {}", self.jail.show(path)))
    }

    fn other_name(&self, first: &Path, other: &Path) -> Result<()> {
        let (Some(first_folder), Some(first_name)) = (first.parent(), first.file_name()) else { return Ok(()) };
        let (Some(folder), Some(name)) = (other.parent(), other.file_name()) else { return Ok(()) };
        let (at, to) = (self.jail.dir(first_folder)?, self.jail.dir(folder)?);
        self.clear(to.as_fd(), name)?;
        let from = self.source.dir(folder)?;
        if !copy::hard_link(at.as_fd(), first_name, to.as_fd(), name)? {
            copy::file(from.as_fd(), to.as_fd(), name, &self.lost, &other.display().to_string())?;
        }
        self.finish(folder, &File::from(from), &File::from(to))
    }

    /// Lets a name lead to what the worker has.
    fn link(&self, link: &layout::Link) -> Result<()> {
        let (Some(folder), Some(name)) = (link.at.parent(), link.at.file_name()) else { return Ok(()) };
        let to = self.jail.make_dir(folder)?;
        if tree::stat(&to, name)?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()) {
            tree::remove_all(to.as_fd(), name)?;
        }
        tree::make_part(to.as_fd(), |part| rustix::fs::symlinkat(&link.to, &to, part))?;
        Ok(tree::put(&to, name)?)
    }

    /// Says what to do if the volume is full.
    fn explain(&self, error: Error) -> Error {
        let full = |errno: Errno| matches!(errno, Errno::NOSPC | Errno::DQUOT);
        let is_full = error.chain().any(|cause| {
            let io = cause.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
            io.or_else(|| cause.downcast_ref::<Errno>().copied()).is_some_and(full)
        });
        let (true, Ok(stat)) = (is_full, rustix::fs::fstatvfs(self.jail.root())) else { return error };
        let mebibytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize) >> 20;
        error.context(format!(
            "the volume of the jail is full: it has {} MiB, of which {} MiB are left, and the source has {} MiB in {} files. \
             Enlarge the volume or free some space; what was copied stays",
            mebibytes(stat.f_blocks),
            mebibytes(stat.f_bavail),
            self.inventory.bytes >> 20,
            self.inventory.files
        ))
    }
}

/// Makes a folder, unless there is one. Anything else of that name goes, also a link that leads to a folder.
fn make_folder(to: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    match tree::stat(to, name)? {
        Some(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => return Ok(()),
        Some(_) => tree::remove_all(to, name)?,
        None => {}
    }
    Ok(rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(source: &str, overwrite: bool, request: &str) -> Header {
        Header { source: source.to_owned(), overwrite, request: request.to_owned() }
    }

    #[test]
    fn decides_how_to_start() {
        let add = header("a", false, "");
        let over = header("a", true, "7");
        let seen = |sentinel: Option<&str>, is_old, last: Option<&Header>| Seen {
            sentinel: sentinel.map(str::to_owned),
            is_old,
            last: last.cloned(),
        };
        for (seen, wanted, start) in [
            (seen(None, false, None), &add, Start::Fresh),
            (seen(Some(""), false, None), &add, Start::Nothing),
            (seen(Some(""), true, Some(&add)), &add, Start::Nothing),
            // A jail of soperator, and one that only looks like it because we have begun to copy.
            (seen(None, true, None), &add, Start::Adopt),
            (seen(None, true, Some(&add)), &add, Start::Resume),
            // The image was changed, or overwriting was called off, before the run ended.
            (seen(None, true, Some(&header("b", false, ""))), &add, Start::Fresh),
            (seen(None, true, Some(&over)), &add, Start::Resume),
            // Overwriting is done once per request, and does not trust a run that did not remove anything.
            (seen(Some(""), true, None), &over, Start::Fresh),
            (seen(Some("6"), true, None), &over, Start::Fresh),
            (seen(Some("7"), true, None), &over, Start::Nothing),
            (seen(None, true, Some(&over)), &over, Start::Resume),
            (seen(None, true, Some(&add)), &over, Start::Fresh),
            (seen(None, true, None), &over, Start::Fresh),
            (seen(Some(""), true, None), &header("a", true, ""), Start::Fresh),
        ] {
            assert_eq!(decide(&seen, wanted), start, "{seen:?} {wanted:?}");
        }
    }

    #[test]
    fn the_sentinel_names_the_request() {
        assert!(sentinel("job 7").contains("\nrequest=job 7\n"));
    }
}
