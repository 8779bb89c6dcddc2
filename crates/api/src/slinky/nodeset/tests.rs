use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{NodeSet, NodeSetBrief, NodeSetStatus, OnTimeout, Retention, ScalingMode, UpdateType};
use crate::slinky::testing::{fields, manifest, object, refused, round_trip, schema, validate, with};

fn minimal() -> Value {
    json!({"controllerRef": {"name": "alps"}})
}

fn node_set(field: &str, value: Value) -> NodeSet {
    object(&with(minimal(), field, value))
}

#[test]
fn a_schedule_needs_a_start() {
    let strategy = |value: Value| with(minimal(), "updateStrategy", value);
    let start = "2026-03-01T22:00:00Z";
    validate("NodeSet", &strategy(json!({}))).unwrap();
    validate("NodeSet", &strategy(json!({"type": "OnDelete", "scheduledUpdate": {}}))).unwrap();
    let schedule = json!({"startTime": start, "duration": "2h"});
    validate("NodeSet", &strategy(json!({"type": "ScheduledUpdate", "scheduledUpdate": schedule}))).unwrap();
    // The API server fills in the duration.
    validate("NodeSet", &strategy(json!({"type": "ScheduledUpdate", "scheduledUpdate": {"startTime": start}})))
        .unwrap();

    let words = "scheduledUpdate.startTime and scheduledUpdate.duration are required";
    refused("NodeSet", &strategy(json!({"type": "ScheduledUpdate"})), words);
    refused("NodeSet", &strategy(json!({"type": "ScheduledUpdate", "scheduledUpdate": {"duration": "2h"}})), words);
}

#[test]
fn requeue_and_kill_need_a_timeout() {
    let drain = |value: Value| with(minimal(), "drain", value);
    for accepted in [json!({}), json!({"timeout": "1h"}), json!({"timeout": "1h", "onTimeout": "Kill"})] {
        validate("NodeSet", &drain(accepted)).unwrap();
    }
    for policy in ["Requeue", "Kill"] {
        refused("NodeSet", &drain(json!({ "onTimeout": policy })), "timeout is required");
    }
}

#[test]
fn absent_fields_have_the_defaults_of_the_go_operator() {
    let node_set: NodeSet = object(&minimal());
    let spec = &node_set.spec;
    assert_eq!((spec.replicas(), spec.scaling_mode), (1, ScalingMode::StatefulSet));
    assert_eq!((spec.ordinal_padding(), spec.min_ready_seconds(), spec.revision_history_limit()), (0, 0, 0));
    assert!(spec.workload_disruption_protection && !spec.oversubscribe_node);
    assert!(!spec.pins_to_node() && !spec.prunes_records());
    assert_eq!((spec.ssh(), spec.partition()), (None, None));
    let retention = spec.claim_retention();
    assert_eq!((retention.when_deleted, retention.when_scaled), (Retention::Retain, Retention::Retain));
    let strategy = spec.update_strategy();
    assert_eq!((strategy.type_, strategy.max_unavailable(8)), (UpdateType::RollingUpdate, 2));
    assert_eq!(node_set.slurm_name(), "it");
}

#[test]
fn a_drain_has_no_timeout_by_default() {
    let spec = object::<NodeSet>(&minimal()).spec;
    assert_eq!(
        (spec.drain().timeout(), spec.drain().on_timeout, spec.drain().on_delete),
        (Ok(None), OnTimeout::Wait, false)
    );

    let drain = |value: Value| node_set("drain", value).spec.drain();
    let given = drain(json!({"timeout": "90m", "onTimeout": "Requeue", "onDelete": true}));
    assert_eq!(given.timeout(), Ok(Some(SignedDuration::from_mins(90))));
    assert_eq!((given.on_timeout, given.on_delete), (OnTimeout::Requeue, true));
    assert_eq!(drain(json!({"timeout": "-1m"})).timeout(), Ok(Some(SignedDuration::ZERO)));
    drain(json!({"timeout": "soon"})).timeout().unwrap_err();
}

#[test]
fn present_fields_count() {
    assert_eq!(node_set("replicas", json!(0)).spec.replicas(), 0);
    assert_eq!(node_set("ordinalPadding", json!(3)).spec.ordinal_padding(), 3);
    assert_eq!(node_set("ordinalPadding", json!(1000)).spec.ordinal_padding(), 255);
    assert_eq!(node_set("ordinalPadding", json!(-1)).spec.ordinal_padding(), 0);
    assert_eq!(node_set("minReadySeconds", json!(30)).spec.min_ready_seconds(), 30);
    assert_eq!(node_set("revisionHistoryLimit", json!(5)).spec.revision_history_limit(), 5);
    assert!(!node_set("workloadDisruptionProtection", json!(false)).spec.workload_disruption_protection);
    let policy = json!({"whenScaled": "Delete"});
    let retention = node_set("persistentVolumeClaimRetentionPolicy", policy).spec.claim_retention();
    assert_eq!((retention.when_deleted, retention.when_scaled), (Retention::Retain, Retention::Delete));
}

#[test]
fn switches_are_off_until_enabled() {
    let sssd = json!({"name": "sssd", "key": "sssd.conf"});
    assert!(node_set("ssh", json!({"sssdConfRef": sssd})).spec.ssh().is_none());
    assert!(node_set("ssh", json!({"enabled": true, "sssdConfRef": sssd})).spec.ssh().is_some());
    assert!(node_set("partition", json!({"config": "State=UP"})).spec.partition().is_none());
    assert!(node_set("partition", json!({"enabled": true})).spec.partition().is_some());
}

#[test]
fn some_switches_work_in_one_scaling_mode_only() {
    let spec = |mode: &str| {
        let spec = with(minimal(), "scalingMode", json!(mode));
        let spec = with(spec, "pinToNode", json!(true));
        object::<NodeSet>(&with(spec, "pruneSlurmNodeRecords", json!("NodeNotFound"))).spec
    };
    assert_eq!((spec("StatefulSet").pins_to_node(), spec("StatefulSet").prunes_records()), (true, false));
    assert_eq!((spec("DaemonSet").pins_to_node(), spec("DaemonSet").prunes_records()), (false, true));
    for mode in [ScalingMode::StatefulSet, ScalingMode::DaemonSet] {
        assert_eq!(json!(mode), mode.as_str());
    }
}

#[test]
fn slurm_knows_the_set_by_its_hostname() {
    let name = |hostname: &str| node_set("template", json!({"spec": {"hostname": hostname}})).slurm_name();
    assert_eq!([name("gpu-"), name("-gpu-a-"), name("gpu"), name("gpu- x")], ["gpu", "gpu-a", "gpu", "gpu"]);
    assert_eq!([name(""), name("-"), name(" ")], ["it", "it", "it"]);
}

#[test]
fn null_lists_are_empty() {
    let spec = with(minimal(), "volumeClaimTemplates", Value::Null);
    let spec = with(spec, "updateStrategy", json!({"scheduledUpdate": {"flags": null}}));
    let node_set: NodeSet = object(&spec);
    assert!(node_set.spec.volume_claim_templates.is_empty());
    assert!(node_set.spec.update_strategy().scheduled_update.unwrap().flags.is_empty());
}

#[test]
fn a_full_manifest_survives() {
    let spec = json!({
        "controllerRef": {"name": "alps"},
        "replicas": 12,
        "scalingMode": "StatefulSet",
        "slurmd": {
            "image": "registry.example.com/slurmd:25.11",
            "resources": {"limits": {"cpu": 64, "memory": "512Gi", "nvidia.com/gpu": "8"}},
            "securityContext": {"privileged": false, "capabilities": {"add": []}},
            "env": [{"name": "EMPTY", "value": ""}],
        },
        "ssh": {"enabled": true, "extraSshdConfig": "X11Forwarding no", "sssdConfRef": {"name": "sssd", "key": "sssd.conf"}},
        "logfile": {"image": "registry.example.com/alpine:3"},
        "template": {
            "metadata": {"labels": {"team": "hpc"}},
            "spec": {
                "hostname": "gpu-",
                "nodeSelector": {"gpu": "h100"},
                "containers": [{"name": "dcgm", "image": "registry.example.com/dcgm:4", "unknownToUs": [null, 1]}],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                "terminationGracePeriodSeconds": 0,
            },
        },
        "extraConf": "Weight=10 Gres=gpu:h100:8",
        "partition": {"enabled": true, "config": "State=UP MaxTime=UNLIMITED"},
        "volumeClaimTemplates": [{
            "metadata": {"name": "scratch"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": 1_000_000_000_000_i64}}},
        }],
        "updateStrategy": {
            "type": "ScheduledUpdate",
            "rollingUpdate": {},
            "scheduledUpdate": {"startTime": "2026-03-01T22:00:00Z", "flags": ["DAILY"]},
        },
        "drain": {"timeout": "12h", "onTimeout": "Kill", "onDelete": true},
        "revisionHistoryLimit": 3,
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
        "minReadySeconds": 10,
        "ordinalPadding": 3,
        "pinToNode": true,
        "workloadDisruptionProtection": false,
        "pruneSlurmNodeRecords": "NodeNotFound",
        "oversubscribeNode": true,
    });
    let node_set = round_trip::<NodeSet>(&spec);
    assert_eq!(node_set.spec.slurmd.text("image"), Some("registry.example.com/slurmd:25.11"));
    assert_eq!(node_set.slurm_name(), "gpu");
    round_trip::<NodeSet>(&minimal());
    let number = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}});
    round_trip::<NodeSet>(&with(with(minimal(), "scalingMode", json!("DaemonSet")), "updateStrategy", number));
}

#[test]
fn a_status_of_the_go_operator_is_read() {
    // The Go operator omits zeros and writes a null map.
    let status = json!({
        "replicas": 2, "desired": 2, "readyReplicas": 1, "slurmIdle": 1, "observedGeneration": 7, "nodeSetHash": "5f6d8c",
        "collisionCount": 0, "ordinalToNode": null, "selector": "app.kubernetes.io/instance=it,app.kubernetes.io/name=slurmd",
    });
    let read: NodeSetStatus = serde_json::from_value(status).unwrap();
    assert_eq!((read.replicas, read.slurm_allocated, read.observed_generation), (2, 0, Some(7)));
    assert!(read.ordinal_to_node.is_empty());

    // Zeros are written because printer columns show them.
    let written = serde_json::to_value(&read).unwrap();
    assert_eq!((&written["slurmDrain"], &written["unavailableReplicas"]), (&json!(0), &json!(0)));
    assert_eq!(serde_json::from_value::<NodeSetStatus>(written).unwrap(), read);
}

#[test]
fn the_schema_has_all_fields() {
    let expected = [
        "controllerRef",
        "drain",
        "extraConf",
        "gres",
        "logfile",
        "minReadySeconds",
        "ordinalPadding",
        "oversubscribeNode",
        "partition",
        "persistentVolumeClaimRetentionPolicy",
        "pinToNode",
        "pruneSlurmNodeRecords",
        "replicas",
        "revisionHistoryLimit",
        "scalingMode",
        "slurmd",
        "ssh",
        "template",
        "updateStrategy",
        "volumeClaimTemplates",
        "workloadDisruptionProtection",
    ];
    assert_eq!(fields("NodeSet", "spec"), expected);
    let expected = [
        "availableReplicas",
        "collisionCount",
        "conditions",
        "currentReplicas",
        "currentRevision",
        "desired",
        "nodeSetHash",
        "observedGeneration",
        "ordinalToNode",
        "readyReplicas",
        "replicas",
        "selector",
        "slurmAllocated",
        "slurmDown",
        "slurmDrain",
        "slurmIdle",
        "slurmRegistered",
        "unavailableReplicas",
        "updateRevision",
        "updatedReplicas",
    ];
    assert_eq!(fields("NodeSet", "status"), expected);

    let schema = schema("NodeSet");
    assert_eq!(schema["properties"]["status"]["required"], json!(["nodeSetHash", "selector"]));
    assert_eq!(schema["properties"]["spec"]["required"], json!(["controllerRef"]));
    let spec = &schema["properties"]["spec"]["properties"];
    let defaults = [
        ("/replicas", json!(1)),
        ("/scalingMode", json!("StatefulSet")),
        ("/ssh/properties/enabled", json!(false)),
        ("/partition/properties/enabled", json!(false)),
        ("/updateStrategy/properties/type", json!("RollingUpdate")),
        ("/updateStrategy/properties/rollingUpdate/properties/maxUnavailable", json!("25%")),
        ("/updateStrategy/properties/scheduledUpdate/properties/duration", json!("30m")),
        ("/revisionHistoryLimit", json!(0)),
        ("/persistentVolumeClaimRetentionPolicy/properties/whenDeleted", json!("Retain")),
        ("/persistentVolumeClaimRetentionPolicy/properties/whenScaled", json!("Retain")),
        ("/minReadySeconds", Value::Null),
        ("/ordinalPadding", json!(0)),
        ("/pinToNode", json!(false)),
        ("/workloadDisruptionProtection", json!(true)),
        ("/pruneSlurmNodeRecords", json!("Never")),
        ("/oversubscribeNode", json!(false)),
        ("/updateStrategy", Value::Null),
        ("/drain", Value::Null),
    ];
    for (path, default) in defaults {
        assert_eq!(spec.pointer(path).unwrap()["default"], default, "{path}");
    }
    let enums = [
        ("/scalingMode", json!(["StatefulSet", "DaemonSet"])),
        ("/updateStrategy/properties/type", json!(["RollingUpdate", "OnDelete", "ScheduledUpdate"])),
        ("/persistentVolumeClaimRetentionPolicy/properties/whenDeleted", json!(["Retain", "Delete"])),
        ("/persistentVolumeClaimRetentionPolicy/properties/whenScaled", json!(["Retain", "Delete"])),
        ("/pruneSlurmNodeRecords", json!(["Never", "NodeNotFound"])),
        ("/drain/properties/onTimeout", json!(["Wait", "Requeue", "Kill"])),
    ];
    for (path, values) in enums {
        let schema = spec.pointer(path).unwrap();
        assert_eq!((&schema["type"], &schema["enum"]), (&json!("string"), &values), "{path}");
        assert!(schema.get("oneOf").is_none(), "{path}");
    }
    assert_eq!(spec["ssh"]["required"], json!(["sssdConfRef"]));
    let strategy = &spec["updateStrategy"]["properties"];
    assert_eq!(strategy["rollingUpdate"]["properties"]["maxUnavailable"]["x-kubernetes-int-or-string"], true);
    assert_eq!(strategy["rollingUpdate"]["properties"]["maxUnavailable"]["maximum"], f64::from(i32::MAX));
    assert_eq!(strategy["scheduledUpdate"]["properties"]["startTime"]["format"], "date-time");
    assert_eq!(spec["volumeClaimTemplates"]["items"]["x-kubernetes-preserve-unknown-fields"], true);
}

#[test]
fn an_invalid_field_does_not_hide_the_set_from_others() {
    let spec = json!({
        "controllerRef": {"name": "slurm"},
        "minReadySeconds": "many",
        "template": {"spec": {"hostname": "gpu-"}},
        "partition": {"enabled": true, "config": "State=UP"},
    });
    let whole = manifest("NodeSet", &spec);
    assert!(serde_json::from_value::<NodeSet>(whole.clone()).is_err());
    let brief: NodeSetBrief = serde_json::from_value(whole).unwrap();
    assert_eq!((&*brief.spec.controller_ref.name, &*brief.slurm_name()), ("slurm", "gpu"));
    assert_eq!(brief.partition().and_then(|partition| partition.config.as_deref()), Some("State=UP"));
    assert_eq!(
        <NodeSetBrief as kube::Resource>::url_path(&(), Some("ns")),
        <NodeSet as kube::Resource>::url_path(&(), Some("ns"))
    );
}

#[test]
fn values_that_an_api_server_accepts_can_be_decoded() {
    let strategies = [
        json!({"rollingUpdate": {"maxUnavailable": 3_000_000_000_u64}}),
        json!({"scheduledUpdate": {"startTime": "2026-03-01T22:00:00.0000000000Z"}}),
    ];
    for strategy in strategies {
        round_trip::<NodeSet>(&with(minimal(), "updateStrategy", strategy));
    }
}
