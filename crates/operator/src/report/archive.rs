//! Files as a compressed archive.

use std::{collections::BTreeMap, fs::OpenOptions, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use tar::{Builder, Header};

/// Packs files, by their paths, into one folder.
pub fn pack(folder: &str, files: &BTreeMap<String, String>, now: Timestamp) -> Result<Vec<u8>> {
    let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (path, text) in files {
        let mut header = Header::new_gnu();
        header.set_size(u64::try_from(text.len())?);
        header.set_mode(0o644);
        header.set_mtime(u64::try_from(now.as_second()).unwrap_or_default());
        archive
            .append_data(&mut header, format!("{folder}/{path}"), text.as_bytes())
            .with_context(|| format!("cannot pack {path}"))?;
    }
    Ok(archive.into_inner()?.finish()?)
}

/// Writes the archive, readable by the user only: what nobody has looked through yet is not for others.
pub fn save(path: &Path, bytes: &[u8]) -> Result<()> {
    let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = options.and_then(|mut file| file.write_all(bytes));
    written.with_context(|| format!("cannot write {}: choose another file with --output", path.display()))
}
