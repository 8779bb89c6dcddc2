//! A client for slurmrestd; `examples/drain.rs` shows how to use it.
//!
//! Every call ends within its timeout. Failures are an [`Error`] with a variant per cause; server warnings are part of
//! the [`Answer`].

mod accounting;
mod auth;
mod builder;
mod call;
mod cluster;
mod error;
mod jobs;
mod nodes;
mod reservations;
mod response;
mod streaming;
mod transport;

use std::{fmt, ops::Deref, sync::Arc};

pub use accounting::JobFilter;
pub use auth::{Auth, AuthError};
pub use builder::ClientBuilder;
pub use call::Call;
pub use error::{Error, Refusal, code};

use self::{
    call::Capabilities,
    streaming::StreamDecoder,
    transport::{Reply, Request, Transport},
};
use crate::{
    version::{RestVersion, SlurmVersion},
    wire::{Body, DecodeError, Envelope, Listing, Meta, Record, Records, Warning},
};

/// Responses of this size or larger are decoded on a separate thread.
const LARGE: usize = 256 << 10;

/// A connection to one slurmrestd, shared by its clones.
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
    capabilities: Arc<Capabilities>,
    /// The REST version requested by the caller, if any.
    wanted: Option<RestVersion>,
}

/// Result of a call, with the metadata and warnings of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    pub body: T,
    /// The server that responded.
    pub meta: Meta,
    /// What the server complained about but accepted.
    pub warnings: Vec<Warning>,
}

impl<T> Deref for Answer<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.body
    }
}

impl<T> Answer<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { body: change(self.body), meta: self.meta, warnings: self.warnings }
    }
}

impl<T> From<Envelope<T>> for Answer<T> {
    fn from(envelope: Envelope<T>) -> Self {
        Self { body: envelope.body, meta: envelope.meta, warnings: envelope.warnings }
    }
}

/// Result of polling for changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll<T> {
    /// Nothing has changed since the cursor.
    Unchanged,
    /// The complete current list.
    Changed(T),
}

/// The time up to which a list was read: pass the same cursor to the next read of the same kind of list.
///
/// The time is slurmctld's. If another slurmctld takes over and its clock is behind, changes are missed until that
/// clock has caught up: callers that cannot accept this must reset the cursor from time to time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(u64);

impl Cursor {
    /// Makes the next read return everything.
    pub fn reset(&mut self) {
        self.0 = 0;
    }

    /// `last_update` is when slurmctld wrote the list, and slurmctld returns what changed in that second or later:
    /// changes in the rest of that second are not lost, and only slurmctld's own clock matters.
    fn set(&mut self, last_update: u64) {
        self.0 = last_update;
    }

    /// Format of slurmrestd; v0.0.41 accepts no other.
    fn update_time(self) -> Option<String> {
        (self.0 > 0).then(|| format!("uts{}", self.0))
    }
}

impl Client {
    /// Creates a client for the slurmrestd at this URL: `http://host:6820`, or https, optionally with a path before
    /// Slurm's.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    fn new(transport: Arc<Transport>, capabilities: Capabilities, wanted: Option<RestVersion>) -> Self {
        Self { transport, capabilities: Arc::new(capabilities), wanted }
    }

    /// Negotiates again over the same connections. Needed when slurmrestd was replaced, which shows as
    /// [`Error::NotOffered`] or in the [`Meta`] of a response.
    pub async fn renegotiate(&self) -> Result<Self, Error> {
        let paths = self.transport.json(Call::OpenApi).await?;
        let capabilities = Capabilities::negotiate(&paths, self.wanted)?;
        Ok(Self::new(Arc::clone(&self.transport), capabilities, self.wanted))
    }

    /// The REST version in use.
    pub fn rest_version(&self) -> RestVersion {
        self.capabilities.rest
    }

    /// Version of slurmrestd at connection time, if it reported one.
    pub fn slurm_version(&self) -> Option<SlurmVersion> {
        self.capabilities.slurm
    }

    /// Whether the server offers this call.
    pub fn offers(&self, call: Call) -> bool {
        self.capabilities.has(call)
    }

    fn require(&self, call: Call) -> Result<(), Error> {
        if self.offers(call) { Ok(()) } else { Err(Error::NotOffered { call, rest: self.capabilities.rest }) }
    }

    /// Sends a call if the server offers it.
    async fn exchange(&self, request: &Request) -> Result<Reply, Error> {
        self.exchange_with(request, &mut ()).await
    }

    async fn exchange_with(&self, request: &Request, decoder: &mut dyn StreamDecoder) -> Result<Reply, Error> {
        self.require(request.call)?;
        self.transport.send(Some(self.capabilities.rest), request, decoder).await
    }

    async fn ask<B>(&self, request: Request) -> Result<Answer<B::Output>, Error>
    where
        B: Body + Send + 'static,
        B::Output: Send + 'static,
    {
        let reply = self.exchange(&request).await?;
        self.understand::<B>(request, reply).await
    }

    async fn understand<B>(&self, request: Request, reply: Reply) -> Result<Answer<B::Output>, Error>
    where
        B: Body + Send + 'static,
        B::Output: Send + 'static,
    {
        let (call, rest) = (request.call, self.capabilities.rest);
        let large = reply.body.len() > LARGE;
        let read = move || response::answer::<B>(&request, rest, &reply).map(Answer::from);
        if !large {
            return read();
        }
        // Decoding ten thousand nodes takes 0.1 s, during which this thread must serve other calls.
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|error| {
            let source = Box::new(DecodeError { path: ".".to_owned(), reason: error.to_string() });
            Err(Error::Undecodable { call, source })
        })
    }

    async fn list<T: Record + Send + 'static>(&self, call: Call) -> Result<Answer<Listing<T>>, Error> {
        self.ask_list(Request::new(call)).await
    }

    /// Sends a call that returns a potentially long list.
    async fn ask_list<T: Record + Send + 'static>(&self, request: Request) -> Result<Answer<Listing<T>>, Error> {
        let (reply, first) = self.exchange_list(&request).await?;
        self.understand_list(request, reply, first).await
    }

    /// Returns the response to a list call, and the records decoded while it arrived.
    async fn exchange_list<T: Record + Send>(&self, request: &Request) -> Result<(Reply, Vec<T>), Error> {
        let mut records = streaming::Records::default();
        let reply = self.exchange_with(request, &mut records).await?;
        Ok((reply, records.into_taken()))
    }

    async fn understand_list<T: Record + Send + 'static>(
        &self,
        request: Request,
        reply: Reply,
        first: Vec<T>,
    ) -> Result<Answer<Listing<T>>, Error> {
        let answer = self.understand::<Records<T>>(request, reply).await;
        let answer = answer.map_err(|error| error.behind(T::KEY, first.len()))?;
        Ok(answer.map(|Listing { items, last_update }| {
            let mut all = first;
            all.extend(items);
            Listing { items: all, last_update }
        }))
    }

    /// Returns the first record of a response about one object.
    async fn first<T: Record + Send + 'static>(&self, call: Call, name: &str) -> Result<Answer<T>, Error> {
        let Answer { body, meta, warnings } = self.get::<T>(call, name).await?;
        let missing = || Error::NotFound { call, what: name.to_owned() };
        let body = body.into_iter().next().ok_or_else(missing)?;
        Ok(Answer { body, meta, warnings })
    }

    /// Returns the records about one object; an empty response means that it does not exist.
    async fn get<T: Record + Send + 'static>(
        &self,
        call: Call,
        name: impl Into<String>,
    ) -> Result<Answer<Vec<T>>, Error> {
        let request = Request::named(call, name);
        let missing = response::not_found(&request);
        let answer = self.ask::<Records<T>>(request).await?;
        if answer.items.is_empty() { Err(missing) } else { Ok(answer.map(|listing| listing.items)) }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.transport.base.as_str();
        f.debug_struct("Client").field("url", &url).field("rest", &self.capabilities.rest).finish_non_exhaustive()
    }
}
