//! What there is to copy.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    hash::{DefaultHasher, Hash, Hasher},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::FileType;

use crate::{
    journal, layout,
    tree::{self, Tree},
};

/// A file that has several names.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherName {
    pub first: PathBuf,
    pub other: PathBuf,
}

/// The content of a source.
#[derive(Debug, Default)]
pub struct Inventory {
    pub files: u64,
    pub bytes: u64,
    pub folders: u64,
    /// Further names of files, each after its first one.
    pub other_names: Vec<OtherName>,
    /// Devices, sockets and pipes: a jail gets those of its worker.
    pub left_out: u64,
    /// Differs when the source does.
    pub fingerprint: String,
}

/// Paths of a source that are not copied: what says that the jail is populated, and what becomes a link.
pub fn left_alone(arch: &str) -> BTreeSet<PathBuf> {
    let ours = [layout::SENTINEL, layout::OLD_SENTINEL, journal::FOLDER].map(PathBuf::from);
    ours.into_iter().chain(layout::links(arch).into_iter().map(|link| link.at)).collect()
}

/// Looks at all files of a source, but those that are left alone.
pub fn scan(source: &Tree, left_alone: &BTreeSet<PathBuf>, stop: &dyn Fn() -> Result<()>) -> Result<Inventory> {
    let mut inventory = Inventory::default();
    // The same in all processes: a source is recognised by the next run.
    let mut hasher = DefaultHasher::new();
    let mut first_names = BTreeMap::new();
    let mut open = vec![PathBuf::new()];
    while let Some(path) = open.pop() {
        stop()?;
        inventory.folders += 1;
        let folder = source.dir(&path)?;
        for name in tree::list(&folder).with_context(|| format!("cannot read the folder {}", source.show(&path)))? {
            let path = path.join(&name);
            if left_alone.contains(&path) {
                continue;
            }
            let stat = tree::stat(folder.as_fd(), &name);
            let Some(stat) = stat.with_context(|| format!("cannot look at {}", source.show(&path)))? else { continue };
            (&path, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_size, stat.st_mtime).hash(&mut hasher);
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => open.push(path),
                FileType::RegularFile if stat.st_nlink > 1 => match first_names.entry((stat.st_dev, stat.st_ino)) {
                    Entry::Vacant(entry) => {
                        entry.insert(path);
                        inventory.files += 1;
                        inventory.bytes += u64::try_from(stat.st_size).unwrap_or_default();
                    }
                    Entry::Occupied(entry) => {
                        let first = entry.get().clone();
                        inventory.other_names.push(OtherName { first, other: path });
                    }
                },
                FileType::RegularFile => {
                    inventory.files += 1;
                    inventory.bytes += u64::try_from(stat.st_size).unwrap_or_default();
                }
                FileType::Symlink => inventory.files += 1,
                _ => inventory.left_out += 1,
            }
        }
    }
    inventory.fingerprint = format!("{:016x}", hasher.finish());
    if source.look(Path::new("etc"))?.is_none_or(|stat| !FileType::from_raw_mode(stat.st_mode).is_dir()) {
        bail!("{} holds no root file system: it has no folder etc", source.show(Path::new("")));
    }
    Ok(inventory)
}
