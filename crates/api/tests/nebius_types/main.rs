//! The custom resources of `slurm.nebius.ai`. `fields.txt` has the fields that there must be.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code: schemas and objects are JSON")]

mod fields;

use std::{collections::BTreeSet, sync::LazyLock};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::cel::Validator;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use slurm_operator_api::{
    nebius::{
        ActiveCheck, JailedConfig, NodeConfigurator, NodeSet, NodeSetPowerState, SlurmCluster, crds,
        shared::{IntOrText, PROMETHEUS_DURATION, Quantity},
    },
    slinky,
};

const KINDS: [&str; 6] =
    ["ActiveCheck", "JailedConfig", "NodeConfigurator", "NodeSet", "NodeSetPowerState", "SlurmCluster"];

/// Cached because deriving the CRDs is slow.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(crds);

fn crd(kind: &str) -> &'static CustomResourceDefinition {
    CRDS.iter().find(|crd| crd.spec.names.kind == kind).unwrap()
}

/// The only version of a CRD.
fn version(kind: &str) -> Value {
    let versions = &crd(kind).spec.versions;
    assert_eq!(versions.len(), 1);
    serde_json::to_value(&versions[0]).unwrap()
}

fn schema(kind: &str) -> Value {
    version(kind)["schema"]["openAPIV3Schema"].take()
}

/// Decodes an object and encodes it again.
fn again(object: &Value) -> Result<Value, String> {
    fn typed<K: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
        let typed: K = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        Ok(serde_json::to_value(typed).unwrap())
    }
    match object["kind"].as_str().unwrap() {
        "ActiveCheck" => typed::<ActiveCheck>(object),
        "JailedConfig" => typed::<JailedConfig>(object),
        "NodeConfigurator" => typed::<NodeConfigurator>(object),
        "NodeSet" => typed::<NodeSet>(object),
        "NodeSetPowerState" => typed::<NodeSetPowerState>(object),
        _ => typed::<SlurmCluster>(object),
    }
}

/// What the API server stores: it fills in defaults, and drops a null that is not allowed.
fn stored(schema: &Value, value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            let is_dropped = |name: &String| {
                fields[name].is_null() && properties.get(name).is_some_and(|field| field["nullable"] != true)
            };
            let mut result: Map<String, Value> = fields
                .iter()
                .filter(|(name, _)| !is_dropped(name))
                .map(|(name, field)| {
                    let schema = properties.get(name).unwrap_or(&schema["additionalProperties"]);
                    (name.clone(), stored(schema, field))
                })
                .collect();
            for (name, field) in properties {
                if let (false, Some(default)) = (result.contains_key(&name), field.get("default")) {
                    result.insert(name, stored(&field, default));
                }
            }
            result.into()
        }
        Value::Array(items) => items.iter().map(|item| stored(&schema["items"], item)).collect(),
        value => value.clone(),
    }
}

fn manifest(kind: &str, spec: Value) -> Value {
    let api_version = format!("slurm.nebius.ai/{}", version(kind)["name"].as_str().unwrap());
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "it", "namespace": "here"}});
    object["spec"] = spec;
    object
}

/// Returns the spec as the API server stores it, or why it refuses it. Only the rules are checked.
fn accept(kind: &str, spec: Value) -> Result<Value, String> {
    let object = stored(&schema(kind), &manifest(kind, spec));
    Validator::new().validate(&schema(kind), &object, None).map_err(|error| error.to_string())?;
    again(&object).map(|mut object| object["spec"].take())
}

#[track_caller]
fn refused(kind: &str, spec: Value, words: &str) {
    let error = accept(kind, spec).unwrap_err();
    assert!(error.contains(words), "{error}");
}

/// Whether the schema does not describe what is below the field.
fn is_opaque(path: &str) -> bool {
    path.contains(".conditions[]") || path.contains(".imagePullSecrets[]")
}

/// A value that is not the default.
fn sample(schema: &Value) -> Value {
    if let Some(choices) = schema["enum"].as_array() {
        return choices.iter().rfind(|choice| **choice != schema["default"]).unwrap_or(&choices[0]).clone();
    }
    let own = json!({"fromTheFuture": {"depth": [1, 2.5, null, true, "x", {}]}});
    match schema["type"].as_str() {
        None => json!("7Gi"),
        Some("boolean") => json!(schema["default"] != true),
        Some("integer") => json!(schema["default"].as_i64().or(schema["minimum"].as_i64()).unwrap_or(6) + 1),
        Some("array") => json!([sample(&schema["items"])]),
        Some("string") if schema["format"] == "date-time" => json!("2026-11-18T20:05:00Z"),
        Some("string") if schema["pattern"] == PROMETHEUS_DURATION => json!("1h30m"),
        Some("string") if schema["pattern"].is_string() => json!("CPU,Gres/gpu"),
        Some("string") => json!("text"),
        Some(_) if schema["additionalProperties"].is_object() => {
            json!({"key": sample(&schema["additionalProperties"])})
        }
        Some(_) => {
            let properties = schema["properties"].as_object().cloned().unwrap_or_default();
            let fields = properties.iter().map(|(name, field)| (name.clone(), sample(field)));
            let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
            fields.chain(own.as_object().cloned().filter(|_| is_open).into_iter().flatten()).collect()
        }
    }
}

/// An object with every field.
fn full(kind: &str) -> Value {
    let mut object = manifest(kind, sample(&schema(kind)["properties"]["spec"]));
    object["status"] = sample(&schema(kind)["properties"]["status"]);
    object
}

/// The place of a field in the object with every field.
fn pointer(path: &str) -> String {
    format!("/{}", path.replace("[]", "/0").replace("{}", "/key").replace('.', "/"))
}

/// Visits every field of the spec and the status, with its path and whether it is required.
fn visit(kind: &str, found: &mut impl FnMut(&Value, &str, bool)) {
    fn walk(schema: &Value, prefix: &str, found: &mut impl FnMut(&Value, &str, bool)) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{prefix}{name}");
            let required = schema["required"].as_array().is_some_and(|required| required.contains(&json!(name)));
            found(field, &path, required);
            walk(field, &format!("{path}."), found);
            walk(&field["items"], &format!("{path}[]."), found);
            walk(&field["additionalProperties"], &format!("{path}{{}}."), found);
        }
    }
    let mut root = schema(kind);
    root["properties"].as_object_mut().unwrap().retain(|name, _| name == "spec" || name == "status");
    walk(&root, "", found);
}

#[test]
fn all_kinds_have_the_names_of_the_go_operator() {
    let kinds: Vec<&str> = CRDS.iter().map(|crd| crd.spec.names.kind.as_str()).collect();
    assert_eq!(kinds, KINDS);
    for kind in KINDS {
        let crd = crd(kind);
        let plural = format!("{}s", kind.to_lowercase());
        assert_eq!(crd.metadata.name, Some(format!("{plural}.slurm.nebius.ai")));
        assert_eq!((crd.spec.group.as_str(), crd.spec.scope.as_str()), ("slurm.nebius.ai", "Namespaced"));
        assert_eq!((&crd.spec.names.plural, crd.spec.names.singular.clone()), (&plural, Some(kind.to_lowercase())));
        assert_eq!(crd.spec.names.short_names, None, "{kind}");
        assert_eq!(crd.spec.names.categories, None, "{kind}");
        let version = version(kind);
        let name = if kind == "SlurmCluster" { "v1" } else { "v1alpha1" };
        assert_eq!(
            (&version["name"], &version["served"], &version["storage"]),
            (&json!(name), &json!(true), &json!(true))
        );
    }
}

#[test]
fn every_kind_has_a_status_and_workers_scale() {
    let scale = json!({
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.labelSelector",
    });
    for kind in KINDS {
        let resources = &version(kind)["subresources"];
        assert!(resources["status"].is_object(), "{kind}");
        assert_eq!(resources["scale"], if kind == "NodeSet" { scale.clone() } else { Value::Null }, "{kind}");
    }
}

#[test]
fn kubectl_get_shows_the_columns() {
    let condition = |type_: &str| format!(".status.conditions[?(@.type==\"{type_}\")].status");
    let age = ("Age", "date", ".metadata.creationTimestamp".to_owned());
    let column = |name: &'static str, type_: &'static str, path: &str| (name, type_, path.to_owned());
    let table = [
        (
            "ActiveCheck",
            vec![
                column("Type", "string", ".spec.checkType"),
                column("Init", "boolean", ".spec.runAfterCreation"),
                column("Suspend", "boolean", ".spec.suspend"),
                column("Schedule", "string", ".spec.schedule"),
                column("K8s Status", "string", ".status.k8sJobsStatus.lastJobStatus"),
                column("Slurm Status", "string", ".status.slurmJobsStatus.lastRunStatus"),
                column("Slurm Submit Time", "string", ".status.slurmJobsStatus.lastRunSubmitTime"),
                column("Slurm ID", "string", ".status.slurmJobsStatus.lastRunId"),
                age.clone(),
            ],
        ),
        (
            "JailedConfig",
            vec![
                column("Files Written", "string", ".status.conditions[?(@.type=='FilesWritten')].reason"),
                column(
                    "Reconfiguration Status",
                    "string",
                    ".status.conditions[?(@.type=='UpdateActionsCompleted')].reason",
                ),
                column("Jailed Path", "string", ".spec.items[0].path"),
                age.clone(),
            ],
        ),
        (
            "NodeConfigurator",
            vec![
                column("Rebooter Enabled", "boolean", ".spec.rebooter.enabled"),
                column("NodeConfigurator Enabled", "boolean", ".spec.customContainer.enabled"),
                age.clone(),
            ],
        ),
        (
            "NodeSet",
            vec![
                column("Status", "string", ".status.phase"),
                column("Desired", "integer", ".spec.replicas"),
                column("Ready", "integer", ".status.replicas"),
                column("Ephemeral", "boolean", ".spec.ephemeralNodes"),
            ],
        ),
        (
            "NodeSetPowerState",
            vec![
                column("NodeSet", "string", ".spec.nodeSetRef"),
                column("Active", "integer", ".status.activeCount"),
                column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
                age,
            ],
        ),
        (
            "SlurmCluster",
            vec![
                column("Status", "string", ".status.phase"),
                column("Controllers", "string", &condition("ControllersAvailable")),
                column("Workers", "integer", ".status.readyWorkers"),
                column("Login", "integer", ".status.readyLogin"),
                column("SConfigCtrl", "string", &condition("SConfigControllerAvailable")),
                column("Accounting", "string", &condition("AccountingAvailable")),
            ],
        ),
    ];
    for (kind, columns) in table {
        let columns: Value = columns
            .into_iter()
            .map(|(name, type_, path)| json!({"name": name, "type": type_, "jsonPath": path}))
            .collect();
        assert_eq!(version(kind)["additionalPrinterColumns"], columns, "{kind}");
    }
}

#[test]
fn the_definitions_are_small() {
    // Those of soperator have more than three megabytes.
    let size = serde_json::to_string(&*CRDS).unwrap().len();
    assert!(size < 150_000, "{size}");
}

#[test]
fn kubectl_explain_knows_every_field() {
    for kind in KINDS {
        visit(kind, &mut |field, path, _| {
            let text = field["description"].as_str().unwrap_or_default();
            assert!(
                !text.is_empty() && !text.contains(['\n', '<', '>']) && !text.contains("]("),
                "{kind}.{path}: {text}"
            );
        });
    }
}

#[test]
fn the_api_server_knows_every_format() {
    for kind in KINDS {
        visit(kind, &mut |field, path, _| {
            let format = field["format"].as_str();
            assert!([None, Some("int32"), Some("int64"), Some("date-time")].contains(&format), "{path}: {format:?}");
        });
    }
}

#[test]
fn no_crd_of_this_group_is_installed_unless_asked_for() {
    let names = |crds: Vec<CustomResourceDefinition>| -> BTreeSet<String> {
        crds.into_iter().filter_map(|crd| crd.metadata.name).collect()
    };
    assert_eq!(names(slurm_operator_api::crds()), names(slinky::crds()));
    assert!(names(slurm_operator_api::crds()).is_disjoint(&names(crds())));
}

#[test]
fn types_keep_every_field() {
    for kind in KINDS {
        let object = full(kind);
        assert_eq!(again(&object).unwrap(), object);
    }
}

#[test]
fn types_have_the_defaults_of_the_schema() {
    for kind in KINDS {
        // Every object is there, and has nothing but what is required.
        let mut object = full(kind);
        visit(kind, &mut |field, path, required| {
            let is_leaf = !["object", "array"].contains(&field["type"].as_str().unwrap_or_default());
            let is_map = field["additionalProperties"].is_object();
            if !required && !is_opaque(path) && (is_leaf || is_map) {
                let (parent, name) = path.rsplit_once('.').unwrap();
                object.pointer_mut(&pointer(parent)).and_then(Value::as_object_mut).map(|parent| parent.remove(name));
            }
        });
        let stored = stored(&schema(kind), &object);
        assert_eq!(again(&object).unwrap(), stored, "{kind}");
    }
}

#[test]
fn every_optional_field_takes_null() {
    let mut fixed = BTreeSet::new();
    for kind in KINDS {
        let object = full(kind);
        visit(kind, &mut |field, path, required| {
            if is_opaque(path) || path == "spec" || path == "status" {
                return;
            }
            let is_merged = field["x-kubernetes-list-type"] == "map";
            let takes_null = !required && field.get("default").is_none() && field.get("enum").is_none() && !is_merged;
            assert_eq!(field["nullable"] == true, takes_null, "{kind}.{path}");
            if field.get("enum").is_some() && !required && field.get("default").is_none() {
                fixed.insert(path.rsplit('.').next().unwrap_or_default().to_owned());
            }
            let mut with_null = object.clone();
            *with_null.pointer_mut(&pointer(path)).unwrap() = Value::Null;
            let result = again(&stored(&schema(kind), &with_null));
            if required {
                result.unwrap_err();
            } else if takes_null {
                let mut without = object.clone();
                let (parent, name) = path.rsplit_once('.').unwrap();
                without.pointer_mut(&pointer(parent)).unwrap().as_object_mut().unwrap().remove(name);
                assert_eq!(result.unwrap(), without, "{kind}.{path}");
            } else {
                let default = field.get("default").map(|default| stored(field, default));
                let result = result.unwrap();
                assert_eq!(result.pointer(&pointer(path)), default.as_ref(), "{kind}.{path}");
            }
        });
    }
    let expected = [
        "cgroupVersion",
        "clusterType",
        "debugFlags",
        "jobAcctGatherParams",
        "jobAcctGatherType",
        "phase",
        "procMount",
    ];
    assert_eq!(fixed, expected.map(str::to_owned).into());
}

#[test]
fn numbers_and_texts_stay_what_they_are() {
    for value in [json!(4), json!("4"), json!("0.5"), json!(9_007_199_254_740_993_i64)] {
        let quantity: Quantity = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(quantity).unwrap(), value);
    }
    assert_eq!(serde_json::from_value::<IntOrText>(json!("20%")).unwrap(), IntOrText::Text("20%".into()));
    for wrong in [json!(0.5), json!(null), json!([]), json!(true)] {
        serde_json::from_value::<IntOrText>(wrong).unwrap_err();
    }
}

fn container(image: &str) -> Value {
    json!({"image": format!("registry.example.com/{image}:1.23.3"), "resources": {"cpu": 1, "memory": "1Gi"}})
}

/// A cluster as it was written for 1.23.3: workers belong to it, and its chart writes nulls.
fn older() -> Value {
    let node = |more: Value| {
        let mut node = json!({"k8sNodeFilterName": "cpu", "customInitContainers": null, "priorityClass": null});
        node.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        node
    };
    json!({
        "crVersion": "1.23.3",
        "clusterType": "cpu",
        "k8sNodeFilters": [{"name": "cpu", "nodeSelector": {"pool": "cpu"}, "affinity": null, "tolerations": null}],
        "volumeSources": [
            {"name": "jail", "persistentVolumeClaim": {"claimName": "jail", "readOnly": false}},
            {"name": "spool", "emptyDir": {}},
        ],
        "populateJail": {
            "image": "registry.example.com/jail:1.23.3",
            "k8sNodeFilterName": "cpu",
            "jailSnapshotVolume": null,
            "imagePullPolicy": null,
        },
        "secrets": {},
        "slurmNodes": {
            "controller": node(json!({
                "slurmctld": container("slurmctld"),
                "munge": container("munge"),
                "volumes": {"spool": {"volumeSourceName": "spool"}, "jail": {"volumeSourceName": "jail"}, "customMounts": null},
            })),
            "worker": node(json!({
                "size": 3,
                "slurmd": container("slurmd"),
                "munge": container("munge"),
                "maxUnavailable": 1,
                "volumes": {
                    "spool": {"volumeSourceName": "spool"},
                    "jail": {"volumeSourceName": "jail"},
                    "jailSubMounts": [{"name": "data", "mountPath": "/data", "volumeSourceName": "jail", "subPath": null}],
                },
            })),
            "login": node(json!({
                "size": 1,
                "sshd": container("sshd"),
                "munge": container("munge"),
                "sshRootPublicKeys": ["ssh-ed25519 AAAA root"],
                "sshdServiceType": "NodePort",
                "sshdServiceNodePort": null,
                "volumes": {"jail": {"volumeSourceName": "jail"}},
            })),
            "accounting": node(json!({"enabled": false, "externalDB": null, "mariadbOperator": null})),
            "rest": node(json!({"enabled": null, "rest": container("slurmrestd")})),
            "exporter": node(json!({"podMonitorConfig": null, "volumes": null})),
        },
        "partitionConfiguration": {"configType": "custom", "rawConfig": ["PartitionName=main Nodes=ALL Default=YES"]},
        "workerFeatures": null,
        "customSlurmConfig": null,
        "slurmConfig": null,
        "healthCheckConfig": null,
        "sConfigController": {
            "node": {"k8sNodeFilterName": "cpu", "size": 1},
            "container": container("sconfigcontroller"),
            "reconfigureWaitTimeout": "1m",
        },
    })
}

/// The same cluster as it was written for 5.0.0: workers are those of `NodeSets`.
fn newer() -> Value {
    let mut cluster = older();
    let fields = cluster.as_object_mut().unwrap();
    for gone in ["clusterType", "workerFeatures"] {
        fields.remove(gone);
    }
    cluster["crVersion"] = json!("5.0.0");
    cluster["slurmNodes"]["worker"] = Value::Null;
    cluster["cgroupVersion"] = json!("v1");
    cluster["plugStackConfig"] = json!({"pyxis": {"required": false}, "ncclInspectorPreConf": {}});
    cluster["partitionConfiguration"] = json!({
        "configType": "structured",
        "partitions": [{"name": "gpu", "nodeSetRefs": ["gpu"]}, {"name": "all", "isAll": true, "nodeSetRefs": null}],
    });
    cluster
}

fn workers() -> Value {
    let image = json!({"repository": "registry.example.com/slurmd", "tag": "5.0.0"});
    let resources = json!({"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": 8});
    json!({
        "slurmd": {
            "image": image,
            "resources": resources,
            "volumes": {"spool": {"emptyDir": {}}, "jail": {"persistentVolumeClaim": {"claimName": "jail"}}},
        },
        "munge": {"image": image, "resources": resources},
    })
}

#[test]
fn clusters_of_both_versions_are_accepted() {
    let spec = accept("SlurmCluster", older()).unwrap();
    assert_eq!(spec["populateJail"]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(spec["slurmNodes"]["login"]["sshdServiceNodePort"], 0);
    assert_eq!(spec["slurmNodes"]["worker"]["volumes"]["sharedMemorySize"], "64Gi");
    assert_eq!(spec["slurmNodes"]["worker"]["volumes"]["jailSubMounts"][0]["subPath"], "");
    assert_eq!(spec["slurmNodes"]["exporter"]["podMonitorConfig"]["jobLabel"], "slurm-exporter");
    assert_eq!(spec["slurmConfig"]["maxJobCount"], 20_000);
    assert_eq!(spec["slurmConfig"].get("minJobAge"), None);
    assert_eq!(spec["plugStackConfig"]["ncclInspectorPreConf"]["enabled"], false);
    assert_eq!(spec["volumeSources"][0]["persistentVolumeClaim"]["claimName"], "jail");

    let spec = accept("SlurmCluster", newer()).unwrap();
    assert_eq!(spec["slurmNodes"].get("worker"), None);
    assert_eq!(spec.get("clusterType"), None);
    assert_eq!(spec["plugStackConfig"]["ncclInspectorPreConf"]["enabled"], true);
    assert_eq!(spec["plugStackConfig"]["pyxis"]["useSquashfuse"], false);
    assert_eq!(spec["partitionConfiguration"]["partitions"][1]["nodeSetRefs"], json!([]));
}

#[test]
fn objects_with_only_what_is_required_are_accepted() {
    let spec = accept("NodeSet", workers()).unwrap();
    assert_eq!((&spec["replicas"], &spec["updateStrategy"]), (&json!(1), &json!("rollingUpdate")));
    assert_eq!(spec["slurmd"]["volumes"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"], "Delete");
    assert_eq!(spec.get("maxUnavailable"), None);
    accept("NodeSetPowerState", json!({"nodeSetRef": "gpu", "activeNodes": null})).unwrap();
    accept("JailedConfig", json!({"configMap": {"name": "motd"}, "items": null, "updateActions": null})).unwrap();
    let check = accept("ActiveCheck", json!({"name": "ssh", "slurmClusterRefName": "alps"})).unwrap();
    assert_eq!((&check["suspend"], &check["schedule"]), (&json!(true), &json!("0 0 1 1 *")));
    let check =
        json!({"name": "ssh", "slurmClusterRefName": "alps", "k8sJobSpec": {"jobContainer": {"workingDir": null}}});
    accept("ActiveCheck", check).unwrap();
    let configurator = accept("NodeConfigurator", Value::Null).unwrap();
    assert_eq!(configurator["rebooter"]["enabled"], true);
    assert_eq!((&configurator["hostNetwork"], &configurator["hostIPC"]), (&json!(true), &json!(false)));
}

#[test]
fn workers_come_from_one_place() {
    let with_size = |size: Value| {
        let mut both = newer();
        both["slurmNodes"]["worker"] = older()["slurmNodes"]["worker"].clone();
        both["slurmNodes"]["worker"]["size"] = size;
        both
    };
    refused("SlurmCluster", with_size(json!(3)), "slurmNodes.worker.size must be 0");
    accept("SlurmCluster", with_size(json!(0))).unwrap();
    accept("SlurmCluster", with_size(Value::Null)).unwrap();
    for partitions in [Value::Null, json!({"partitions": null}), json!({"partitions": [{"name": "a"}]})] {
        let mut cluster = older();
        cluster["partitionConfiguration"] = partitions;
        accept("SlurmCluster", cluster).unwrap();
    }
}

#[test]
fn rules_of_a_cluster() {
    let mut structured = newer();
    structured["partitionConfiguration"]["partitions"] = json!([]);
    refused("SlurmCluster", structured, "partitions must not be empty");

    let mut waits = older();
    waits["sConfigController"]["reconfigurePollInterval"] = json!("1m");
    refused("SlurmCluster", waits.clone(), "reconfigureWaitTimeout must be longer");
    waits["sConfigController"]["reconfigureWaitTimeout"] = json!("61s");
    accept("SlurmCluster", waits).unwrap();

    let lookback = |text: &str| {
        let mut cluster = newer();
        cluster["slurmNodes"]["exporter"]["accountingJobsLookback"] = json!(text);
        cluster
    };
    refused("SlurmCluster", lookback("0h"), "accountingJobsLookback must be more than zero");
    accept("SlurmCluster", lookback("2h")).unwrap();

    let isolation = |high: Value, max: Value| {
        let mut cluster = newer();
        cluster["slurmNodes"]["login"]["userIsolation"] = json!({"memoryHigh": high, "memoryMax": max});
        cluster
    };
    refused("SlurmCluster", isolation(json!("2Gi"), json!("2000Mi")), "memoryHigh must not be more than memoryMax");
    for (high, max) in
        [(json!("2Gi"), json!("2Gi")), (json!(1), json!("2Gi")), (Value::Null, json!(1)), (json!(1), Value::Null)]
    {
        accept("SlurmCluster", isolation(high, max)).unwrap();
    }
}

#[test]
fn an_update_takes_at_most_500_workers_at_a_time() {
    let with = |value: &Value, replicas: i32| {
        let mut set = workers();
        (set["maxUnavailable"], set["replicas"]) = (value.clone(), json!(replicas));
        set
    };
    for (value, replicas) in
        [(json!(1), 3), (json!(500), 3), (json!("100%"), 500), (json!("50%"), 1000), (json!("1%"), 0), (Value::Null, 3)]
    {
        accept("NodeSet", with(&value, replicas)).unwrap();
    }
    for (value, replicas) in [
        (json!(0), 3),
        (json!(-1), 3),
        (json!(501), 3),
        (json!(1000), 3),
        (json!("0%"), 3),
        (json!("all"), 3),
        (json!("51%"), 1000),
        (json!(""), 3),
    ] {
        refused("NodeSet", with(&value, replicas), "maxUnavailable must be a number from 1 to 500");
    }
}
