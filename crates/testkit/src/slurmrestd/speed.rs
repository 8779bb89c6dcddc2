//! The fake must be fast enough with ten thousand nodes that benchmarks measure the operator, not the fake.

use std::collections::BTreeMap;
use std::time::Instant;

use axum::body::Bytes;
use axum::http::{Method, StatusCode};

use super::cluster::{Cluster, Settings};
use super::dispatch::{Clock, Dispatcher, Request};
use super::node::Machine;
use super::reply::Content;
use super::update::NodeUpdate;

fn nodes(dispatcher: &mut Dispatcher) -> Bytes {
    let request = Request {
        method: Method::GET,
        path: "/slurm/v0.0.45/nodes/".into(),
        query: BTreeMap::new(),
        token: Some(String::new()),
        body: Bytes::new(),
    };
    let start = Instant::now();
    let reply = dispatcher.answer(&request);
    let Content::Json(text) = reply.content else { panic!("no JSON") };
    assert_eq!(reply.status, StatusCode::OK);
    eprintln!("{} bytes in {:?}", text.len(), start.elapsed());
    text
}

/// Printed with `--nocapture`; not asserted, because machines differ.
#[test]
fn lists_of_ten_thousand_nodes() {
    let start = Instant::now();
    let mut cluster = Cluster::new(Settings::default(), 1_800_000_000);
    cluster.register_many("w", 10_000, &Machine::default());
    eprintln!("created in {:?}", start.elapsed());
    let mut dispatcher = Dispatcher::new(cluster, Clock::Manual, None).unwrap();
    let first = nodes(&mut dispatcher);
    // The record of a real node has 2.6 to 2.9 kB.
    assert!((25_000_000..30_000_000).contains(&first.len()), "{}", first.len());
    let second = nodes(&mut dispatcher);
    assert_eq!(first, second);
    dispatcher.cluster.update_nodes(&["w17".into()], &NodeUpdate::drain("why not"), "root").unwrap();
    let third = nodes(&mut dispatcher);
    assert_ne!(second, third);
    dispatcher.cluster.advance(dispatcher.cluster.settings.ping_every);
    let fourth = nodes(&mut dispatcher);
    assert_ne!(third, fourth);
    dispatcher.cluster.delete_node("w17").unwrap();
    let fifth = nodes(&mut dispatcher);
    let list: serde_json::Value = serde_json::from_slice(&fifth).unwrap();
    assert_eq!(list["nodes"].as_array().map(Vec::len), Some(9_999));
}
