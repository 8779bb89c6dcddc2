//! Client settings.

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

/// Builder of a client, from [`Client::builder`].
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
    hides_answers: bool,
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
            hides_answers: false,
        }
    }

    /// Sets the token source. Without one no token is sent; a slurmrestd that authenticates by its socket accepts that.
    #[must_use]
    pub fn auth(mut self, auth: Auth) -> Self {
        self.auth = Some(auth);
        self
    }

    /// Also sends this user in `X-SLURM-USER-NAME`. Most servers take the user from the token.
    #[must_use]
    pub fn user_name(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// For https: trusts the CA certificates in this PEM text instead of the system's.
    #[must_use]
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.ca = Some(pem.into());
        self
    }

    /// Uses this REST version instead of the newest that both sides support.
    #[must_use]
    pub fn rest_version(mut self, rest: RestVersion) -> Self {
        self.rest = Some(rest);
        self
    }

    /// Time limit of a call, including retries. Defaults to 5 s: slurmrestd gives up on a slurmctld that is down after
    /// 9 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Time limit of a call with a large response: lists of nodes and jobs, accounting. Defaults to 30 s.
    #[must_use]
    pub fn list_timeout(mut self, timeout: Duration) -> Self {
        self.list_timeout = timeout;
        self
    }

    /// Number of retries of a read-only call after a connection failure. Defaults to 1.
    #[must_use]
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Errors do not repeat what the server answered, unless it is an error in Slurm's format. For a server that somebody has named
    /// who may not be allowed to read its answers.
    #[must_use]
    pub fn hide_answers(mut self) -> Self {
        self.hides_answers = true;
        self
    }

    /// Connects and negotiates the REST version.
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
            // The token must only go to the configured server, not to a redirect target or a proxy from the
            // environment.
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .http1_only()
            .tcp_nodelay(true)
            .pool_idle_timeout(Duration::from_mins(1))
            .build()
            .map_err(|error| Error::Settings { what: format!("no HTTP client: {}", error.without_url()) })?;
        if self.user.as_ref().is_some_and(|user| !user.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(settings("the user name contains characters other than visible ASCII"));
        }
        Ok(Transport {
            http,
            base,
            auth: self.auth,
            user: self.user,
            timeout: self.timeout,
            list_timeout: self.list_timeout,
            retries: self.retries,
            hides_answers: self.hides_answers,
        })
    }
}

fn settings(what: &str) -> Error {
    Error::Settings { what: what.to_owned() }
}

/// Errors do not contain the URL: it may include a password that would end up in a log.
fn base_url(text: &str) -> Result<Url, Error> {
    let url = Url::parse(text).map_err(|error| Error::Settings { what: format!("invalid URL: {error}") })?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(settings("the URL must start with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(settings("the URL must not contain a user or a password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(settings("the URL must not have a query or a fragment"));
    }
    Ok(url)
}

/// Names the crypto provider explicitly, so that no process-wide default has to be installed.
fn tls(https: bool, ca: Option<&[u8]>) -> Result<ClientConfig, Error> {
    let bad = |error: rustls::Error| Error::Settings { what: format!("TLS: {error}") };
    let no_roots = |error: rustls::Error| Error::Settings {
        what: format!("TLS: {error}: name the certificate authority of slurmrestd, or use an image with public ones"),
    };
    let provider: Arc<CryptoProvider> = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(bad)?;
    let builder = match ca {
        Some(pem) => builder.with_root_certificates(roots(pem)?),
        // The system's certificates are loaded only when needed.
        None if https => builder.with_platform_verifier().map_err(no_roots)?,
        None => builder.with_root_certificates(RootCertStore::empty()),
    };
    Ok(builder.with_no_client_auth())
}

fn roots(pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| settings("the CA is not valid PEM"))?;
        store.add(certificate).map_err(|_| settings("the CA contains an invalid certificate"))?;
    }
    if store.is_empty() {
        return Err(settings("the CA contains no certificate"));
    }
    Ok(store)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn invalid_settings_are_rejected() {
        let table = [
            ("", "invalid URL"),
            ("slurm:6820", "must start with http"),
            ("unix:///run/slurm", "must start with http"),
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
