//! What an interrupted run has done: folders whose own files are all in the jail, and on its disk.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat},
    io::Errno,
};

use crate::tree::{self, Tree};

/// The folder of the journal in the jail. It is not there once the jail is populated.
pub const FOLDER: &str = ".slurm-jail";

const FILE: &str = "journal";

/// What a journal is about: the first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Identifies the files that are copied.
    pub source: String,
    /// Whether files that are not in the source are removed.
    pub overwrite: bool,
    /// The request to overwrite that this run belongs to.
    pub request: String,
}

impl Header {
    fn record(&self) -> String {
        format!("slurm-jail 1 {} {} {}", self.source, if self.overwrite { "overwrite" } else { "add" }, self.request)
    }

    fn parse(record: &str) -> Option<Self> {
        let mut words = record.strip_prefix("slurm-jail 1 ")?.splitn(3, ' ');
        let (source, mode, request) = (words.next()?, words.next()?, words.next()?);
        let overwrite = match mode {
            "overwrite" => true,
            "add" => false,
            _ => return None,
        };
        Some(Self { source: source.to_owned(), overwrite, request: request.to_owned() })
    }
}

/// Reads a journal: its header, its folders, and the length of its whole records. A record that was cut off does not count.
fn parse(content: &[u8]) -> Option<(Header, BTreeSet<PathBuf>, usize)> {
    let length = content.iter().rposition(|byte| *byte == 0)?;
    let mut records = content.get(..length)?.split(|byte| *byte == 0);
    let header = Header::parse(std::str::from_utf8(records.next()?).ok()?)?;
    let folders = records.map(|record| PathBuf::from(OsStr::from_bytes(record))).collect();
    Some((header, folders, length + 1))
}

/// The file of the journal, which no other run has.
pub struct Locked {
    file: File,
    content: Vec<u8>,
}

impl Locked {
    /// Waits until no other run has the journal. `stop` may end that.
    pub fn take(jail: &Tree, stop: &dyn Fn() -> Result<()>) -> Result<Self> {
        let what = || format!("cannot open the journal {}", jail.show(&Path::new(FOLDER).join(FILE)));
        // Before it is overwritten, the jail is that of its users: what they put there goes.
        if !matches!(tree::stat(jail.root(), OsStr::new(FOLDER)), Ok(Some(stat)) if file_type(&stat).is_dir()) {
            tree::remove_all(jail.root(), OsStr::new(FOLDER)).with_context(what)?;
        }
        loop {
            stop()?;
            // A run that ends removes the folder: it may be gone as soon as it was made.
            match Self::open(jail) {
                Ok(Some(file)) => {
                    // Where files cannot be locked, two runs only disturb each other: one fails and is tried again.
                    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
                        stop()?;
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    if rustix::fs::fstat(&file).with_context(what)?.st_nlink > 0 {
                        return Self::read(file).with_context(what);
                    }
                }
                Ok(None) => {}
                Err(error) => return Err(error).with_context(what),
            }
        }
    }

    /// Opens the file of the journal; None if its folder was removed meanwhile.
    fn open(jail: &Tree) -> Result<Option<File>> {
        match rustix::fs::mkdirat(jail.root(), FOLDER, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::openat(jail.root(), FOLDER, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o700))?;
        if tree::stat(&folder, OsStr::new(FILE))?.is_some_and(|stat| !file_type(&stat).is_file()) {
            tree::remove_all(folder.as_fd(), OsStr::new(FILE))?;
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&folder, FILE, flags, Mode::from_raw_mode(0o600)) {
            Err(Errno::NOENT) => return Ok(None),
            result => result?,
        };
        rustix::fs::fsync(&folder)?;
        rustix::fs::fsync(jail.root())?;
        Ok(Some(File::from(file)))
    }

    fn read(mut file: File) -> io::Result<Self> {
        let mut content = Vec::new();
        file.read_to_end(&mut content)?;
        Ok(Self { file, content })
    }

    /// What the last run was about, if it did not end.
    pub fn header(&self) -> Option<Header> {
        parse(&self.content).map(|(header, ..)| header)
    }

    /// Begins a run, or goes on with the last one.
    pub fn begin(self, header: &Header, resume: bool, every: Duration) -> Result<Journal> {
        let Self { mut file, content } = self;
        let mut begin = || {
            let before = match parse(&content) {
                Some((_, folders, length)) if resume => {
                    file.set_len(u64::try_from(length)?)?;
                    folders
                }
                _ => {
                    file.set_len(0)?;
                    file.rewind()?;
                    write!(file, "{}\0", header.record())?;
                    BTreeSet::new()
                }
            };
            file.seek(SeekFrom::End(0))?;
            file.sync_all()?;
            anyhow::Ok(before)
        };
        let before = begin().context("cannot write the journal of the jail")?;
        Ok(Journal { file, before, pending: Vec::new(), every, synced: Instant::now() })
    }
}

fn file_type(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Removes the journal, if there is one.
pub fn remove(jail: &Tree) -> Result<()> {
    let Ok(folder) = jail.dir(Path::new(FOLDER)) else { return Ok(()) };
    tree::remove_all(folder.as_fd(), OsStr::new(FILE)).context("cannot remove the journal of the jail")?;
    // Whatever else is there is not ours.
    let _ = rustix::fs::unlinkat(jail.root(), FOLDER, AtFlags::REMOVEDIR);
    Ok(())
}

/// The journal of a run.
pub struct Journal {
    file: File,
    /// Folders that were done before this run.
    before: BTreeSet<PathBuf>,
    /// Folders that are done, but perhaps not on the disk.
    pending: Vec<PathBuf>,
    every: Duration,
    synced: Instant,
}

impl Journal {
    pub fn has(&self, folder: &Path) -> bool {
        self.before.contains(folder)
    }

    /// How many folders were done before this run.
    pub fn before(&self) -> usize {
        self.before.len()
    }

    /// Notes that a folder is done. Whether that is on the disk is seen to from time to time.
    /// True if it was.
    pub fn done(&mut self, jail: &Tree, folder: PathBuf) -> Result<bool> {
        self.pending.push(folder);
        let is_due = self.synced.elapsed() >= self.every;
        if is_due {
            self.sync(jail)?;
        }
        Ok(is_due)
    }

    /// Makes the next run begin anew: the jail does not have what the journal says.
    pub fn discard(&mut self) -> Result<()> {
        self.pending.clear();
        let discard = || self.file.set_len(0).and_then(|()| self.file.sync_all());
        discard().context("cannot write the journal of the jail")
    }

    /// Brings the files of all folders that are done to the disk, and then the records of these folders.
    pub fn sync(&mut self, jail: &Tree) -> Result<()> {
        rustix::fs::syncfs(jail.root()).context("cannot write the jail to its disk")?;
        let mut records = Vec::new();
        for folder in self.pending.drain(..) {
            records.extend_from_slice(folder.as_os_str().as_bytes());
            records.push(0);
        }
        let mut write = || {
            self.file.write_all(&records)?;
            self.file.sync_data()
        };
        write().context("cannot write the journal of the jail")?;
        self.synced = Instant::now();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header { source: "0123".to_owned(), overwrite: true, request: "job 7".to_owned() }
    }

    #[test]
    fn a_header_is_read_back() {
        for header in [header(), Header { overwrite: false, request: String::new(), ..header() }] {
            assert_eq!(Header::parse(&header.record()), Some(header));
        }
        for bad in ["", "slurm-jail 2 0123 add ", "slurm-jail 1 0123 other ", "slurm-jail 1 0123"] {
            assert_eq!(Header::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_record_that_was_cut_off_does_not_count() {
        let content = format!("{}\0usr\0usr/b\u{e9}\0usr/li", header().record());
        let (read, folders, length) = parse(content.as_bytes()).unwrap();
        assert_eq!((read, length), (header(), content.len() - "usr/li".len()));
        assert_eq!(folders.len(), 2);
        assert!(folders.contains(Path::new("usr")));
    }

    #[test]
    fn what_is_no_journal_is_none() {
        for content in ["", "slurm-jail 1 0123 add ", "something\0usr\0"] {
            assert!(parse(content.as_bytes()).is_none(), "{content}");
        }
    }
}
