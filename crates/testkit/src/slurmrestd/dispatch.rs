//! Dispatches requests to the handlers.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::body::Bytes;
use axum::http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use slurm::token::{self, Key};

use super::cluster::Cluster;
use super::faults::Faults;
use super::node_texts::NodeTexts;
use super::records::Records;
use super::refusal::Refusal;
use super::release::RestVersion;
use super::reply::{Diagnostics, Reply, UNAUTHENTICATED, empty, failure};
use super::routes::{self, Call, Endpoint};

/// Clock of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The machine's clock: each request advances the cluster.
    #[default]
    Real,
    /// The machine's clock, accelerated by this factor from the start: for tests of behaviour that takes seconds.
    Fast(i64),
    /// No clock: time stands still until [`Cluster::advance_to`] is called.
    Manual,
}

/// The relevant parts of a request.
#[derive(Debug)]
pub(super) struct Request {
    pub method: Method,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub token: Option<String>,
    pub body: Bytes,
}

/// State behind the server's lock.
#[derive(Debug)]
pub(super) struct Dispatcher {
    pub cluster: Cluster,
    pub faults: Faults,
    pub calls: BTreeMap<String, u64>,
    pub clock: Clock,
    started: Instant,
    started_at: i64,
    pub key: Option<Key>,
    pub(super) records: BTreeMap<RestVersion, Records>,
    pub(super) texts: BTreeMap<RestVersion, NodeTexts>,
}

/// One call with everything that its handler needs.
pub(super) struct CallContext<'a> {
    pub cluster: &'a mut Cluster,
    pub records: &'a Records,
    pub texts: &'a mut NodeTexts,
    pub call: Call<'a>,
    pub request: &'a Request,
    /// User of the token.
    pub user: String,
    pub blank: bool,
}

impl Dispatcher {
    pub(super) fn new(cluster: Cluster, clock: Clock, key: Option<Key>) -> anyhow::Result<Self> {
        // All versions: the release may change during a test, as in an upgrade.
        let versions = RestVersion::ALL;
        let records = versions.into_iter().map(|version| anyhow::Ok((version, Records::of(version)?)));
        Ok(Self {
            records: records.collect::<anyhow::Result<_>>()?,
            texts: versions.into_iter().map(|version| (version, NodeTexts::default())).collect(),
            started: Instant::now(),
            started_at: cluster.now(),
            cluster,
            faults: Faults::default(),
            calls: BTreeMap::new(),
            clock,
            key,
        })
    }

    /// Advances the cluster to the current time.
    pub(super) fn tick(&mut self) {
        match self.clock {
            Clock::Real => self.cluster.advance_to(Timestamp::now().as_second()),
            Clock::Fast(times) => {
                let passed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX);
                let passed = passed.saturating_mul(times) / 1000;
                self.cluster.advance_to(self.started_at.saturating_add(passed));
            }
            Clock::Manual => {}
        }
    }

    pub(super) fn answer(&mut self, request: &Request) -> Reply {
        self.tick();
        let (release, accounting) = (self.cluster.settings.release, self.cluster.settings.accounting);
        let Some(call) = routes::find(release, accounting, &request.method, &request.path) else {
            return no_such_path(release.blames_client());
        };
        *self.calls.entry(call.route.template()).or_default() += 1;
        let Some(token) = request.token.as_deref() else {
            return Reply::text(StatusCode::UNAUTHORIZED, "Authentication failure");
        };
        let user = self.user_of(token);
        let (Some(records), Some(texts)) = (self.records.get(&call.version), self.texts.get_mut(&call.version)) else {
            return no_such_path(release.blames_client());
        };
        let blank = self.faults.empty_lists;
        let known = user.is_some();
        let user = user.unwrap_or_default();
        let mut context = CallContext { cluster: &mut self.cluster, records, texts, call, request, user, blank };
        let endpoint = context.call.route.endpoint;
        let reply = match endpoint {
            Endpoint::OpenApi => Ok(context.openapi()),
            Endpoint::Ping => Ok(context.ping(known)),
            _ if endpoint.is_accounting() && !(known && context.cluster.accounting_up) => {
                Err(Refusal { number: 7000, text: "Unable to connect to database" })
            }
            _ if !known => Err(UNAUTHENTICATED),
            _ if endpoint.is_accounting() => Ok(context.accounting()),
            // slurmrestd loses the error code here.
            Endpoint::Job if !context.cluster.is_up() => Err(Refusal::UNSPECIFIED),
            _ if !context.cluster.is_up() => Err(Refusal::DOWN),
            _ => context.dispatch(endpoint),
        };
        self.cluster.schedule();
        match reply {
            Ok(reply) => reply,
            Err(refusal) => self.refuse(request, refusal),
        }
    }

    /// Returns the user of a token; without a key every token is valid.
    fn user_of(&self, token: &str) -> Option<String> {
        if self.faults.refuse_tokens {
            return None;
        }
        let Some(key) = &self.key else { return Some("slurm".to_owned()) };
        // Clients sign tokens with the machine's clock; only a manual clock is known to the test that sets it.
        let now = match self.clock {
            Clock::Real | Clock::Fast(_) => Timestamp::now(),
            Clock::Manual => Timestamp::from_second(self.cluster.now()).ok()?,
        };
        token::verify(key, token, now).ok().map(|claims| claims.user)
    }

    fn refuse(&self, request: &Request, refusal: Refusal) -> Reply {
        let settings = &self.cluster.settings;
        let Some(call) = routes::find(settings.release, settings.accounting, &request.method, &request.path) else {
            return no_such_path(settings.release.blames_client());
        };
        let endpoint = call.route.endpoint;
        let parameter = match endpoint {
            Endpoint::UpdateNodes => super::request::names_of(&request.body),
            Endpoint::Reserve => super::request::name_of(&request.body),
            _ => call.parameter.to_owned(),
        };
        let (description, source) = failure(endpoint, settings.release.blames_client(), &parameter);
        let diagnostics = match endpoint {
            // Only the status, no error entries.
            Endpoint::Partitions => Diagnostics::default(),
            _ => Diagnostics::error(refusal.number, refusal.text, &description, source),
        };
        let meta = self.records.get(&call.version).map(|records| meta(records, &self.cluster, endpoint));
        Reply::json(self.status(refusal), empty(endpoint), meta.unwrap_or_default(), diagnostics)
    }

    fn status(&self, refusal: Refusal) -> StatusCode {
        match refusal.number {
            1007 => StatusCode::NETWORK_AUTHENTICATION_REQUIRED,
            1800 | 7000 => StatusCode::BAD_GATEWAY,
            2017 => StatusCode::NOT_FOUND,
            2000.. if self.cluster.settings.release.blames_client() => StatusCode::UNPROCESSABLE_ENTITY,
            9000 => StatusCode::UNPROCESSABLE_ENTITY,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl CallContext<'_> {
    fn dispatch(&mut self, endpoint: Endpoint) -> Result<Reply, Refusal> {
        match endpoint {
            Endpoint::Diag => Ok(self.diag()),
            Endpoint::Conf => Ok(self.conf()),
            Endpoint::Reconfigure => {
                self.cluster.reconfigure();
                Ok(self.done())
            }
            Endpoint::Nodes => Ok(self.nodes()),
            Endpoint::Node => Ok(self.node()),
            Endpoint::UpdateNodes => self.update_nodes(),
            Endpoint::UpdateNode => self.update_node(),
            Endpoint::DeleteNode => self.delete_node(),
            Endpoint::NewNode => self.new_node(),
            Endpoint::Jobs => Ok(self.jobs()),
            Endpoint::JobStates => Ok(self.job_states()),
            Endpoint::Submit => self.submit(),
            Endpoint::Job => self.job(),
            Endpoint::Cancel => Ok(self.cancel()),
            Endpoint::Requeue => self.requeue(),
            Endpoint::RequeueMany => self.requeue_many(),
            Endpoint::Partitions => Ok(self.partitions()),
            Endpoint::Partition => Ok(self.partition()),
            Endpoint::Reservations => Ok(self.reservations()),
            Endpoint::Reservation => Ok(self.reservation()),
            Endpoint::Reserve | Endpoint::ReserveMany => self.reserve(),
            Endpoint::DeleteReservation => self.delete_reservation(),
            _ => Err(Refusal::UNSPECIFIED),
        }
    }

    pub(super) fn meta(&self) -> Value {
        meta(self.records, self.cluster, self.call.route.endpoint)
    }

    pub(super) fn respond(&self, fields: Value, diagnostics: Diagnostics) -> Reply {
        Reply::json(StatusCode::OK, fields, self.meta(), diagnostics)
    }

    /// A success response without content.
    pub(super) fn done(&self) -> Reply {
        self.respond(json!({}), Diagnostics::default())
    }

    /// A response with a list of already serialized records. Its time is that of the read, not of the last change.
    pub(super) fn list(&self, key: &str, records: &[u8], more: Map<String, Value>, diagnostics: Diagnostics) -> Reply {
        let mut fields = more;
        fields.insert("meta".to_owned(), self.meta());
        fields.insert("errors".to_owned(), Value::Array(diagnostics.errors));
        fields.insert("warnings".to_owned(), Value::Array(diagnostics.warnings));
        Reply::list(key, records, &fields)
    }

    /// Whether the request has an `update_time` and nothing changed since. A change in the second before counts.
    pub(super) fn unchanged_since(&self, changed: i64) -> bool {
        self.update_time().is_some_and(|since| since.is_ok_and(|since| since.saturating_sub(1) >= changed))
    }

    /// The response to an invalid `update_time`.
    pub(super) fn bad_update_time(&self, source: &str) -> Option<Reply> {
        let error = self.update_time()?.err()?;
        if error.is_empty() {
            return Some(Reply::text(StatusCode::INTERNAL_SERVER_ERROR, "Unspecified error"));
        }
        let mut diagnostics = Diagnostics::error(9202, "Unable to convert Data type", &error, "#/update_time/");
        let lists = matches!(self.call.route.endpoint, Endpoint::Partitions | Endpoint::Reservations);
        let text = if lists {
            "Rejecting request. Failure parsing query"
        } else {
            "Rejecting request. Failure parsing query."
        };
        diagnostics
            .errors
            .extend(Diagnostics::error(9000, "Query empty or not RFC7320 compliant", text, source).errors);
        let jobs = self.call.route.endpoint == Endpoint::Jobs;
        let status = if jobs { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::INTERNAL_SERVER_ERROR };
        Some(Reply::json(status, json!({}), self.meta(), diagnostics))
    }

    /// Seconds since 1970, plain (but not in v0.0.41) or with Slurm's prefix; the error is slurmrestd's text, which may
    /// be empty.
    fn update_time(&self) -> Option<Result<i64, String>> {
        let text = self.request.query.get("update_time")?;
        let plain = match text.strip_prefix("uts") {
            Some(plain) => plain,
            None if self.call.version == RestVersion::V41 => {
                return Some(Err(format!("Parsing of {text} for timestamp failed")));
            }
            None => text,
        };
        Some(plain.parse().map_err(|_| String::new()))
    }

    pub(super) fn bad_body(&self) -> Reply {
        let newer = self.cluster.settings.release.blames_client();
        let text = if newer { "Failure during parsing" } else { "Unable to parse query." };
        Reply::text(StatusCode::BAD_REQUEST, text)
    }
}

fn no_such_path(newer: bool) -> Reply {
    let text = if newer {
        "Unable to find requested URL endpoint. Please query the '/openapi/v3' endpoint or visit \
         'https://slurm.schedmd.com/rest_api.html' for the OpenAPI specification which includes a list of all possible \
         slurmrestd endpoints."
    } else {
        "Unable find requested URL. Please view /openapi/v3 for API reference."
    };
    Reply::text(StatusCode::NOT_FOUND, text)
}

fn meta(records: &Records, cluster: &Cluster, endpoint: Endpoint) -> Value {
    let settings = &cluster.settings;
    let (major, minor, micro) = settings.release.parts();
    let storage = if settings.accounting { "accounting_storage/slurmdbd" } else { "" };
    records.fill(
        if endpoint.is_accounting() { "db_meta" } else { "meta" },
        json!({
            "plugin": {"accounting_storage": storage},
            "slurm": {
                "version": {"major": major, "minor": minor, "micro": micro},
                "release": settings.release.version(),
                "cluster": settings.name,
            },
        }),
    )
}
