//! The cluster's certificates and the kubeconfigs that carry them.

use std::{fs, net::IpAddr, path::Path};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

/// The certificate authority; its key never touches the disk.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub certificate: String,
}

pub struct Pair {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "slurm-operator-dev");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("cannot make a key")?;
        let certificate = params.self_signed(&key).context("cannot sign the authority")?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// A certificate for a user or component, valid at these names and addresses.
    pub fn issue(&self, user: &str, group: Option<&str>, names: &[&str], addresses: &[IpAddr]) -> Result<Pair> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        for name in names {
            params.subject_alt_names.push(SanType::DnsName((*name).try_into().context("not a DNS name")?));
        }
        params.subject_alt_names.extend(addresses.iter().copied().map(SanType::IpAddress));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().context("cannot make a key")?;
        let certificate = params.signed_by(&key, &self.issuer).with_context(|| format!("cannot sign {user}"))?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// A kubeconfig that needs no other file, readable by us only.
    pub fn kubeconfig(&self, path: &Path, server: &str, user: &str, group: Option<&str>) -> Result<()> {
        let pair = self.issue(user, group, &[], &[])?;
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "slurm-operator-dev",
            "clusters": [{"name": "slurm-operator-dev", "cluster": {
                "server": server,
                "certificate-authority-data": base64(self.certificate.as_bytes()),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": base64(pair.certificate.as_bytes()),
                "client-key-data": base64(pair.key.as_bytes()),
            }}],
            "contexts": [{"name": "slurm-operator-dev", "context": {"cluster": "slurm-operator-dev", "user": user}}],
        });
        write_private(path, &serde_json::to_string_pretty(&config)?)
    }
}

impl Pair {
    /// Writes `<stem>.crt` and `<stem>.key`.
    pub fn write(&self, dir: &Path, stem: &str) -> Result<()> {
        write_private(&dir.join(format!("{stem}.crt")), &self.certificate)?;
        write_private(&dir.join(format!("{stem}.key")), &self.key)
    }
}

/// A key pair for service account tokens: `<stem>.key` and `<stem>.pub`.
pub fn write_key_pair(dir: &Path, stem: &str) -> Result<()> {
    let key = KeyPair::generate().context("cannot make a key")?;
    write_private(&dir.join(format!("{stem}.key")), &key.serialize_pem())?;
    write_private(&dir.join(format!("{stem}.pub")), &key.public_key_pem())
}

pub fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let mut file = fs::File::options()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}

fn base64(bytes: &[u8]) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode(bytes)
}
