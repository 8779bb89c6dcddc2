//! New host keys of sshd, as `ssh-keygen -A` makes them.
//!
//! The TLS library generates them. Only their encoding is written here, because OpenSSH before 9.6 reads Ed25519 keys in no
//! other one than its own (PROTOCOL.key of OpenSSH, RFC 4251 and RFC 4253).

use std::collections::BTreeMap;

use aws_lc_rs::{
    encoding::{AsBigEndian, AsDer, Curve25519SeedBin, EcPrivateKeyBin, Pkcs8V1Der},
    error::Unspecified,
    rsa::{self, KeySize},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair},
};
use base64::{Engine, engine::general_purpose::STANDARD};

use crate::random::{self, NoRandomness};

/// One key of each type, by the names of their files. This takes up to a few seconds.
pub fn generate() -> Result<BTreeMap<String, String>, NoRandomness> {
    let mut files = BTreeMap::new();
    for (name, key) in [("ecdsa", ecdsa()), ("ed25519", ed25519()), ("rsa", rsa())] {
        let key = key.map_err(|Unspecified| NoRandomness)?;
        files.insert(format!("ssh_host_{name}_key"), key.private_file()?);
        files.insert(format!("ssh_host_{name}_key.pub"), key.public_file());
    }
    Ok(files)
}

struct HostKey {
    type_: &'static str,
    /// The encoded fields of the public key.
    public: Vec<u8>,
    /// The encoded fields of the private key.
    private: Vec<u8>,
}

fn ecdsa() -> Result<HostKey, Unspecified> {
    const CURVE: &[u8] = b"nistp256";
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)?;
    let point = pair.public_key().as_ref();
    let secret: EcPrivateKeyBin = pair.private_key().as_be_bytes()?;
    Ok(HostKey {
        type_: "ecdsa-sha2-nistp256",
        public: strings(&[CURVE, point]),
        private: strings(&[CURVE, point, &integer(secret.as_ref())]),
    })
}

fn ed25519() -> Result<HostKey, Unspecified> {
    let pair = Ed25519KeyPair::generate()?;
    let public = pair.public_key().as_ref();
    let seed: Curve25519SeedBin = pair.seed()?.as_be_bytes()?;
    Ok(HostKey {
        type_: "ssh-ed25519",
        public: strings(&[public]),
        private: strings(&[public, &[seed.as_ref(), public].concat()]),
    })
}

fn rsa() -> Result<HostKey, Unspecified> {
    let der: Pkcs8V1Der = rsa::KeyPair::generate(KeySize::Rsa4096)?.as_der()?;
    // PrivateKeyInfo (RFC 5208) contains RSAPrivateKey (RFC 8017). Integers in DER are encoded as in SSH.
    let of = |found: Vec<_>| found.first().copied().ok_or(Unspecified);
    let info = of(elements(der.as_ref()))?;
    let [_, _, key] = *elements(info) else { return Err(Unspecified) };
    let [_, modulus, public, private, prime1, prime2, _, _, inverse] = *elements(of(elements(key))?) else {
        return Err(Unspecified);
    };
    Ok(HostKey {
        type_: "ssh-rsa",
        public: strings(&[public, modulus]),
        private: strings(&[modulus, public, private, inverse, prime1, prime2]),
    })
}

/// The contents of the elements of a DER sequence, as far as they are complete.
fn elements(mut der: &[u8]) -> Vec<&[u8]> {
    fn first(der: &[u8]) -> Option<(&[u8], &[u8])> {
        let [_tag, length, rest @ ..] = der else { return None };
        let (length, rest) = if *length < 0x80 {
            (usize::from(*length), rest)
        } else {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte)), rest)
        };
        rest.split_at_checked(length)
    }
    let mut found = Vec::new();
    while let Some((element, rest)) = first(der) {
        found.push(element);
        der = rest;
    }
    found
}

/// A positive integer without needless zeros, but with one if it would look negative.
fn integer(bytes: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
    let sign = digits.first().is_some_and(|first| *first >= 0x80);
    sign.then_some(0).into_iter().chain(digits).collect()
}

/// Strings, each after its length.
fn strings(parts: &[&[u8]]) -> Vec<u8> {
    let length = |part: &[u8]| u32::try_from(part.len()).unwrap_or(u32::MAX).to_be_bytes();
    parts.iter().flat_map(|part| [&length(part), *part].concat()).collect()
}

impl HostKey {
    fn public(&self) -> Vec<u8> {
        [strings(&[self.type_.as_bytes()]), self.public.clone()].concat()
    }

    fn public_file(&self) -> String {
        format!("{} {}\n", self.type_, STANDARD.encode(self.public()))
    }

    fn private_file(&self) -> Result<String, NoRandomness> {
        // Twice the same number shows that it was decrypted well, and so it is there also without encryption.
        let check: [u8; 4] = random::bytes()?;
        let type_ = strings(&[self.type_.as_bytes()]);
        let comment = strings(&[b""]);
        let mut secret = [check.as_slice(), &check, &type_, &self.private, &comment].concat();
        let padding = (1..8_u8).take(secret.len().next_multiple_of(8) - secret.len());
        secret.extend(padding);
        let unencrypted = strings(&[b"none", b"none", b""]);
        let number = 1_u32.to_be_bytes();
        let parts = strings(&[&self.public(), &secret]);
        let encoded = STANDARD.encode([b"openssh-key-v1\0".as_slice(), &unencrypted, &number, &parts].concat());
        let lines: Vec<&str> =
            encoded.as_bytes().chunks(70).filter_map(|line| std::str::from_utf8(line).ok()).collect();
        Ok(format!("-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----\n", lines.join("\n")))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, process::Command};

    use super::*;

    #[test]
    fn there_is_one_key_of_each_type_and_never_the_same() {
        let (one, other) = (generate().unwrap(), generate().unwrap());
        let names: Vec<&str> = one.keys().map(String::as_str).collect();
        let public = engine::daemons::login::HOST_KEYS.map(|key| format!("{key}.pub"));
        let expected: Vec<&str> = engine::daemons::login::HOST_KEYS
            .into_iter()
            .zip(&public)
            .flat_map(|(key, public)| [key, public])
            .collect();
        assert_eq!(names, expected);
        assert!(one.iter().all(|(name, text)| other[name] != *text));
        assert!(one["ssh_host_ed25519_key.pub"].starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI"));
    }

    /// OpenSSH itself says whether it can read them, where it is installed. The tests on a cluster always do.
    #[test]
    fn openssh_finds_the_public_key_in_the_private_one() {
        let folder = std::env::temp_dir().join(format!("slurm-operator-host-keys-{}", random::id().unwrap()));
        fs::create_dir(&folder).unwrap();
        let files = generate().unwrap();
        for name in engine::daemons::login::HOST_KEYS {
            let (path, text) = (folder.join(name), &files[name]);
            let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            let Ok(output) = Command::new("ssh-keygen").arg("-y").arg("-f").arg(&path).output() else { break };
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), files[&format!("{name}.pub")].trim(), "{name}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn integers_are_positive_and_short() {
        for (bytes, expected) in [
            (&[0, 0, 1][..], &[1][..]),
            (&[0x80, 1], &[0, 0x80, 1]),
            (&[0, 0x80], &[0, 0x80]),
            (&[0x7f, 0], &[0x7f, 0]),
        ] {
            assert_eq!(integer(bytes), expected);
        }
    }

    #[test]
    fn elements_of_der_may_be_short_long_or_cut_off() {
        let long = [&[4, 0x82, 1, 0][..], &[7; 256]].concat();
        assert_eq!(elements(&[&[2, 1, 5][..], &long].concat()), [&[5][..], &[7; 256]]);
        assert_eq!(elements(&[2, 1, 5, 4, 0x82, 1]), [&[5][..]]);
        assert_eq!(elements(&[2, 9, 5]), Vec::<&[u8]>::new());
    }
}
