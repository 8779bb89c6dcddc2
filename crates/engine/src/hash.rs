//! Hashes that detect changes.

use std::{collections::BTreeMap, fmt::Write};

use sha2::{Digest, Sha256};

/// Hashes contents in the order of their names. Returns an empty string for no contents.
pub fn hash<'a, B: AsRef<[u8]> + ?Sized + 'a>(contents: impl IntoIterator<Item = (&'a str, &'a B)>) -> String {
    let sorted: BTreeMap<&str, &B> = contents.into_iter().collect();
    if sorted.is_empty() {
        return String::new();
    }
    let mut hasher = Sha256::new();
    for content in sorted.values() {
        hasher.update(content);
    }
    hex(&hasher.finalize())
}

/// Hashes the names and contents of files: renaming one, or moving a line from one to another, is a change.
pub fn hash_of_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    let sorted: BTreeMap<&str, &[u8]> = files.into_iter().collect();
    let mut hasher = Sha256::new();
    for (name, content) in sorted {
        for part in [name.as_bytes(), content] {
            hasher.update(part.len().to_le_bytes());
            hasher.update(part);
        }
    }
    hex(&hasher.finalize())
}

/// Hashes files as `sha256sum * | sha256sum` does in the directory that has them.
pub fn hash_of_sums<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    let sorted: BTreeMap<&str, &[u8]> = files.into_iter().collect();
    let mut hasher = Sha256::new();
    for (name, content) in sorted {
        hasher.update(format!("{}  {name}\n", hex(&Sha256::digest(content))));
    }
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::{hash, hash_of_files};

    #[test]
    fn hashes_depend_on_content_in_the_order_of_names() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash([("x", "abc")]), abc);
        assert_eq!(hash([("2", "c"), ("1", "ab")]), abc);
        assert_eq!(hash([("1", "c"), ("2", "ab")]).len(), 64);
        assert_ne!(hash([("1", "c"), ("2", "ab")]), abc);
        assert_eq!(hash::<str>([]), "");
    }

    #[test]
    fn files_differ_by_name_and_border() {
        let of = |files: &[(&'static str, &'static str)]| {
            hash_of_files(files.iter().map(|(name, content)| (*name, content.as_bytes())))
        };
        let one = of(&[("gres.cfg", "ab"), ("x.conf", "c")]);
        assert_eq!(one, of(&[("x.conf", "c"), ("gres.cfg", "ab")]));
        assert_ne!(one, of(&[("gres.conf", "ab"), ("x.conf", "c")]));
        assert_ne!(one, of(&[("gres.cfg", "a"), ("x.conf", "bc")]));
    }
}
