//! The client against servers that hang, close connections or send invalid data.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, in its helpers too")]

mod client_support;

use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use client_support::{HttpRequest, HttpResponse, SECRET, Server, golden, openapi, read_request};
use slurm::{
    client::{Auth, Call, Client, Cursor, Error, JobFilter},
    token::Token,
    wire::{JobSpec, NodeUpdate},
};
use tokio::io::AsyncWriteExt;

const EMPTY: &str = r#"{"nodes":[],"jobs":[],"errors":[],"warnings":[]}"#;

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    // A port that was free a moment ago.
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = Client::builder(&format!("http://127.0.0.1:{port}")).connect().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { call: Call::OpenApi, .. }), "{error:?}");
    assert!(error.is_outage());
    let error = Client::builder("http://no-such-host.invalid").connect().await.unwrap_err();
    assert_eq!(error.class(), "unreachable");
}

#[tokio::test]
async fn calls_end_in_time() {
    let server = Server::offering(|_| HttpResponse::Hang).await;
    let limit = Duration::from_secs(1);
    let client = server.builder().timeout(limit).list_timeout(limit * 3).connect().await.unwrap();
    let table = [(Call::Node, limit), (Call::Nodes, limit * 3)];
    for (call, expected) in table {
        let start = Instant::now();
        let error = match call {
            Call::Node => client.node("w0").await.unwrap_err(),
            _ => client.nodes().await.unwrap_err(),
        };
        assert!(matches!(error, Error::Timeout { after, .. } if after == expected), "{error:?}");
        assert!(start.elapsed() < expected + Duration::from_secs(30));
    }
    assert_eq!(server.requests().len(), 2, "no retry after the timeout");
}

#[tokio::test]
async fn a_slow_drip_of_bytes_ends_in_time_too() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n").await.unwrap();
        while stream.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let connecting = Client::builder(&url).list_timeout(Duration::from_millis(200)).connect();
    assert_eq!(connecting.await.unwrap_err().class(), "timeout");
}

/// A server whose responses never end: a head, then the same text again and again. Also counts the bytes that it has sent.
async fn endless(head: &str, text: &str) -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (count, sent) = counter();
    let (head, many) = (head.to_owned(), text.repeat((256 << 10) / text.len() + 1));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let Some(request) = read_request(&mut stream).await else { continue };
            let start = "HTTP/1.1 200 X\r\nConnection: close\r\n";
            if request.path == "/openapi/v3" && !head.is_empty() {
                let body = openapi("26.05");
                let whole = format!("{start}Content-Length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(whole.as_bytes()).await;
                continue;
            }
            let _ = stream.write_all(format!("{start}\r\n{head}").as_bytes()).await;
            while stream.write_all(many.as_bytes()).await.is_ok() {
                sent.fetch_add(many.len(), Ordering::SeqCst);
            }
        }
    });
    (url, count)
}

#[tokio::test]
async fn endless_responses_are_not_kept() {
    const MIB: usize = 1 << 20;
    let long = format!(r#"{{"name":"w","reason":"{}"}},"#, "x".repeat(64 << 10));
    // The socket buffers take some.
    let table = [
        ("", " ", 32 * MIB),
        (r#"{"nodes":["#, " ", 32 * MIB),
        (r#"{"nodes":["#, long.as_str(), 160 * MIB),
        (r#"{"nodes":["#, "{},", 32 * MIB),
        (r#"{"nodes":[{"features":["#, "\"\",", 32 * MIB),
        (r#"{"nodes":[{"state":["#, "\"new\",", 32 * MIB),
        (r#"{"meta":{},"nodes":["#, "{},", 32 * MIB),
    ];
    for (head, text, most) in table {
        let (url, sent) = endless(head, text).await;
        let error = match Client::builder(&url).list_timeout(Duration::from_mins(5)).connect().await {
            Ok(client) => client.nodes_since(&mut Cursor::default()).await.unwrap_err(),
            Err(error) => error,
        };
        assert_eq!(error.class(), "undecodable", "{head}: {error:?}");
        let sent = sent.load(Ordering::SeqCst);
        assert!(sent < most, "{head}: {sent} bytes were read");
    }
}

#[tokio::test]
async fn short_responses_that_take_much_memory_are_rejected() {
    let many = |text: &str| text.repeat(200_000).trim_end_matches(',').to_owned();
    let bodies = [
        format!(r#"{{"meta":{{}},"pings":[{}]}}"#, many("{},")),
        format!(r#"{{"pings":[{}]}}"#, many("{},")),
        format!(r#"{{"pings":[],"errors":[{}]}}"#, many("{},")),
    ];
    for body in bodies {
        let server = Server::offering(move |_| HttpResponse::ok(&body)).await;
        match server.client().await.ping().await.unwrap_err() {
            Error::Refused { refusal, .. } => assert!(refusal.errors.len() <= 1000),
            error => assert_eq!(error.class(), "undecodable", "{error:?}"),
        }
    }
}

#[tokio::test]
async fn reads_are_tried_again_and_writes_are_not() {
    let (count, seen) = counter();
    let server = Server::offering(move |_| {
        if seen.fetch_add(1, Ordering::SeqCst) == 0 { HttpResponse::Raw(Vec::new()) } else { HttpResponse::ok(EMPTY) }
    })
    .await;
    let client = server.client().await;
    client.nodes().await.unwrap();
    assert_eq!(count.swap(0, Ordering::SeqCst), 2);
    let change = client.update_node("w0", &NodeUpdate::new().undrain()).await.unwrap_err();
    assert!(matches!(change, Error::Unreachable { call: Call::UpdateNode, .. }));
    assert_eq!(count.swap(0, Ordering::SeqCst), 1);
    // These two are GET on the wire, but have side effects.
    assert_eq!(client.reconfigure().await.unwrap_err().class(), "unreachable");
    assert_eq!(count.swap(0, Ordering::SeqCst), 1);
    assert_eq!(client.requeue_job(1).await.unwrap_err().class(), "unreachable");
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn retries_have_an_end() {
    for retries in [0, 1, 3] {
        let server = Server::offering(|_| HttpResponse::Raw(Vec::new())).await;
        let client = server.builder().retries(retries).connect().await.unwrap();
        assert_eq!(client.nodes().await.unwrap_err().class(), "unreachable");
        assert_eq!(server.requests().len(), usize::try_from(retries).unwrap() + 1);
    }
}

#[tokio::test]
async fn answers_that_break_off() {
    let cut = b"HTTP/1.1 200 X\r\nContent-Length: 1000\r\n\r\n{\"nodes\":[".to_vec();
    let chunked = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"nod\r\n".to_vec();
    for bytes in [cut, chunked, b"HTTP/1.1 ".to_vec(), b"no HTTP at all\r\n\r\n".to_vec()] {
        let server = Server::offering(move |_| HttpResponse::Raw(bytes.clone())).await;
        let error = server.client().await.nodes().await.unwrap_err();
        assert_eq!(error.class(), "unreachable", "{error:?}");
    }
}

#[tokio::test]
async fn a_huge_content_length_is_rejected() {
    let lie = b"HTTP/1.1 200 X\r\nContent-Length: 18446744073709551615\r\n\r\n{}".to_vec();
    let server = Server::offering(move |_| HttpResponse::Raw(lie.clone())).await;
    assert_eq!(server.client().await.nodes().await.unwrap_err().class(), "unreachable");
}

#[tokio::test]
async fn nonsense_is_undecodable_with_its_place() {
    let table = [
        ("", "."),
        ("nonsense", "."),
        ("[]", "."),
        ("{}", "nodes"),
        (r#"{"nodes":null}"#, "nodes"),
        (r#"{"nodes":[{"name":["w0"]}]}"#, "nodes[0].name"),
        ("\u{0}", "."),
    ];
    for (body, expected) in table {
        let server = Server::offering(move |_| HttpResponse::ok(body)).await;
        let error = server.client().await.nodes().await.unwrap_err();
        assert!(matches!(&error, Error::Undecodable { source, .. } if source.path == expected), "{body}: {error:?}");
    }
}

/// Also if thousands of records before it were decoded while they arrived.
#[tokio::test]
async fn a_bad_record_far_down_a_list_is_named_by_its_place() {
    let good = format!(r#"{{"name":"w","comment":"{}"}},"#, "x".repeat(100));
    let body = format!(r#"{{"nodes":[{}{{"name":["w"]}}],"last_update":{{"number":1}}}}"#, good.repeat(20_000));
    let server = Server::offering(move |_| HttpResponse::ok(&body)).await;
    let error = server.client().await.nodes().await.unwrap_err();
    assert!(
        matches!(&error, Error::Undecodable { source, .. } if source.path == "nodes[20000].name"),
        "{:?}",
        std::error::Error::source(&error).map(ToString::to_string)
    );
}

#[tokio::test]
async fn statuses_without_a_body() {
    let table = [
        (204, "not_found"),
        (301, "refused"),
        (304, "refused"),
        (400, "refused"),
        (401, "unauthorised"),
        (403, "unauthorised"),
        (404, "not_found"),
        (418, "refused"),
        (500, "refused"),
        (502, "daemon_down"),
        (503, "daemon_down"),
        (504, "daemon_down"),
        (511, "unauthorised"),
    ];
    for (status, expected) in table {
        let server = Server::offering(move |_| HttpResponse::Http(status, "plain words".to_owned())).await;
        let error = server.client().await.node("w0").await.unwrap_err();
        assert_eq!(error.class(), expected, "{status}: {error:?}");
    }
    // A write may be acknowledged with an empty body.
    let server = Server::offering(|_| HttpResponse::Http(204, String::new())).await;
    server.client().await.update_node("w0", &NodeUpdate::new().undrain()).await.unwrap();
}

#[tokio::test]
async fn errors_in_a_good_answer_are_errors() {
    let body = r#"{"nodes":[],"errors":[{"error_number":2002,"error":"Access denied","description":"Failure"}]}"#;
    let server = Server::offering(move |_| HttpResponse::ok(body)).await;
    let client = server.client().await;
    let error = client.nodes().await.unwrap_err();
    assert_eq!((error.class(), error.code()), ("refused", Some(2002)));
    assert_eq!(error.to_string(), "cannot list nodes: Failure (Access denied, code 2002)");
    let error = client.update_node("w0", &NodeUpdate::new().undrain()).await.unwrap_err();
    assert_eq!(error.code(), Some(2002));
}

#[tokio::test]
async fn slurmdbd_24_11_reports_a_rejected_token() {
    let body = r#"{"errors":[{"error_number":7000,"error":"Unable to connect to database",
        "description":"Failed to open slurmdbd connection, authentication error"}]}"#;
    let server = Server::offering(move |_| HttpResponse::Http(502, body.to_owned())).await;
    assert_eq!(server.client().await.users().await.unwrap_err().class(), "unauthorised");
}

#[tokio::test]
async fn a_server_that_was_replaced() {
    let gone = "Unable to find requested URL endpoint. Please query the '/openapi/v3' endpoint";
    let server = Server::offering(move |_| HttpResponse::Http(404, gone.to_owned())).await;
    let client = server.client().await;
    for error in [client.node("w0").await.unwrap_err(), client.nodes().await.map(drop).unwrap_err()] {
        assert!(error.is_not_offered(), "{error:?}");
    }
}

#[tokio::test]
async fn no_version_in_common() {
    for paths in [r#"{"paths":{}}"#, r#"{"paths":{"/slurm/v9.9.9/ping/":{"get":{}},"/x/y":{}}}"#] {
        let server = Server::start(move |_| HttpResponse::ok(paths)).await;
        let error = server.builder().connect().await.unwrap_err();
        assert_eq!(error.class(), "no_common_version", "{error}");
    }
    let server = Server::start(|_| HttpResponse::ok("{}")).await;
    assert_eq!(server.builder().connect().await.unwrap_err().class(), "undecodable");
    let server = Server::start(|_| HttpResponse::Http(401, "Authentication failure".to_owned())).await;
    assert_eq!(server.builder().connect().await.unwrap_err().class(), "unauthorised");
}

#[tokio::test]
async fn without_accounting_nothing_is_asked_of_it() {
    let without: serde_json::Value = serde_json::from_str(&openapi("26.05")).unwrap();
    let paths = without["paths"].as_object().unwrap().iter().filter(|(path, _)| !path.starts_with("/slurmdb"));
    let paths = serde_json::json!({"paths": paths.collect::<std::collections::BTreeMap<_, _>>()}).to_string();
    let server = Server::start(move |_| HttpResponse::ok(&paths)).await;
    let client = server.client().await;
    assert!(client.accounts().await.unwrap_err().is_not_offered());
    assert!(client.accounted_jobs(&JobFilter::default()).await.unwrap_err().is_not_offered());
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn what_is_sent() {
    let server = Server::offering(|_| HttpResponse::ok(EMPTY)).await;
    let mut prefixed = server.builder().user_name("slurm").connect().await.unwrap();
    prefixed.nodes().await.unwrap();
    let request = server.requests().pop().unwrap();
    assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/slurm/v0.0.45/nodes/"));
    assert_eq!(request.headers["x-slurm-user-token"], SECRET);
    assert_eq!(request.headers["x-slurm-user-name"], "slurm");
    assert_eq!(request.headers["accept"], "application/json");
    prefixed = server.client().await;
    prefixed.update_node("a b/../c?d#e", &NodeUpdate::new().comment("ä\"\n")).await.unwrap();
    let request = server.requests().pop().unwrap();
    assert_eq!(request.path, "/slurm/v0.0.45/node/a%20b%2F..%2Fc%3Fd%23e", "a name must not change the path");
    assert_eq!(
        (request.body.as_str(), request.headers["content-type"].as_str()),
        ("{\"comment\":\"ä\\\"\\n\"}", "application/json")
    );
    assert!(!request.headers.contains_key("x-slurm-user-name"));
    let filter = JobFilter {
        users: vec!["a".into(), "b&c".into()],
        states: vec!["RUNNING".into()],
        start: jiff::Timestamp::from_second(7).ok(),
        ..JobFilter::default()
    };
    prefixed.accounted_jobs(&filter).await.unwrap();
    let request = server.requests().pop().unwrap();
    assert_eq!(request.path, "/slurmdb/v0.0.45/jobs/?users=a%2Cb%26c&state=RUNNING&start_time=uts7");
}

#[tokio::test]
async fn a_path_before_slurms() {
    let openapi = openapi("26.05");
    let server = Server::start(move |request| {
        if request.path.ends_with("/openapi/v3") { HttpResponse::ok(&openapi) } else { HttpResponse::ok(EMPTY) }
    })
    .await;
    for prefix in ["/cluster/a", "/cluster/a/"] {
        let client = Client::builder(&format!("{}{prefix}", server.url)).connect().await.unwrap();
        client.nodes().await.unwrap();
        assert_eq!(server.requests().pop().unwrap().path, "/cluster/a/slurm/v0.0.45/nodes/");
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let server = Server::offering(|_| HttpResponse::ok(EMPTY)).await;
    let client = server.client().await;
    for _ in 0..20 {
        client.clone().nodes().await.unwrap();
    }
    assert_eq!(server.log.lock().unwrap().connections, 1);
}

#[tokio::test]
async fn a_redirect_does_not_get_the_token() {
    let thief = Server::start(|_| HttpResponse::ok(EMPTY)).await;
    let to = format!("HTTP/1.1 307 X\r\nLocation: {}/\r\nContent-Length: 0\r\n\r\n", thief.url);
    let server = Server::offering(move |_| HttpResponse::Raw(to.clone().into_bytes())).await;
    assert_eq!(server.client().await.nodes().await.unwrap_err().class(), "refused");
    assert!(thief.requests().is_empty());
}

#[tokio::test]
async fn a_new_token_is_tried_once() {
    let path = std::env::temp_dir().join(format!("slurm-client-token-{}", std::process::id()));
    std::fs::write(&path, "old").unwrap();
    let file = path.clone();
    let server = Server::offering(move |request| {
        if request.headers["x-slurm-user-token"] == "new" {
            return HttpResponse::ok(EMPTY);
        }
        // The token is replaced at this moment.
        std::fs::write(&file, "new").unwrap();
        HttpResponse::Http(511, golden("26.05/v0.0.45/bad-token.json"))
    })
    .await;
    let client = Client::builder(&server.url).auth(Auth::file(&path)).connect().await.unwrap();
    client.update_node("w0", &NodeUpdate::new().undrain()).await.unwrap();
    assert_eq!(server.requests().len(), 2);
    std::fs::remove_file(&path).unwrap();
    let error = client.nodes().await.unwrap_err();
    assert_eq!(error.class(), "no_token", "{error:?}");
    assert_eq!(server.requests().len(), 2, "nothing is sent without a token");
}

/// No output shows the token, whatever fails.
#[tokio::test]
async fn no_secret_in_any_output() {
    type Responder = Box<dyn Fn(&HttpRequest) -> HttpResponse + Send + Sync>;
    let echo = |request: &HttpRequest| format!("{:?}", request.headers);
    let responders: Vec<Responder> = vec![
        Box::new(|_| HttpResponse::Raw(Vec::new())),
        Box::new(|_| HttpResponse::Hang),
        Box::new(move |request| HttpResponse::Http(401, echo(request))),
        Box::new(move |request| HttpResponse::Http(500, echo(request))),
        Box::new(move |request| HttpResponse::Http(404, echo(request))),
        Box::new(move |request| HttpResponse::ok(&echo(request))),
        Box::new(move |request| {
            let text = request.headers["x-slurm-user-token"].clone();
            HttpResponse::ok(
                &serde_json::json!({"errors": [{"error_number": 1, "description": text, "error": text}]}).to_string(),
            )
        }),
        Box::new(move |request| {
            let text = request.headers["x-slurm-user-token"].clone();
            HttpResponse::ok(&serde_json::json!({"nodes": text}).to_string())
        }),
    ];
    for responder in responders {
        let server = Server::offering(responder).await;
        let client = server.builder().timeout(Duration::from_millis(100)).list_timeout(Duration::from_secs(3));
        let client = client.connect().await.unwrap();
        let mut cursor = Cursor::default();
        let job = JobSpec::new("x", "#!/bin/sh");
        let errors = [
            client.nodes_since(&mut cursor).await.err(),
            client.node("w0").await.err(),
            client.update_node("w0", &NodeUpdate::new().undrain()).await.err(),
            client.submit(&job).await.err(),
        ];
        for error in errors.into_iter().flatten() {
            let mut shown = format!("{error} {error:?} {error:#?} {client:?}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                write!(shown, " {cause} {cause:?}").unwrap();
                source = cause.source();
            }
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
    let builder = Client::builder("http://host").auth(Auth::token(Token::from_text(SECRET).unwrap()));
    assert!(!format!("{builder:?}").contains(SECRET));
}

#[tokio::test]
async fn https_with_a_ca() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        let body = openapi("26.05");
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            read_request(&mut stream).await;
            let whole = format!("HTTP/1.1 200 X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(whole.as_bytes()).await;
        }
    });
    Client::builder(&url).ca_pem(made.cert.pem()).connect().await.unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let error = Client::builder(&url).ca_pem(other.cert.pem()).retries(0).connect().await.unwrap_err();
    assert_eq!(error.class(), "unreachable", "{error:?}");
    // Without a CA those of the system are trusted, and no others. Where there are none, the error says what to do.
    let error = Client::builder(&url).retries(0).connect().await.unwrap_err();
    let says_how = error.to_string().contains("name the certificate authority of slurmrestd");
    assert!(error.class() == "unreachable" || says_how, "{error:?}");
}

fn counter() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    (Arc::clone(&count), count)
}

#[tokio::test]
async fn answers_of_other_servers_are_not_shown() {
    let hidden = "the password is swordfish";
    let answers: Vec<HttpResponse> = vec![
        HttpResponse::Http(500, hidden.to_owned()),
        HttpResponse::Http(401, hidden.to_owned()),
        HttpResponse::Http(403, format!(r#"{{"message": "{hidden}"}}"#)),
        HttpResponse::Http(404, hidden.to_owned()),
        HttpResponse::Http(503, hidden.to_owned()),
        HttpResponse::Http(302, hidden.to_owned()),
        HttpResponse::ok(hidden),
        HttpResponse::ok(&format!(r#""{hidden}""#)),
        HttpResponse::ok(&format!(r#"{{"paths": "{hidden}"}}"#)),
        HttpResponse::ok(&format!(r#"{{"paths": {{"/slurm/v0.0.45/ping/": "{hidden}"}}}}"#)),
        HttpResponse::ok(&format!(r#"{{"paths": {{"/{hidden}/v1": {{"get": {{}}}}}}}}"#)),
    ];
    for answer in answers {
        // The first call, and a later one.
        let server = Server::start({
            let answer = answer.clone();
            move |_| answer.clone()
        })
        .await;
        let first = server.builder().hide_answers().connect().await.unwrap_err();
        let server = Server::offering({
            let answer = answer.clone();
            move |_| answer.clone()
        })
        .await;
        let later = server.builder().hide_answers().connect().await.unwrap().nodes().await.unwrap_err();
        for error in [first, later] {
            let text = format!("{error:?} {error}");
            assert!(!text.contains("swordfish"), "{answer:?}: {text}");
        }
    }
    let error = r#"{"errors": [{"error_number": 2002, "error": "E", "description": "Access denied"}]}"#;
    let server = Server::offering(move |_| HttpResponse::Http(500, error.to_owned())).await;
    let shown = server.builder().hide_answers().connect().await.unwrap().nodes().await.unwrap_err().to_string();
    assert!(shown.contains("Access denied"), "what Slurm says is shown: {shown}");
}
