//! A minimal HTTP server that sends the client invalid responses and recordings of real ones.
#![allow(dead_code, reason = "each test file uses only a part")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
};

use slurm::{
    client::{Auth, Client, ClientBuilder},
    token::Token,
    version::RestVersion,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub const SECRET: &str = "header.hush-hush-payload.signature";

/// A received request.
#[derive(Clone, Debug, Default)]
pub struct HttpRequest {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// How to respond.
#[derive(Clone, Debug)]
pub enum HttpResponse {
    /// A complete response.
    Http(u16, String),
    /// These bytes, then the connection is closed.
    Raw(Vec<u8>),
    /// Never responds.
    Hang,
}

impl HttpResponse {
    pub fn ok(body: &str) -> Self {
        Self::Http(200, body.to_owned())
    }
}

#[derive(Debug, Default)]
pub struct Log {
    pub requests: Vec<HttpRequest>,
    pub connections: usize,
}

pub struct Server {
    pub url: String,
    pub log: Arc<Mutex<Log>>,
}

impl Server {
    pub async fn start(answer: impl Fn(&HttpRequest) -> HttpResponse + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let log = Arc::new(Mutex::new(Log::default()));
        let (answer, shared) = (Arc::new(answer), Arc::clone(&log));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.lock().unwrap().connections += 1;
                tokio::spawn(serve(stream, Arc::clone(&answer), Arc::clone(&shared)));
            }
        });
        Self { url, log }
    }

    /// Offers the calls of 26.05; the test handles everything else.
    pub async fn offering(answer: impl Fn(&HttpRequest) -> HttpResponse + Send + Sync + 'static) -> Self {
        Self::replaying_with("26.05", answer).await
    }

    /// Offers the calls of a release; the test handles everything else.
    pub async fn replaying_with(
        slurm: &str,
        answer: impl Fn(&HttpRequest) -> HttpResponse + Send + Sync + 'static,
    ) -> Self {
        let openapi = openapi(slurm);
        Self::start(
            move |request| if request.path == "/openapi/v3" { HttpResponse::ok(&openapi) } else { answer(request) },
        )
        .await
    }

    /// Replays the responses of a real slurmrestd to the same requests.
    pub async fn replaying(slurm: &str, rest: &str) -> Self {
        let answers = Answers::of(slurm, rest);
        Self::replaying_with(slurm, move |request| answers.to(request)).await
    }

    pub fn builder(&self) -> ClientBuilder {
        Client::builder(&self.url).auth(Auth::token(Token::from_text(SECRET).unwrap()))
    }

    pub async fn client(&self) -> Client {
        self.builder().connect().await.unwrap()
    }

    pub async fn client_of(&self, rest: &str) -> Client {
        self.builder().rest_version(rest.parse::<RestVersion>().unwrap()).connect().await.unwrap()
    }

    /// The requests so far, except those for the list of paths.
    pub fn requests(&self) -> Vec<HttpRequest> {
        let log = self.log.lock().unwrap();
        log.requests.iter().filter(|request| request.path != "/openapi/v3").cloned().collect()
    }
}

async fn serve(mut stream: TcpStream, answer: Arc<impl Fn(&HttpRequest) -> HttpResponse>, log: Arc<Mutex<Log>>) {
    while let Some(request) = read_request(&mut stream).await {
        log.lock().unwrap().requests.push(request.clone());
        match answer(&request) {
            HttpResponse::Http(status, body) => {
                let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
                let empty = status == 304 || status == 204;
                let whole = if empty { format!("HTTP/1.1 {status} X\r\n\r\n") } else { head + &body };
                if stream.write_all(whole.as_bytes()).await.is_err() {
                    return;
                }
            }
            HttpResponse::Raw(bytes) => {
                let _ = stream.write_all(&bytes).await;
                return;
            }
            HttpResponse::Hang => std::future::pending().await,
        }
    }
}

/// Reads one request.
pub async fn read_request(stream: &mut (impl AsyncReadExt + Unpin)) -> Option<HttpRequest> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: BTreeMap<String, String> =
        lines.filter_map(|line| line.split_once(": ")).map(|(k, v)| (k.to_lowercase(), v.to_owned())).collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(HttpRequest { method, path, headers, body: String::from_utf8(body).unwrap() })
}

pub fn golden(path: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The recorded part of `/openapi/v3`.
pub fn openapi(slurm: &str) -> String {
    let mut kept: serde_json::Value = serde_json::from_str(&golden(&format!("{slurm}/openapi-paths.json"))).unwrap();
    for methods in kept["paths"].as_object_mut().unwrap().values_mut() {
        let names = methods.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned());
        *methods = names.map(|name| (name, serde_json::json!({"description": ["skip me"]}))).collect();
    }
    kept.to_string()
}

/// Recorded requests and responses of a real slurmrestd.
struct Answers(Vec<(String, String, Option<serde_json::Value>, u16, String)>);

impl Answers {
    fn of(slurm: &str, rest: &str) -> Self {
        let index: BTreeMap<String, serde_json::Value> =
            serde_json::from_str(&golden(&format!("{slurm}/{rest}/index.json"))).unwrap();
        let special = |name: &str| ["down-", "db-down-", "bad-token", "no-token"].iter().any(|p| name.starts_with(p));
        let answers = index.into_iter().filter(|(name, _)| !special(name)).map(|(name, entry)| {
            let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
            let status = u16::try_from(entry["status"].as_u64().unwrap()).unwrap();
            let json = entry.get("text").is_none() && status != 304;
            let body = if json { golden(&format!("{slurm}/{rest}/{name}.json")) } else { text("text") };
            (text("method"), text("path"), entry.get("request").cloned(), status, body)
        });
        Self(answers.collect())
    }

    /// Finds a response by method and path, and by body if several bodies were sent to one path.
    fn to(&self, request: &HttpRequest) -> HttpResponse {
        let body: Option<serde_json::Value> = serde_json::from_str(&request.body).ok();
        let at = |(method, path, ..): &&(String, String, _, _, _)| *method == request.method && *path == request.path;
        let candidates: Vec<_> = self.0.iter().filter(at).collect();
        let same = candidates.iter().find(|(_, _, request, ..)| request.is_some() && *request == body);
        match same.or(candidates.first()) {
            Some((_, _, _, status, body)) => HttpResponse::Http(*status, body.clone()),
            None => {
                HttpResponse::Http(599, format!("never asked: {} {} {}", request.method, request.path, request.body))
            }
        }
    }
}
