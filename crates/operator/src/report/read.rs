//! Reads objects, Secrets and logs. What cannot be read is a fact.

use std::collections::BTreeSet;

use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, Deployment, ReplicaSet, StatefulSet},
    core::v1::{ConfigMap, Event, Node, PersistentVolumeClaim, Pod, Secret, Service},
    discovery::v1::EndpointSlice,
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api,
    api::{ApiResource, LogParams},
};
use serde_json::{Value, json};

use super::plan_parts::{Log, Name, namespaces};
use crate::{
    failure::{Failure, call},
    status::{
        model::Unread,
        read::{Reader, kinds, of, unread},
    },
};

/// How many lines are read of a log.
const LINES: i64 = 5_000;

/// How much is read of a log at most.
const MOST_READ: i64 = 32 << 20;

/// How much of a log is kept: its end.
const MOST_KEPT: usize = 1 << 20;

/// How many logs and Secrets are read at the same time.
const CONCURRENCY: usize = 8;

/// What was read from Kubernetes.
#[derive(Debug, Default)]
pub struct Found {
    pub objects: Vec<Value>,
    pub events: Vec<Value>,
    pub unread: Vec<Unread>,
}

impl Found {
    pub fn add(&mut self, other: Self) {
        let Self { objects, events, unread } = other;
        self.objects.extend(objects);
        self.events.extend(events);
        self.unread.extend(unread);
    }
}

/// The kinds of Kubernetes that ours are made of.
fn their_kinds() -> Vec<ApiResource> {
    vec![
        of::<Pod>(),
        of::<StatefulSet>(),
        of::<Deployment>(),
        of::<ReplicaSet>(),
        of::<ControllerRevision>(),
        of::<Service>(),
        of::<EndpointSlice>(),
        of::<ConfigMap>(),
        of::<PersistentVolumeClaim>(),
        of::<PodDisruptionBudget>(),
        of::<NetworkPolicy>(),
    ]
}

/// All objects of the kinds that matter, in the namespaces in which there are objects of ours.
pub async fn clusters(reader: &Reader) -> Found {
    let mut found = list(reader, &kinds(), false).await;
    for namespace in namespaces(&found.objects) {
        let there = Reader { client: reader.client.clone(), namespace: Some(namespace), is_cached: reader.is_cached };
        found.add(list(&there, &their_kinds(), true).await);
    }
    found
}

/// The same in the namespace of the operator.
pub async fn operator(reader: &Reader) -> Found {
    let all = [of::<Pod>(), of::<Deployment>(), of::<ReplicaSet>(), of::<Service>(), of::<ConfigMap>()];
    list(reader, &all, true).await
}

pub async fn nodes(reader: &Reader) -> Found {
    list(reader, &[of::<Node>()], false).await
}

async fn list(reader: &Reader, kinds: &[ApiResource], with_events: bool) -> Found {
    let mut found = Found::default();
    let (lists, events) = futures::join!(join_all(kinds.iter().map(|kind| reader.list(kind, ""))), async {
        if with_events { reader.list(&of::<Event>(), "").await } else { Ok(Vec::new()) }
    });
    for (kind, list) in kinds.iter().zip(lists) {
        match list {
            Ok(items) => found.objects.extend(items.into_iter().map(|item| titled(kind, item))),
            Err(failure) => found.unread.push(place(reader, unread(&kind.plural, &failure))),
        }
    }
    match events {
        Ok(events) => found.events = events,
        Err(failure) => found.unread.push(place(reader, unread("events", &failure))),
    }
    found
}

fn place(reader: &Reader, mut unread: Unread) -> Unread {
    if let Some(namespace) = reader.namespace.as_ref().filter(|_| unread.what != "nodes") {
        unread.what = format!("{} in {namespace}", unread.what);
    }
    unread
}

/// Items of a list do not say what they are.
fn titled(kind: &ApiResource, mut item: Value) -> Value {
    if let Some(fields) = item.as_object_mut() {
        fields.insert("apiVersion".to_owned(), kind.api_version.clone().into());
        fields.insert("kind".to_owned(), kind.kind.clone().into());
    }
    item
}

/// Reads Secrets. One that does not exist is an object that says so.
pub async fn secrets(reader: &Reader, names: BTreeSet<Name>) -> Found {
    let mut found = Found::default();
    let read = stream::iter(names).map(|name| async move {
        let api = Api::<Secret>::namespaced(reader.client.clone(), &name.namespace);
        let secret =
            call("reading", || format!("Secret {}/{}", name.namespace, name.name), api.get_opt(&name.name)).await;
        (name, secret)
    });
    let read: Vec<(Name, Result<Option<Secret>, Failure>)> = read.buffered(CONCURRENCY).collect().await;
    let mut forbidden = BTreeSet::new();
    for (name, secret) in read {
        let Name { namespace, name, .. } = name;
        match secret {
            Ok(Some(secret)) => {
                let mut value = serde_json::to_value(&secret).unwrap_or_default();
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("kind".to_owned(), "Secret".into());
                }
                found.objects.push(value);
            }
            Ok(None) => found.objects.push(json!({
                "kind": "Secret", "metadata": {"namespace": namespace, "name": name}, "message": "something refers to it, and it does not exist",
            })),
            // One line for all.
            Err(failure) if failure.class() == "Forbidden" && !forbidden.insert(namespace.clone()) => {}
            Err(failure) => found.unread.push(unread(&format!("Secret {namespace}/{name}"), &failure)),
        }
    }
    found
}

/// Reads logs, each with its text or why it could not be read.
pub async fn logs(reader: &Reader, logs: Vec<Log>) -> Vec<(Log, Result<String, Unread>)> {
    let read = stream::iter(logs).map(|log| async move {
        let text = one_log(reader, &log).await;
        (log, text)
    });
    read.buffered(CONCURRENCY).collect().await
}

async fn one_log(reader: &Reader, log: &Log) -> Result<String, Unread> {
    let pods = Api::<Pod>::namespaced(reader.client.clone(), &log.namespace);
    let params = LogParams {
        container: Some(log.container.clone()),
        previous: log.is_previous,
        tail_lines: Some(LINES),
        limit_bytes: Some(MOST_READ),
        ..LogParams::default()
    };
    let title = || format!("log of {} in Pod {}/{}", log.container, log.namespace, log.pod);
    let text =
        call("reading the", title, pods.logs(&log.pod, &params)).await.map_err(|failure| unread(&title(), &failure))?;
    Ok(end_of(&text, MOST_KEPT).to_owned())
}

/// The last lines of a text that fit.
pub(super) fn end_of(text: &str, most: usize) -> &str {
    let Some(mut start) = text.len().checked_sub(most).filter(|start| *start > 0) else { return text };
    while !text.is_char_boundary(start) {
        start += 1;
    }
    let (_, end) = text.split_at(start);
    end.split_once('\n').map_or(end, |(_, lines)| lines)
}
