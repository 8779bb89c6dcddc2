//! Things built once: a file or folder in the cache, named after the hash of what it was built from.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::paths;

/// What a built thing depends on.
#[derive(Default)]
pub struct Inputs(Sha256);

impl Inputs {
    pub fn text(mut self, text: &str) -> Self {
        // The length keeps neighbours apart.
        self.0.update(text.len().to_le_bytes());
        self.0.update(text.as_bytes());
        self
    }

    /// A file's content, or everything below a folder, with names.
    pub fn path(mut self, path: &Path) -> Result<Self> {
        if path.is_dir() {
            let mut entries: Vec<PathBuf> = fs::read_dir(path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .map(|entry| entry.map(|e| e.path()))
                .collect::<Result<_, _>>()?;
            entries.sort();
            for entry in entries {
                self = self.text(&entry.file_name().unwrap_or_default().to_string_lossy()).path(&entry)?;
            }
        } else {
            let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            self.0.update(bytes.len().to_le_bytes());
            self.0.update(&bytes);
        }
        Ok(self)
    }

    pub fn hash(self) -> String {
        self.0.finalize().iter().take(8).fold(String::new(), |mut hash, byte| {
            let _ = write!(hash, "{byte:02x}");
            hash
        })
    }
}

/// Where the thing with this name and these inputs is, or would be.
pub fn place(name: &str, hash: &str) -> PathBuf {
    paths::cache().join(format!("{name}-{hash}"))
}

/// The built thing, from the cache or made now. `make` gets a path to fill, which appears under its final name only
/// when it is whole, so that a killed run leaves nothing that looks finished.
pub fn get(name: &str, hash: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = place(name, hash);
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(paths::cache()).context("cannot make the cache")?;
    let partial = paths::cache().join(format!("{name}.partial"));
    remove(&partial)?;
    make(&partial)?;
    fs::rename(&partial, &path).with_context(|| format!("cannot move {} into place", path.display()))?;
    forget_others(name, &path)?;
    Ok(path)
}

/// Older builds of the same thing are of no use to anybody once there is a newer one; without this the cache would
/// grow with every change.
fn forget_others(name: &str, keep: &Path) -> Result<()> {
    for entry in fs::read_dir(paths::cache())? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let is_same_thing = file
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
        if is_same_thing && path != keep {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Removes a file or a folder, if it is there.
pub fn remove(path: &Path) -> Result<()> {
    let gone = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    gone.with_context(|| format!("cannot remove {}", path.display()))
}
