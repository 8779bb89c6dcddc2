//! Merges user overlays into generated containers, pod specs and service specs.
//!
//! Both are plain JSON, so that fields that are newer than our types are kept. Unlike in the Go operator, an explicit
//! `false`, `0` or `""` of the user wins, and `null` removes a field that we set.

use serde_json::{Map, Value};
use thiserror::Error;

/// Fields of an object.
pub type Fields = Map<String, Value>;

/// A user value that cannot be merged.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{path} must {must}")]
pub struct OverlayError {
    /// The path in the spec of the custom resource.
    pub path: String,
    /// What is expected, to follow "must".
    pub must: &'static str,
}

const BE_LIST: &str = "be a list";
const BE_OBJECT: &str = "be an object";

/// Merges a user's fields into a container. The name cannot change: other parts of the pod refer to it.
pub fn container(base: Value, user: &Fields, path: &str) -> Result<Value, OverlayError> {
    let mut user = user.clone();
    user.remove("name");
    // Charts render an empty image if the user set none; an empty image is never valid.
    if user.get("image").is_some_and(|image| image == "") {
        user.remove("image");
    }
    merge(base, &Value::Object(user), Shape::Container, path)
}

/// Merges a user's fields into a pod spec. A user container with the name of one of ours is merged into it; others are
/// appended.
pub fn pod_spec(base: Value, user: &Fields, path: &str) -> Result<Value, OverlayError> {
    let mut user = user.clone();
    // The chart of the Go operator renders an empty one, and API servers before 1.32 refuse to apply a field that they do not
    // know.
    if user.get("resources").is_some_and(|resources| resources.as_object().is_some_and(Map::is_empty)) {
        user.remove("resources");
    }
    merge(base, &Value::Object(user), Shape::Pod, path)
}

/// Merges a user's fields into a service spec. Our ports are kept, and the user's are appended. `externalIPs` are dropped:
/// they can take over the traffic of other Services.
pub fn service_spec(base: Value, user: &Fields, path: &str) -> Result<Value, OverlayError> {
    let mut user = user.clone();
    user.remove("externalIPs");
    merge(base, &Value::Object(user), Shape::Service, path)
}

/// The kind of an object, which decides how its fields are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain,
    Container,
    Probe,
    Lifecycle,
    Pod,
    Affinity,
    PodAffinity,
    Service,
    Item,
    /// Only the keys that the user sets are kept: an object such as a volume has one source.
    Choice,
}

/// How a field is merged.
#[derive(Clone, Copy)]
enum Rule {
    /// Merge maps recursively; replace anything else.
    Fields(Shape),
    /// Append the user's items to ours.
    Append,
    /// Merge items with the same values of these keys.
    ByKeys(&'static [&'static str], Shape),
    /// Merge by name or port; fields that we set are kept.
    Ports,
    /// Replace our list with the user's.
    Replace,
}

const HANDLERS: &[&str] = &["exec", "grpc", "httpGet", "sleep", "tcpSocket"];

fn rule(shape: Shape, field: &str) -> Rule {
    match (shape, field) {
        (Shape::Container, "args")
        | (Shape::Pod, "tolerations" | "topologySpreadConstraints" | "schedulingGates" | "readinessGates")
        | (
            Shape::PodAffinity,
            "requiredDuringSchedulingIgnoredDuringExecution" | "preferredDuringSchedulingIgnoredDuringExecution",
        ) => Rule::Append,
        (Shape::Container, "env") | (Shape::Pod, "volumes") => Rule::ByKeys(&["name"], Shape::Choice),
        (Shape::Container, "ports") => Rule::ByKeys(&["containerPort", "protocol"], Shape::Item),
        (Shape::Container, "volumeMounts") => Rule::ByKeys(&["mountPath"], Shape::Item),
        (Shape::Container, "volumeDevices") => Rule::ByKeys(&["devicePath"], Shape::Item),
        (Shape::Container, "livenessProbe" | "readinessProbe" | "startupProbe")
        | (Shape::Lifecycle, "postStart" | "preStop") => Rule::Fields(Shape::Probe),
        (Shape::Container, "lifecycle") => Rule::Fields(Shape::Lifecycle),
        (Shape::Pod, "containers" | "initContainers") => Rule::ByKeys(&["name"], Shape::Container),
        (Shape::Pod, "imagePullSecrets" | "resourceClaims") => Rule::ByKeys(&["name"], Shape::Item),
        (Shape::Pod, "hostAliases") => Rule::ByKeys(&["ip"], Shape::Item),
        (Shape::Pod, "affinity") => Rule::Fields(Shape::Affinity),
        (Shape::Affinity, "podAffinity" | "podAntiAffinity") => Rule::Fields(Shape::PodAffinity),
        (Shape::Service, "ports") => Rule::Ports,
        (Shape::Container, "command" | "envFrom") => Rule::Replace,
        _ => Rule::Fields(Shape::Plain),
    }
}

fn merge(base: Value, user: &Value, shape: Shape, path: &str) -> Result<Value, OverlayError> {
    let Value::Object(user) = user else { return overlay_error(path, BE_OBJECT) };
    let mut merged = match base {
        Value::Object(fields) => fields,
        _ => Fields::new(),
    };
    if shape == Shape::Probe && user.iter().any(|(key, value)| is_handler(key) && !value.is_null()) {
        merged.retain(|key, _| !is_handler(key));
    }
    if shape == Shape::Choice {
        merged.retain(|key, _| user.contains_key(key));
    }
    for (key, value) in user {
        if value.is_null() {
            // Clients in Go write lists that are not set as null, and a pod without our containers cannot work.
            if !(shape == Shape::Pod && matches!(key.as_str(), "containers" | "initContainers")) {
                merged.remove(key);
            }
            continue;
        }
        let ours = merged.remove(key);
        let path = format!("{path}.{key}");
        merged.insert(key.clone(), field(ours, value, rule(shape, key), &path)?);
    }
    Ok(Value::Object(merged))
}

fn is_handler(key: &str) -> bool {
    HANDLERS.contains(&key)
}

fn field(ours: Option<Value>, user: &Value, rule: Rule, path: &str) -> Result<Value, OverlayError> {
    match rule {
        Rule::Fields(shape) => match (&ours, user) {
            (_, Value::Object(_)) if matches!(&ours, None | Some(Value::Object(_))) => {
                merge(ours.unwrap_or_default(), user, shape, path)
            }
            (Some(Value::Object(_)), _) => overlay_error(path, BE_OBJECT),
            (Some(Value::Array(_)), Value::Array(_)) => Ok(clean(user)),
            (Some(Value::Array(_)), _) => overlay_error(path, BE_LIST),
            _ if shape != Shape::Plain => overlay_error(path, BE_OBJECT),
            _ => Ok(clean(user)),
        },
        Rule::Replace => list(user, path).map(|_| clean(user)),
        Rule::Append => {
            let mut all = items(ours);
            for item in list(user, path)? {
                all.push(clean(item));
            }
            Ok(Value::Array(all))
        }
        Rule::ByKeys(keys, shape) => by_keys(items(ours), list(user, path)?, keys, shape, path),
        Rule::Ports => ports(items(ours), list(user, path)?, path),
    }
}

fn items(ours: Option<Value>) -> Vec<Value> {
    match ours {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn list<'a>(user: &'a Value, path: &str) -> Result<&'a [Value], OverlayError> {
    user.as_array().map_or_else(|| overlay_error(path, BE_LIST), |items| Ok(items.as_slice()))
}

fn by_keys(
    mut all: Vec<Value>,
    user: &[Value],
    keys: &'static [&'static str],
    shape: Shape,
    path: &str,
) -> Result<Value, OverlayError> {
    for (index, item) in user.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if !item.is_object() {
            return overlay_error(&path, BE_OBJECT);
        }
        // The first key is required; the others have defaults.
        if keys.first().is_some_and(|key| item.get(key).is_none_or(Value::is_null)) {
            return overlay_error(&path, needs(keys));
        }
        match all.iter_mut().find(|ours| keys.iter().all(|key| same(ours, item, key))) {
            Some(ours) => *ours = merge(ours.take(), item, shape, &path)?,
            None => all.push(merge(Value::Null, item, shape, &path)?),
        }
    }
    Ok(Value::Array(all))
}

fn needs(keys: &[&'static str]) -> &'static str {
    match keys.first().copied() {
        Some("containerPort") => "have a containerPort",
        Some("mountPath") => "have a mountPath",
        Some("devicePath") => "have a devicePath",
        Some("ip") => "have an ip",
        _ => "have a name",
    }
}

/// Whether two items have the same value of a key. The default protocol is TCP.
fn same(a: &Value, b: &Value, key: &str) -> bool {
    let value = |item: &Value| match (item.get(key), key) {
        (None | Some(Value::Null), "protocol") => Value::from("TCP"),
        (value, _) => value.cloned().unwrap_or_default(),
    };
    value(a) == value(b)
}

/// The user may add ports, and add fields to ours, but not change the fields that we set.
fn ports(mut all: Vec<Value>, user: &[Value], path: &str) -> Result<Value, OverlayError> {
    for (index, item) in user.iter().enumerate() {
        let path = format!("{path}[{index}]");
        let Value::Object(fields) = clean(item) else { return overlay_error(&path, BE_OBJECT) };
        let is_ours = |ours: &Value| {
            let named = fields.get("name").is_some_and(|name| ours.get("name") == Some(name));
            named || (same(ours, item, "port") && same(ours, item, "protocol"))
        };
        match all.iter_mut().find(|ours| is_ours(ours)).and_then(Value::as_object_mut) {
            Some(ours) => {
                for (key, value) in fields {
                    ours.entry(key).or_insert(value);
                }
            }
            None => all.push(Value::Object(fields)),
        }
    }
    Ok(Value::Array(all))
}

/// Removes null fields recursively.
fn clean(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), clean(value)))
            .collect::<Fields>()
            .into(),
        Value::Array(items) => items.iter().map(clean).collect(),
        other => other.clone(),
    }
}

fn overlay_error<T>(path: &str, must: &'static str) -> Result<T, OverlayError> {
    Err(OverlayError { path: path.to_owned(), must })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        let Value::Object(fields) = value else { panic!("{value}") };
        fields
    }

    fn over(base: Value, user: Value) -> Value {
        container(base, &fields(user), "spec.slurmd").unwrap()
    }

    fn pod(base: Value, user: Value) -> Value {
        pod_spec(base, &fields(user), "spec.template.spec").unwrap()
    }

    #[test]
    fn an_empty_overlay_changes_nothing() {
        let base = json!({"name": "slurmd", "args": ["-Z"], "env": [{"name": "A", "value": "1"}]});
        assert_eq!(over(base.clone(), json!({})), base);
        assert_eq!(pod(base.clone(), json!({})), base);
        assert_eq!(pod(base.clone(), json!({"resources": {}})), base, "API servers before 1.32 do not know it");
        assert_eq!(service_spec(base.clone(), &Fields::new(), "spec").unwrap(), base);
    }

    #[test]
    fn containers() {
        for (what, base, user, expected) in [
            ("args follow", json!({"args": ["-Z"]}), json!({"args": ["-vv"]}), json!({"args": ["-Z", "-vv"]})),
            ("the name is ours", json!({"name": "slurmd"}), json!({"name": "x"}), json!({"name": "slurmd"})),
            ("an empty image is ignored", json!({"image": "a"}), json!({"image": ""}), json!({"image": "a"})),
            ("a command is replaced", json!({"command": ["a"]}), json!({"command": ["b"]}), json!({"command": ["b"]})),
            (
                "an explicit false wins",
                json!({"securityContext": {"privileged": true, "runAsUser": 0}}),
                json!({"securityContext": {"privileged": false}}),
                json!({"securityContext": {"privileged": false, "runAsUser": 0}}),
            ),
            (
                "so does an empty string",
                json!({"workingDir": "/a"}),
                json!({"workingDir": ""}),
                json!({"workingDir": ""}),
            ),
            ("and zero", json!({"x": {"y": 7}}), json!({"x": {"y": 0}}), json!({"x": {"y": 0}})),
            ("null removes", json!({"startupProbe": {"exec": {}}}), json!({"startupProbe": null}), json!({})),
            (
                "a handler replaces another one, the rest of the probe is kept",
                json!({"livenessProbe": {"httpGet": {"path": "/livez"}, "periodSeconds": 10}}),
                json!({"livenessProbe": {"tcpSocket": {"port": 6817}}}),
                json!({"livenessProbe": {"tcpSocket": {"port": 6817}, "periodSeconds": 10}}),
            ),
            (
                "a probe without a handler keeps ours",
                json!({"livenessProbe": {"httpGet": {"path": "/livez"}, "periodSeconds": 10}}),
                json!({"livenessProbe": {"periodSeconds": 3}}),
                json!({"livenessProbe": {"httpGet": {"path": "/livez"}, "periodSeconds": 3}}),
            ),
            (
                "a preStop of another kind replaces ours",
                json!({"lifecycle": {"preStop": {"exec": {"command": ["a"]}}}}),
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}),
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}),
            ),
            (
                "variables by name, with one source each",
                json!({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}),
                json!({"env": [{"name": "C", "value": "3"}, {"name": "A", "valueFrom": {"fieldRef": {}}}]}),
                json!({"env": [
                    {"name": "A", "valueFrom": {"fieldRef": {}}}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"},
                ]}),
            ),
            (
                "ports by number and protocol",
                json!({"ports": [{"name": "a", "containerPort": 1, "protocol": "TCP"}]}),
                json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 1, "protocol": "UDP"}]}),
                json!({"ports": [
                    {"name": "a", "containerPort": 1, "protocol": "TCP", "hostPort": 9},
                    {"containerPort": 1, "protocol": "UDP"},
                ]}),
            ),
            (
                "mounts by path",
                json!({"volumeMounts": [{"name": "run", "mountPath": "/run"}]}),
                json!({"volumeMounts": [{"name": "mine", "mountPath": "/run"}, {"name": "b", "mountPath": "/b"}]}),
                json!({"volumeMounts": [{"name": "mine", "mountPath": "/run"}, {"name": "b", "mountPath": "/b"}]}),
            ),
            (
                "unknown fields are kept",
                json!({}),
                json!({"fromTheFuture": [1, null]}),
                json!({"fromTheFuture": [1, null]}),
            ),
        ] {
            assert_eq!(over(base, user), expected, "{what}");
        }
    }

    #[test]
    fn pods() {
        for (what, base, user, expected) in [
            (
                "containers with the same name are merged, others are appended",
                json!({"containers": [{"name": "slurmctld", "args": ["-a"]}]}),
                json!({"containers": [{"name": "slurmctld", "args": ["-b"]}, {"name": "side", "image": "x"}]}),
                json!({"containers": [{"name": "slurmctld", "args": ["-a", "-b"]}, {"name": "side", "image": "x"}]}),
            ),
            (
                "tolerations are added",
                json!({"tolerations": [{"key": "a"}]}),
                json!({"tolerations": [{"key": "b"}]}),
                json!({"tolerations": [{"key": "a"}, {"key": "b"}]}),
            ),
            (
                "a volume has one source",
                json!({"volumes": [{"name": "run", "emptyDir": {"medium": "Memory"}}]}),
                json!({"volumes": [{"name": "run", "hostPath": {"path": "/run"}}, {"name": "data", "emptyDir": {}}]}),
                json!({"volumes": [{"name": "run", "hostPath": {"path": "/run"}}, {"name": "data", "emptyDir": {}}]}),
            ),
            (
                "fields of the same source are merged",
                json!({"volumes": [{"name": "run", "emptyDir": {"medium": "Memory"}}]}),
                json!({"volumes": [{"name": "run", "emptyDir": {"sizeLimit": "1Gi"}}]}),
                json!({"volumes": [{"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]}),
            ),
            (
                "our anti-affinity is kept",
                json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"a": 1}]}}}),
                json!({"affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"b": 2}]},
                    "nodeAffinity": {"x": 1},
                }}),
                json!({"affinity": {
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"a": 1}, {"b": 2}]},
                    "nodeAffinity": {"x": 1},
                }}),
            ),
            (
                "lists without a key are replaced",
                json!({"dnsConfig": {"searches": ["a"], "options": [{"name": "ndots"}]}}),
                json!({"dnsConfig": {"searches": ["b"]}}),
                json!({"dnsConfig": {"searches": ["b"], "options": [{"name": "ndots"}]}}),
            ),
            (
                "pull secrets by name",
                json!({"imagePullSecrets": [{"name": "a"}]}),
                json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
                json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
            ),
            (
                "null does not remove the operator's containers",
                json!({"containers": [{"name": "slurmd"}], "initContainers": [{"name": "log"}], "hostname": "a"}),
                json!({"containers": null, "initContainers": null, "hostname": null}),
                json!({"containers": [{"name": "slurmd"}], "initContainers": [{"name": "log"}]}),
            ),
            (
                "null fields are removed from added items",
                json!({}),
                json!({"containers": [{"name": "side", "resources": null, "env": null}], "nodeSelector": {"a": null}}),
                json!({"containers": [{"name": "side"}], "nodeSelector": {}}),
            ),
        ] {
            assert_eq!(pod(base, user), expected, "{what}");
        }
    }

    #[test]
    fn services() {
        let base =
            json!({"selector": {"a": "b"}, "ports": [{"name": "slurmctld", "port": 6817, "targetPort": "slurmctld"}]});
        let user = json!({
            "type": "LoadBalancer", "externalIPs": ["10.0.0.1"],
            "ports": [{"name": "slurmctld", "port": 9, "nodePort": 30817}, {"name": "more", "port": 80}],
        });
        assert_eq!(
            service_spec(base, &fields(user), "spec.service.spec").unwrap(),
            json!({
                "type": "LoadBalancer", "selector": {"a": "b"},
                "ports": [
                    {"name": "slurmctld", "port": 6817, "targetPort": "slurmctld", "nodePort": 30817},
                    {"name": "more", "port": 80},
                ],
            })
        );
    }

    #[test]
    fn errors_name_the_path() {
        for (user, message) in [
            (json!({"volumes": "none"}), "spec.template.spec.volumes must be a list"),
            (json!({"volumes": [{"emptyDir": {}}]}), "spec.template.spec.volumes[0] must have a name"),
            (json!({"containers": [7]}), "spec.template.spec.containers[0] must be an object"),
            (json!({"containers": [{"name": "a", "env": {}}]}), "spec.template.spec.containers[0].env must be a list"),
            (json!({"affinity": []}), "spec.template.spec.affinity must be an object"),
            (json!({"securityContext": true}), "spec.template.spec.securityContext must be an object"),
            (json!({"dnsConfig": {"searches": "x"}}), "spec.template.spec.dnsConfig.searches must be a list"),
        ] {
            let base = json!({"securityContext": {"runAsUser": 401}, "dnsConfig": {"searches": ["a"]}});
            assert_eq!(pod_spec(base, &fields(user), "spec.template.spec").unwrap_err().to_string(), message);
        }
    }
}
