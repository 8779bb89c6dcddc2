//! slurmdbd.conf

use std::fmt;

use slurm::conf::{ConfBuilder, ConfError, Extra};
use slurm_operator_api::common::port;

use super::{ConfigError, extra};

/// Where slurmdbd finds the certificates for its database.
pub const TLS_FOLDER: &str = "/etc/storage-tls";

/// The input for slurmdbd.conf.
#[derive(Clone, Debug)]
pub struct SlurmdbdModel<'a> {
    /// The hostname of slurmdbd's pod.
    pub host: String,
    pub storage: Storage<'a>,
    /// Whether there is a JWKS file, for tokens signed by others.
    pub jwks: bool,
    /// The user's lines for the end of slurmdbd.conf.
    pub extra: &'a str,
}

/// The database.
#[derive(Clone)]
pub struct Storage<'a> {
    pub host: &'a str,
    pub port: u16,
    pub database: &'a str,
    /// `None`: the user that slurmdbd runs as.
    pub user: Option<&'a str>,
    pub password: &'a str,
    /// Whether there is a file with the certificate authority.
    pub has_ca: bool,
    /// Whether there are files with a client certificate and its key.
    pub has_client_certificate: bool,
}

/// Without the password.
impl fmt::Debug for Storage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}/{}", self.host, self.port, self.database)
    }
}

/// slurmdbd.conf. The user's lines come last and win, except that lists that both set are merged.
pub fn slurmdbd_conf(model: &SlurmdbdModel) -> Result<String, ConfigError> {
    let notation = |at: &str, error: ConfError| ConfigError::Notation { at: at.to_owned(), error };
    let extra: Extra = extra(model.extra)?;
    let mut conf = ConfBuilder::new();
    general(&mut conf, model).map_err(|error| notation("slurmdbd.conf", error))?;
    storage(&mut conf, &model.storage).map_err(|error| notation("spec.storageConfig", error))?;
    let logging = conf.section("LOGGING").and_then(|conf| conf.word("LogFile", "/dev/null"));
    logging.map_err(|error| notation("slurmdbd.conf", error))?;
    conf.render(&extra).map_err(|error| notation("spec.extraConf", error))
}

fn general(conf: &mut ConfBuilder, model: &SlurmdbdModel) -> Result<(), ConfError> {
    let jwks = model.jwks.then_some("jwks=/etc/slurm/jwks.json");
    conf.section("GENERAL")?
        .name("DbdHost", &model.host)?
        // The schema of ports excludes negative values.
        .number("DbdPort", port::SLURMDBD.unsigned_abs())?
        .name("SlurmUser", "slurm")?
        .section("PLUGINS & PARAMETERS")?
        .word("AuthType", "auth/slurm")?
        .word("AuthAltTypes", "auth/jwt")?
        .list("AuthAltParameters", ["jwt_key=/etc/slurm/jwt.key"].into_iter().chain(jwks))?
        .list("AuthInfo", ["use_client_ids"])?;
    Ok(())
}

fn storage(conf: &mut ConfBuilder, storage: &Storage) -> Result<(), ConfError> {
    conf.section("STORAGE")?
        .word("StorageType", "accounting_storage/mysql")?
        .word("StorageHost", storage.host)?
        .number("StoragePort", storage.port)?;
    if let Some(user) = storage.user {
        conf.text("StorageUser", user)?;
    }
    let ca = storage.has_ca.then(|| format!("SSL_CA={TLS_FOLDER}/ca.crt"));
    let file = |key: &str, file: &str| storage.has_client_certificate.then(|| format!("{key}={TLS_FOLDER}/{file}"));
    let parameters = [ca, file("SSL_CERT", "tls.crt"), file("SSL_KEY", "tls.key")];
    conf.text("StorageLoc", storage.database)?
        .text("StoragePass", storage.password)?
        .list("StorageParameters", parameters.iter().flatten().map(String::as_str))?;
    Ok(())
}
