//! The connection to slurmrestd.

use std::{fmt, path::PathBuf, time::Duration};

use engine::plan::ClusterKey;
use jiff::SignedDuration;
use slurm::{
    client::{Auth, Client, ClientBuilder, Error},
    token::Token,
};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    frontends,
    slurm_view::{EndpointLookup, describe},
};

/// Timeout of a call with a short answer.
const CALL: Duration = Duration::from_secs(10);

/// Timeout of a list.
const LIST: Duration = Duration::from_secs(30);

/// Lifetime of tokens that are signed here.
const LIFETIME: SignedDuration = SignedDuration::from_mins(15);

/// A slurmrestd, and who says what it needs.
pub(super) enum Origin {
    Url {
        url: String,
        ca_file: Option<PathBuf>,
        tokens: TokenSource,
    },
    /// The endpoint of a Controller, and its key. The URL and the certificate authority may be others.
    Controller {
        client: kube::Client,
        cluster: ClusterKey,
        url: Option<String>,
        ca_file: Option<PathBuf>,
    },
}

/// Where tokens come from.
pub(super) enum TokenSource {
    /// From nowhere: slurmrestd knows its clients by their socket.
    None,
    Static(Token),
    File(PathBuf),
    Scontrol {
        path: PathBuf,
        lifetime: Duration,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url { url, .. } | Self::Controller { url: Some(url), .. } => f.write_str(url),
            Self::Controller { cluster, .. } => write!(f, "Controller {}/{}", cluster.namespace, cluster.name),
        }
    }
}

impl TokenSource {
    fn auth(&self) -> Option<Auth> {
        match self {
            Self::None => None,
            Self::Static(token) => Some(Auth::token(token.clone())),
            Self::File(path) => Some(Auth::file(path)),
            Self::Scontrol { path, lifetime } => {
                Some(Auth::command(path, ["token".to_owned(), format!("lifespan={}", lifetime.as_secs())]))
            }
        }
    }
}

impl Origin {
    /// What a client needs, as it is now.
    async fn builder(&self) -> Result<ClientBuilder, String> {
        let (builder, ca_file) = match self {
            Self::Url { url, ca_file, tokens } => {
                let builder = Client::builder(url);
                let builder = if let Some(auth) = tokens.auth() { builder.auth(auth) } else { builder };
                (builder, ca_file)
            }
            Self::Controller { client, cluster, url, ca_file } => {
                (of_controller(client, cluster, url.as_deref()).await?, ca_file)
            }
        };
        let builder = builder.timeout(CALL).list_timeout(LIST).retries(0);
        let Some(path) = ca_file else { return Ok(builder) };
        // A small file, which may have been replaced.
        let pem = std::fs::read(path);
        let pem = pem.map_err(|error| format!("cannot read the certificate authority {}: {error}", path.display()))?;
        Ok(builder.ca_pem(pem))
    }
}

async fn of_controller(
    client: &kube::Client,
    cluster: &ClusterKey,
    url: Option<&str>,
) -> Result<ClientBuilder, String> {
    for clusters in frontends::clusters() {
        let endpoint = match clusters.find(client, cluster).await {
            Ok(EndpointLookup::Found(endpoint)) => endpoint,
            Ok(EndpointLookup::Missing(why)) => return Err(why),
            Ok(EndpointLookup::Gone) => continue,
            Err(failure) => return Err(failure.text()),
        };
        let builder = Client::builder(url.unwrap_or(&endpoint.url));
        let builder = builder.auth(Auth::mint(endpoint.key.clone(), endpoint.user, LIFETIME));
        let builder = if let Some(ca) = endpoint.ca { builder.ca_pem(ca) } else { builder };
        return Ok(if endpoint.is_external { builder.hide_answers() } else { builder });
    }
    Err(format!("there is no Controller {}/{}", cluster.namespace, cluster.name))
}

/// A connection that is made when it is needed.
pub(super) struct Link {
    origin: Origin,
    state: Mutex<State>,
    /// How long after a failure another connection is tried.
    pause: Duration,
}

#[derive(Default)]
struct State {
    client: Option<Client>,
    failed: Option<(Instant, String)>,
}

impl Link {
    pub(super) fn new(origin: Origin, pause: Duration) -> Self {
        Self { origin, state: Mutex::default(), pause }
    }

    /// The client, or why there is none.
    pub(super) async fn client(&self) -> Result<Client, String> {
        let mut state = self.state.lock().await;
        if let Some(client) = &state.client {
            return Ok(client.clone());
        }
        // All lists are read at the same time: one of them tries it for all.
        if let Some((at, why)) = &state.failed
            && at.elapsed() < self.pause
        {
            return Err(why.clone());
        }
        match self.connect().await {
            Ok(client) => {
                let slurm = client.slurm_version().map_or_else(|| "unknown".to_owned(), |version| version.to_string());
                tracing::info!(slurm, rest = %client.rest_version(), "connected");
                *state = State { client: Some(client.clone()), failed: None };
                Ok(client)
            }
            Err(why) => {
                state.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    async fn connect(&self) -> Result<Client, String> {
        self.origin.builder().await?.connect().await.map_err(|error| describe(&error))
    }

    /// A call has failed: if a key, a certificate, an address or a version may have changed, the next call connects again.
    pub(super) async fn failed(&self, error: &Error) {
        let may_have_changed = error.is_outage()
            || matches!(error, Error::Unauthorised { .. } | Error::NoToken { .. } | Error::NotOffered { .. });
        if may_have_changed {
            self.state.lock().await.client = None;
        }
    }
}
