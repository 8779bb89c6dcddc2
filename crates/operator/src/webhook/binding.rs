//! `pods/binding`: a worker learns its place in Slurm's topology before slurmd starts.
//!
//! The API server copies annotations of a Binding to its pod when it binds it. So the Binding is changed, and nothing else
//! is written: there is no side effect, and nothing is left behind if the binding fails.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use slurm_operator_api::common::vocabulary::Vocabulary;

use super::review::{Answer, Request};
use crate::frontends;

/// As in the Go operator.
pub const PATH: &str = "/mutate--v1-binding";

/// The value of the label of pods that run slurmd.
const SLURMD: &str = "slurmd";

/// Pods must not wait for us: the operator sets the topology later, too.
const READ: Duration = Duration::from_secs(1);

/// Never refuses: a problem here must not keep a pod from its node.
pub async fn admit(client: &Client, request: Request) -> Answer {
    match tokio::time::timeout(READ, patch(client, &request)).await {
        Ok(Ok(patch)) => Answer { patch, ..Answer::default() },
        Ok(Err(error)) => {
            tracing::warn!(namespace = request.namespace, "cannot find the topology of a new worker: {error}");
            Answer::default()
        }
        Err(_) => {
            tracing::warn!(namespace = request.namespace, "cannot find the topology of a new worker in time");
            Answer::default()
        }
    }
}

async fn patch(client: &Client, request: &Request) -> kube::Result<Option<Value>> {
    let text = |path: &str| request.object.pointer(path).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (Some(pod), Some(node)) = (text("/metadata/name"), text("/target/name")) else { return Ok(None) };
    let pods = Api::<Pod>::namespaced(client.clone(), &request.namespace);
    let Some(pod) = pods.get_metadata_opt(pod).await? else { return Ok(None) };
    let is_worker =
        |vocabulary: &&&Vocabulary| pod.labels().get(vocabulary.pod_label.0).is_some_and(|program| program == SLURMD);
    let Some(vocabulary) = frontends::vocabularies().iter().find(is_worker) else { return Ok(None) };
    let node = Api::<Node>::all(client.clone()).get_metadata_opt(node).await?;
    let key = vocabulary.annotation.topology;
    let place = |annotations: &BTreeMap<String, String>| annotations.get(key).cloned().unwrap_or_default();
    let wanted = node.map(|node| place(node.annotations())).unwrap_or_default();
    Ok((wanted != place(pod.annotations())).then(|| annotate(&request.object, key, &wanted)))
}

/// A JSON patch that adds an annotation.
fn annotate(object: &Value, key: &str, value: &str) -> Value {
    if object.pointer("/metadata/annotations").is_some_and(Value::is_object) {
        let path = format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"));
        json!([{"op": "add", "path": path, "value": value}])
    } else {
        json!([{"op": "add", "path": "/metadata/annotations", "value": {key: value}}])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::offline_plan;

    const KEY: &str = "topology.slinky.slurm.net/spec";

    fn objects() -> Vec<Value> {
        let pod = |name: &str, program: &str, annotations: Value| {
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ns",
                "labels": {"app.kubernetes.io/name": program}, "annotations": annotations}})
        };
        let node = |name: &str, annotations: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}});
        vec![
            pod("gpu-0", "slurmd", json!({})),
            pod("placed-0", "slurmd", json!({KEY: "tree:s1"})),
            pod("web-0", "nginx", json!({})),
            node("rack1", json!({KEY: "tree:s1"})),
            node("bare", json!({})),
        ]
    }

    async fn answer(object: Value) -> Answer {
        let client = offline_plan::client(&Arc::new(objects()));
        let request = Request { uid: "7".into(), namespace: "ns".into(), object, old_object: Value::Null };
        admit(&client, request).await
    }

    fn binding(pod: &str, node: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"name": node}})
    }

    #[tokio::test]
    async fn a_worker_gets_the_topology_of_its_node() {
        let expected = json!([{"op": "add", "path": "/metadata/annotations", "value": {KEY: "tree:s1"}}]);
        assert_eq!(answer(binding("gpu-0", "rack1")).await.patch, Some(expected));
        let mut annotated = binding("gpu-0", "rack1");
        annotated["metadata"]["annotations"] = json!({"a": "b"});
        let path = "/metadata/annotations/topology.slinky.slurm.net~1spec";
        assert_eq!(answer(annotated).await.patch, Some(json!([{"op": "add", "path": path, "value": "tree:s1"}])));
        let moved = answer(binding("placed-0", "bare")).await.patch;
        assert_eq!(moved, Some(json!([{"op": "add", "path": "/metadata/annotations", "value": {KEY: ""}}])));
    }

    #[tokio::test]
    async fn everything_else_is_left_alone() {
        let same = [("placed-0", "rack1"), ("gpu-0", "bare"), ("gpu-0", "gone"), ("web-0", "rack1"), ("gone", "rack1")];
        for (pod, node) in same {
            assert_eq!(answer(binding(pod, node)).await, Answer::default(), "{pod} on {node}");
        }
        for nonsense in [Value::Null, json!({}), json!([1]), json!({"metadata": 7, "target": []}), binding("", "")] {
            assert_eq!(answer(nonsense).await, Answer::default());
        }
    }
}
