//! Cost of decoding: 10,000 full nodes, 10,000 full jobs, and a poll without changes.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark fails by panicking")]

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::LazyLock,
};

use divan::{Bencher, counter::BytesCount};
use slurm::{
    client::{Client, Cursor, Poll},
    wire::{Job, JobBrief, Node, NodeBrief, Record, Records, decode},
};

fn main() {
    divan::main();
}

const COUNT: usize = 10_000;

/// Many records as slurmrestd would send them, including whitespace and line breaks.
fn many(golden: &str, key: &str) -> Vec<u8> {
    let mut answer: serde_json::Value = serde_json::from_str(golden).unwrap();
    let record = answer[key][0].clone();
    answer[key] = (0..COUNT)
        .map(|index| {
            let mut record = record.clone();
            record["name"] = format!("worker-{index}").into();
            record["comment"] =
                format!(r#"{{"namespace":"slurm","podName":"worker-{index}","node":"k8s-{index}"}}"#).into();
            record
        })
        .collect();
    serde_json::to_vec_pretty(&answer).unwrap()
}

static NODES: LazyLock<Vec<u8>> =
    LazyLock::new(|| many(include_str!("../tests/golden/26.05/v0.0.45/nodes.json"), "nodes"));
static JOBS: LazyLock<Vec<u8>> =
    LazyLock::new(|| many(include_str!("../tests/golden/26.05/v0.0.45/jobs.json"), "jobs"));

fn read<T: Record>(json: &[u8]) -> usize {
    decode::<Records<T>>(json).unwrap().finish().unwrap().body.items.len()
}

#[divan::bench(max_time = 3)]
fn decode_10_000_nodes(bencher: Bencher) {
    bencher.counter(BytesCount::of_slice(NODES.as_slice())).bench(|| assert_eq!(read::<Node>(&NODES), COUNT));
}

#[divan::bench(max_time = 3)]
fn decode_10_000_jobs(bencher: Bencher) {
    bencher.counter(BytesCount::of_slice(JOBS.as_slice())).bench(|| assert_eq!(read::<Job>(&JOBS), COUNT));
}

/// The fields of a node that a poller keeps.
#[divan::bench(max_time = 3)]
fn decode_10_000_nodes_in_brief(bencher: Bencher) {
    bencher.counter(BytesCount::of_slice(NODES.as_slice())).bench(|| assert_eq!(read::<NodeBrief>(&NODES), COUNT));
}

#[divan::bench(max_time = 3)]
fn decode_10_000_jobs_in_brief(bencher: Bencher) {
    bencher.counter(BytesCount::of_slice(JOBS.as_slice())).bench(|| assert_eq!(read::<JobBrief>(&JOBS), COUNT));
}

/// The round trip over a socket, including the server.
#[divan::bench(max_time = 3)]
fn unchanged_poll(bencher: Bencher) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || serve(&listener));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(Client::builder(&url).connect()).unwrap();
    let mut cursor = Cursor::default();
    assert!(matches!(runtime.block_on(client.nodes_since(&mut cursor)).unwrap(), Poll::Changed(_)));
    bencher.bench_local(|| {
        assert_eq!(runtime.block_on(client.nodes_since(&mut cursor)).unwrap(), Poll::Unchanged);
    });
}

/// Serves connections one after another: the list of paths, one node, then "unchanged" for ever.
fn serve(listener: &TcpListener) {
    let openapi = r#"{"paths":{"/slurm/v0.0.45/ping/":{"get":{}},"/slurm/v0.0.45/nodes/":{"get":{}}}}"#;
    let nodes = r#"{"nodes":[],"last_update":{"set":true,"infinite":false,"number":7}}"#;
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut buffer = [0; 4096];
        loop {
            let length = stream.read(&mut buffer).unwrap_or(0);
            let Some(request) = buffer.get(..length).filter(|request| !request.is_empty()) else { break };
            let answer = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let text = String::from_utf8_lossy(request);
            let answer = match text.split(' ').nth(1) {
                Some("/openapi/v3") => answer(openapi),
                Some(path) if path.contains("update_time") => "HTTP/1.1 304 NOT MODIFIED\r\n\r\n".to_owned(),
                _ => answer(nodes),
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    }
}
