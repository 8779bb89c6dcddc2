//! Settings of a client.

use std::{sync::Arc, time::Duration};

use reqwest::{Url, redirect};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;

use super::{Auth, Call, Client, Error, call::Capabilities, transport::Transport};
use crate::version::RestVersion;

/// How a client is made: [`Client::builder`].
#[derive(Debug)]
pub struct ClientBuilder {
    url: String,
    auth: Option<Auth>,
    user: Option<String>,
    ca: Option<Vec<u8>>,
    rest: Option<RestVersion>,
    timeout: Duration,
    list_timeout: Duration,
    retries: u32,
}

impl ClientBuilder {
    pub(super) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            auth: None,
            user: None,
            ca: None,
            rest: None,
            timeout: Duration::from_secs(5),
            list_timeout: Duration::from_secs(30),
            retries: 1,
        }
    }

    /// Where tokens come from. Without it none is sent, which a slurmrestd that trusts its socket accepts.
    #[must_use]
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = Some(auth);
        self
    }

    /// Sends this user in `X-SLURM-USER-NAME`, too. Most servers take the user from the token.
    #[must_use]
    pub fn user_name(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// For https: trusts the certificates in this PEM text instead of those that the system trusts.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Uses this version instead of the newest that both sides speak.
    #[must_use]
    pub fn rest_version(mut self, rest: RestVersion) -> Self {
        self.rest = Some(rest);
        self
    }

    /// How long a call may take, retries and all. At first 5 s: slurmrestd gives up on a slurmctld that is down after 9.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How long a call may take whose answer may be large: lists of nodes and jobs, accounting. At first 30 s.
    #[must_use]
    pub fn list_timeout(mut self, timeout: Duration) -> Self {
        self.list_timeout = timeout;
        self
    }

    /// How often a call that only reads is tried again after the connection failed. At first once.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Asks the server what it offers and agrees on a version.
    pub async fn connect(self) -> Result<Client, Error> {
        let rest = self.rest;
        let transport = Arc::new(self.transport()?);
        let paths = transport.json(Call::OpenApi).await?;
        Ok(Client::new(transport, Capabilities::negotiate(&paths, rest)?, rest))
    }

    fn transport(self) -> Result<Transport, Error> {
        let base = base_url(&self.url)?;
        let tls = tls(base.scheme() == "https", self.ca.as_deref())?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // A token is for the server it was meant for, not for another that this one or the environment names.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .http1_only()
            .tcp_nodelay(true)
            .pool_idle_timeout(Duration::from_mins(1))
            .build()
            .map_err(|error| Error::Settings { what: format!("no HTTP client: {}", error.without_url()) })?;
        if self.user.as_ref().is_some_and(|user| !user.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(settings("the user name has other than visible ASCII characters in it"));
        }
        Ok(Transport {
            http,
            base,
            auth: self.auth,
            user: self.user,
            timeout: self.timeout,
            list_timeout: self.list_timeout,
            retries: self.retries,
        })
    }
}

fn settings(what: &str) -> Error {
    Error::Settings { what: what.to_owned() }
}

/// The text is not repeated in the errors: whoever puts a password into it would find it in a log.
fn base_url(text: &str) -> Result<Url, Error> {
    let url = Url::parse(text).map_err(|error| Error::Settings { what: format!("the URL cannot be read: {error}") })?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(settings("the URL is not one of http or https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(settings("the URL has a user or a password in it"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(settings("the URL has a query or a fragment"));
    }
    Ok(url)
}

/// The one provider that this project uses, named here so that none needs to be installed for the whole process.
fn tls(https: bool, ca: Option<&[u8]>) -> Result<ClientConfig, Error> {
    let bad = |error: rustls::Error| Error::Settings { what: format!("TLS: {error}") };
    let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(bad)?;
    let builder = match ca {
        Some(pem) => builder.with_root_certificates(roots(pem)?),
        // The system's certificates are looked for only where they are needed.
        None if https => builder.with_platform_verifier().map_err(bad)?,
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| settings("the CA is not a PEM text"))?;
        store.add(certificate).map_err(|_| settings("the CA has a certificate that cannot be read"))?;
    }
    if store.is_empty() {
        return Err(settings("the CA has no certificate in it"));
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn settings_that_make_no_sense() {
        let table = [
            ("", "cannot be read"),
            ("slurm:6820", "not one of http"),
            ("unix:///run/slurm", "not one of http"),
            ("http://user@host", "a user"),
            ("http://:hush@host", "a user or a password"),
            ("http://host/?x=1", "a query"),
            ("http://host/#x", "a fragment"),
        ];
        for (url, expected) in table {
            let error = Client::builder(url).connect().await.unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("hush"), "{url}: {error}");
        }
        let error = Client::builder("http://host").user_name("a\nb").connect().await.unwrap_err();
        assert_eq!(error.class(), "settings");
    }

    #[tokio::test]
    async fn a_ca_must_hold_a_certificate() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in ["", "no PEM at all", broken, "-----BEGIN CERTIFICATE-----\n!"] {
            let error = Client::builder("https://host").ca_pem(pem).connect().await.unwrap_err();
            assert_eq!(error.class(), "settings", "{pem}");
        }
    }
}
