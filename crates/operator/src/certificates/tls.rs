//! HTTPS with a certificate that can be replaced at any time.

use std::{
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result};
use axum::{Router, serve::Listener};
use rustls::{
    ServerConfig,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::lock::lock;

/// A client that does not finish the handshake must not stay.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The certificate in use. Clones share it.
#[derive(Clone, Default)]
pub struct Current(Arc<Mutex<Option<Arc<CertifiedKey>>>>);

impl Current {
    /// Uses this certificate for new connections.
    pub fn set(&self, certificate: &str, key: &str) -> Result<()> {
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate.as_bytes())
            .collect::<Result<_, _>>()
            .context("cannot read the certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context("cannot read the key of the certificate")?;
        let certified = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .context("the key does not belong to the certificate")?;
        *lock(&self.0) = Some(Arc::new(certified));
        Ok(())
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        lock(&self.0).clone()
    }
}

/// Serves over TLS.
pub async fn serve(listener: TcpListener, current: Current, router: Router) -> Result<()> {
    axum::serve(TlsListener::new(listener, current)?, router).await.context("the HTTPS server stopped")
}

/// Accepts connections over TLS.
pub struct TlsListener {
    accepted: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    pub fn new(listener: TcpListener, current: Current) -> Result<Self> {
        let address = listener.local_addr().context("cannot find the address of the server")?;
        let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .context("cannot configure TLS")?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(current));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (sender, accepted) = mpsc::channel(16);
        tokio::spawn(accept(listener, acceptor, sender));
        Ok(Self { accepted, address })
    }
}

/// Handshakes run side by side: a client that is slow keeps nobody waiting.
async fn accept(
    mut listener: TcpListener,
    acceptor: TlsAcceptor,
    sender: mpsc::Sender<(TlsStream<TcpStream>, SocketAddr)>,
) {
    loop {
        // The one of axum, which waits when there are too many open files.
        let (stream, address) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = sender.closed() => return,
        };
        let (acceptor, sender) = (acceptor.clone(), sender.clone());
        tokio::spawn(async move {
            match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => drop(sender.send((stream, address)).await),
                Ok(Err(error)) => tracing::debug!(%address, "TLS handshake failed: {error}"),
                Err(_) => tracing::debug!(%address, "TLS handshake took too long"),
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        match self.accepted.recv().await {
            Some(accepted) => accepted,
            // The task above runs as long as this exists.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}
