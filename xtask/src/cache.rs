//! Build results: a file or folder in the cache, named by the hash of its inputs.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::paths;

/// What a build result depends on.
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

/// The path of the result with this name and these inputs.
pub fn place(name: &str, hash: &str) -> PathBuf {
    paths::cache().join(format!("{name}-{hash}"))
}

/// Held by the thread that builds something of this name.
fn builder(name: &str) -> Arc<Mutex<()>> {
    static BUILDERS: Mutex<BTreeMap<String, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    BUILDERS.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default().clone()
}

/// The result, from the cache or built now. `make` gets a path to fill, which appears under its final name only
/// when it is whole, so that a killed run leaves nothing that looks finished.
pub fn get(name: &str, hash: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let builder = builder(name);
    let _builds = builder.lock().unwrap_or_else(PoisonError::into_inner);
    let path = place(name, hash);
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(paths::cache()).context("cannot make the cache")?;
    let partial = paths::cache().join(format!("{name}.partial"));
    remove(&partial)?;
    make(&partial)?;
    fs::rename(&partial, &path).with_context(|| format!("cannot move {} into place", path.display()))?;
    remove_others(name, &path)?;
    Ok(path)
}

/// Removes older results of the same name; without this the cache would grow with every change.
fn remove_others(name: &str, keep: &Path) -> Result<()> {
    for entry in fs::read_dir(paths::cache())? {
        let path = entry?.path();
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let has_same_name = file
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|hash| hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()));
        if has_same_name && path != keep {
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
