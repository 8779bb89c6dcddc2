//! Folders for tests, and what is in them.

use std::{
    collections::BTreeMap,
    fs,
    num::NonZeroUsize,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use jail::{
    populate::Options,
    tree::{self, Tree},
};
use rustix::fs::FileType;

/// A folder that is removed at the end of the test.
pub struct Temp(pub PathBuf);

impl Temp {
    /// In memory, if possible: everything is brought to the disk after each step.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        if memory.is_dir() { Self::in_folder(memory) } else { Self::on_disk() }
    }

    pub fn on_disk() -> Self {
        Self::in_folder(&std::env::temp_dir())
    }

    fn in_folder(folder: &Path) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("slurm-jail-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// A folder in it.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let parent = Tree::open(self.0.parent().unwrap()).unwrap();
        tree::remove_all(parent.root(), self.0.file_name().unwrap()).unwrap();
    }
}

pub fn options(source: &Path, jail: &Path) -> Options {
    Options {
        source: source.to_owned(),
        jail: jail.to_owned(),
        overwrite: false,
        request: String::new(),
        threads: NonZeroUsize::new(4).unwrap(),
        arch: "x86_64",
        sync: Duration::ZERO,
    }
}

/// A file as a copy must have it.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: (i64, u64),
    /// The content of a file, the target of a link.
    pub content: Vec<u8>,
}

/// All files of a tree. `ignored` and what is below are left out.
pub fn files(root: &Path, ignored: &[PathBuf]) -> BTreeMap<PathBuf, Found> {
    let tree = Tree::open(root).unwrap();
    let mut found = BTreeMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(path) = open.pop() {
        let folder = tree.dir(&path).unwrap();
        for name in tree::list(&folder).unwrap() {
            let path = path.join(&name);
            if ignored.contains(&path) {
                continue;
            }
            let stat = tree::stat(&folder, &name).unwrap().unwrap();
            let content = match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => tree.read(&path).unwrap().unwrap(),
                FileType::Symlink => rustix::fs::readlinkat(&folder, &name, Vec::new()).unwrap().into_bytes(),
                FileType::Directory => {
                    open.push(path.clone());
                    Vec::new()
                }
                kind => panic!("{} is a {kind:?}", path.display()),
            };
            let modified = (stat.st_mtime, stat.st_mtime_nsec);
            found.insert(path, Found { mode: stat.st_mode, owner: (stat.st_uid, stat.st_gid), modified, content });
        }
    }
    found
}

/// Writes a file with all folders above it.
pub fn write(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// The inode of a file: another one after it was replaced.
pub fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}
