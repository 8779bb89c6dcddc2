//! Sends calls and returns the raw responses: timeouts, retries, tokens, and a limit on the response size.

use std::{error::Error as StdError, time::Duration};

use reqwest::{
    Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Auth, Call, Error,
    call::{Kind, Route},
    response,
    streaming::StreamDecoder,
};
use crate::{token::Token, version::RestVersion, wire::DecodeError};

/// Maximum size of a response: about five times that of 65,536 nodes.
const MAX_ANSWER: usize = 1 << 30;

/// Maximum size of what is kept of a response while it arrives: all of it, or one record of a list. Whoever controls the server
/// could otherwise fill the memory of its clients.
const MAX_KEPT: usize = 16 << 20;

/// Pause before a retry.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Transport {
    pub http: reqwest::Client,
    pub base: Url,
    pub auth: Option<Auth>,
    pub user: Option<String>,
    pub timeout: Duration,
    pub list_timeout: Duration,
    pub retries: u32,
    /// Whether errors do not repeat answers.
    pub hides_answers: bool,
}

/// A call with its parameters.
pub(super) struct Request {
    pub call: Call,
    /// Object in the path: a node, a job.
    pub name: Option<String>,
    pub query: Vec<(&'static str, String)>,
    pub body: Option<Vec<u8>>,
}

impl Request {
    pub(super) fn new(call: Call) -> Self {
        Self { call, name: None, query: Vec::new(), body: None }
    }

    pub(super) fn named(call: Call, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..Self::new(call) }
    }

    pub(super) fn query(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.query.push((key, value.into()));
        self
    }

    pub(super) fn body(mut self, body: &impl serde::Serialize) -> Result<Self, Error> {
        let json = serde_json::to_vec(body).map_err(|error| Error::Settings { what: error.to_string() })?;
        self.body = Some(json);
        Ok(self)
    }
}

/// A response is not read any further.
#[derive(Debug, thiserror::Error)]
#[error("the response is too large")]
struct TooLarge;

/// A raw response.
#[derive(Debug)]
pub(super) struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
    /// The token that was sent.
    pub token: Option<Token>,
    /// Whether errors do not repeat it.
    pub is_hidden: bool,
}

impl Transport {
    /// Returns the response to a call, whatever its status. `StreamDecoder` can consume it as it arrives.
    pub(super) async fn send(
        &self,
        rest: Option<RestVersion>,
        request: &Request,
        decoder: &mut dyn StreamDecoder,
    ) -> Result<Reply, Error> {
        let call = request.call;
        let limit = self.limit(call);
        let deadline = Instant::now() + limit;
        let url = self.url(rest, request)?;
        let work = async {
            let reply = self.attempts(request, &url, None, decoder).await?;
            if !response::is_unauthorised(reply.status) {
                return Ok(reply);
            }
            // The token may have been replaced since it was read. A refused call had no effect, so it may be repeated.
            let another = match (&self.auth, &reply.token) {
                (Some(auth), Some(token)) => auth.after_refusal(token).await,
                _ => None,
            };
            match another {
                Some(token) => self.attempts(request, &url, Some(token), decoder).await,
                None => Ok(reply),
            }
        };
        timeout_at(deadline, work).await.unwrap_or(Err(Error::Timeout { call, after: limit }))
    }

    /// Returns the response to a call without a version, which has a different JSON format.
    pub(super) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let request = Request::new(call);
        let reply = self.send(None, &request, &mut ()).await?;
        if reply.status != 200 {
            return Err(response::failure(&request, None, &reply).discreet(&reply));
        }
        serde_json::from_slice(&reply.body).map_err(|error| {
            let source = Box::new(DecodeError { path: ".".to_owned(), reason: error.to_string() });
            Error::Undecodable { call, source }.discreet(&reply)
        })
    }

    async fn attempts(
        &self,
        request: &Request,
        url: &Url,
        token: Option<Token>,
        decoder: &mut dyn StreamDecoder,
    ) -> Result<Reply, Error> {
        let call = request.call;
        let token = match (token, &self.auth) {
            (Some(token), _) => Some(token),
            (None, Some(auth)) => Some(auth.current().await.map_err(|source| Error::NoToken { call, source })?),
            (None, None) => None,
        };
        let headers = self.headers(token.as_ref(), request.body.is_some())?;
        let mut left = if call.route().kind == Kind::Write { 0 } else { self.retries };
        loop {
            match self.attempt(request, url, headers.clone(), decoder).await {
                Ok((status, body)) => return Ok(Reply { status, body, token, is_hidden: self.hides_answers }),
                // Another attempt would take as long.
                Err(source) if source.is::<TooLarge>() => {
                    let source = Box::new(DecodeError { path: ".".to_owned(), reason: source.to_string() });
                    return Err(Error::Undecodable { call, source });
                }
                Err(_) if left > 0 => {
                    left -= 1;
                    sleep(PAUSE).await;
                }
                Err(source) => return Err(Error::Unreachable { call, source }),
            }
        }
    }

    async fn attempt(
        &self,
        request: &Request,
        url: &Url,
        headers: HeaderMap,
        decoder: &mut dyn StreamDecoder,
    ) -> Result<(u16, Vec<u8>), Box<dyn StdError + Send + Sync>> {
        let mut http = self.http.request(request.call.route().method, url.clone()).headers(headers);
        if let Some(body) = &request.body {
            http = http.body(body.clone());
        }
        // The caller's message already names the server.
        let mut response = http.send().await.map_err(reqwest::Error::without_url)?;
        let status = response.status().as_u16();
        decoder.begin();
        let (mut body, mut length) = (Vec::new(), 0);
        while let Some(chunk) = response.chunk().await.map_err(reqwest::Error::without_url)? {
            length += chunk.len();
            body.extend_from_slice(&chunk);
            decoder.take(&mut body);
            if length > MAX_ANSWER || body.len() > MAX_KEPT || decoder.is_too_large() {
                return Err(TooLarge.into());
            }
        }
        Ok((status, body))
    }

    fn headers(&self, token: Option<&Token>, body: bool) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let value = |text: &str| {
            let bad = |_| Error::Settings { what: "invalid characters in a header".to_owned() };
            HeaderValue::from_str(text).map_err(bad)
        };
        if let Some(token) = token {
            let mut token = value(token.expose())?;
            token.set_sensitive(true);
            headers.insert("x-slurm-user-token", token);
        }
        if let Some(user) = &self.user {
            headers.insert("x-slurm-user-name", value(user)?);
        }
        Ok(headers)
    }

    fn limit(&self, call: Call) -> Duration {
        match call {
            Call::OpenApi
            | Call::Nodes
            | Call::Jobs
            | Call::JobStates
            | Call::Accounts
            | Call::Users
            | Call::Clusters
            | Call::AccountedJobs => self.list_timeout,
            _ => self.timeout,
        }
    }

    fn url(&self, rest: Option<RestVersion>, request: &Request) -> Result<Url, Error> {
        let Route { plugin, path, .. } = request.call.route();
        let mut url = self.base.clone();
        {
            let no_base = |()| Error::Settings { what: "the URL cannot have a path".to_owned() };
            let mut segments = url.path_segments_mut().map_err(no_base)?;
            segments.pop_if_empty();
            if let Some(rest) = rest {
                segments.extend([plugin, rest.as_str()]);
            }
            for segment in path.split('/') {
                match &request.name {
                    Some(name) if segment.starts_with('{') => {
                        // These would resolve to another path; no node, job or reservation has such a name.
                        if matches!(name.as_str(), "" | "." | "..") {
                            return Err(Error::NotFound { call: request.call, what: name.clone() });
                        }
                        segments.push(name)
                    }
                    _ => segments.push(segment),
                };
            }
        }
        for (key, value) in &request.query {
            url.query_pairs_mut().append_pair(key, value);
        }
        Ok(url)
    }
}
