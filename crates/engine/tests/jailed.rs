//! Node filters and volumes of a cluster whose jobs share a root file system.

use engine::jailed::{
    filters::{NodeFilter, NodeFilters},
    volumes::{Mount, Mounted, Volume, VolumeSource, VolumeSources},
};
use serde_json::{Map, Value, json};
use slurm_operator_api::common::{template::Overlay, validation::FieldError};

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn overlay(value: Value) -> Overlay {
    fields(value).into()
}

fn texts(problems: &[FieldError]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn source(name: &str, source: Value) -> VolumeSource {
    VolumeSource { name: name.to_owned(), source: fields(source) }
}

fn mount(name: &str, path: &str, source: &str) -> Mount {
    Mount {
        name: name.to_owned(),
        volume: Volume { source: Some(source.to_owned()), claim: None },
        path: path.to_owned(),
        field: format!("spec.mounts[{name}]"),
        ..Mount::default()
    }
}

fn sources() -> VolumeSources {
    let jail = source("jail", json!({"persistentVolumeClaim": {"claimName": "shared", "new": 1}, "emptyDir": null}));
    VolumeSources::new(vec![jail, source("scratch", json!({"emptyDir": {}}))], "spec.volumeSources").unwrap_or_default()
}

#[test]
fn a_filter_becomes_fields_of_a_pod() {
    let affinity = json!({"nodeAffinity": {"fromTheFuture": [1]}});
    let gpu = NodeFilter {
        name: "gpu".into(),
        node_selector: [("pool".to_owned(), "gpu".to_owned())].into(),
        affinity: Some(overlay(affinity.clone())),
        tolerations: vec![overlay(json!({"operator": "Exists"}))],
    };
    let any = NodeFilter { name: "any".into(), affinity: Some(Overlay::default()), ..NodeFilter::default() };
    let filters = NodeFilters::new(vec![gpu, any], "spec.k8sNodeFilters").unwrap();
    let expected =
        json!({"nodeSelector": {"pool": "gpu"}, "affinity": affinity, "tolerations": [{"operator": "Exists"}]});
    assert_eq!(Value::from(filters.pod_fields("gpu", "spec.a").unwrap()), expected);
    assert_eq!(Value::from(filters.pod_fields("any", "spec.a").unwrap()), json!({}));
    let problem = filters.pod_fields("system", "spec.slurmNodes.rest.k8sNodeFilterName").unwrap_err();
    let expected = "spec.slurmNodes.rest.k8sNodeFilterName: `system` is not in spec.k8sNodeFilters, which has gpu, any";
    assert_eq!(problem.to_string(), expected);
    let problem = NodeFilters::default().pod_fields("gpu", "spec.a").unwrap_err();
    assert!(problem.message.ends_with("which is empty"), "{problem}");
}

#[test]
fn names_are_unique() {
    let filter = |name: &str| NodeFilter { name: name.into(), ..NodeFilter::default() };
    let problems = NodeFilters::new(vec![filter("a"), filter("b"), filter("a"), filter("a")], "spec.k8sNodeFilters");
    let expected = [
        "spec.k8sNodeFilters[2].name: `a` is the name of spec.k8sNodeFilters[0], too",
        "spec.k8sNodeFilters[3].name: `a` is the name of spec.k8sNodeFilters[0], too",
    ];
    assert_eq!(texts(&problems.unwrap_err()), expected);
}

#[test]
fn a_volume_is_exactly_one_thing() {
    let wrong = vec![
        source("jail", json!({})),
        source("jail", json!({"emptyDir": null, "nfs": null})),
        source("both", json!({"emptyDir": {}, "hostPath": {"path": "/"}})),
    ];
    let problems = VolumeSources::new(wrong, "spec.volumeSources").unwrap_err();
    let expected = [
        "spec.volumeSources[1].name: `jail` is the name of spec.volumeSources[0], too",
        "spec.volumeSources[0]: does not say what the volume is: set one source, such as persistentVolumeClaim",
        "spec.volumeSources[1]: does not say what the volume is: set one source, such as persistentVolumeClaim",
        "spec.volumeSources[2]: has 2 sources, emptyDir and hostPath: keep one",
    ];
    assert_eq!(texts(&problems), expected);
}

#[test]
fn mounts_become_volumes_claims_and_mounts() {
    let claim = json!({"resources": {"requests": {"storage": "1Gi"}}, "new": true});
    let data = Mount {
        volume: Volume { source: None, claim: Some(overlay(claim.clone())) },
        sub_path: "today".into(),
        is_read_only: true,
        ..mount("data", "//data/./sets/", "")
    };
    let mounted = sources().mount(&[mount("jail", "/mnt/jail", "jail"), data], "/mnt/jail.upper").unwrap();
    let expected = Mounted {
        volumes: vec![json!({"name": "jail", "persistentVolumeClaim": {"claimName": "shared", "new": 1}})],
        claims: vec![json!({"metadata": {"name": "data"}, "spec": claim})],
        mounts: vec![
            json!({"name": "jail", "mountPath": "/mnt/jail.upper/mnt/jail"}),
            json!({"name": "data", "mountPath": "/mnt/jail.upper/data/sets", "subPath": "today", "readOnly": true}),
        ],
    };
    assert_eq!(mounted, expected);
    assert_eq!(sources().mount(&[], ""), Ok(Mounted::default()));
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let claim = Some(overlay(json!({"storageClassName": "fast"})));
    let both = Volume { source: Some("jail".into()), claim };
    let wrong = [
        mount("a", "/data", "jail"),
        mount("a", "/data/", "nowhere"),
        Mount { volume: Volume::default(), ..mount("b", "data", "") },
        Mount { volume: both, ..mount("c", "/a/../b", "") },
        mount("d", "/", "scratch"),
    ];
    let problems = texts(&sources().mount(&wrong, "").unwrap_err());
    let expected = [
        "spec.mounts[a].name: `a` is used twice",
        "spec.mounts[a].mountPath: `/data` is mounted twice",
        "spec.mounts[a].volumeSourceName: `nowhere` is not in spec.volumeSources, which has jail, scratch",
        "spec.mounts[b].mountPath: `data` is not an absolute path below / without ..",
        "spec.mounts[b]: set volumeSourceName or volumeClaimTemplateSpec",
        "spec.mounts[c].mountPath: `/a/../b` is not an absolute path below / without ..",
        "spec.mounts[c]: has volumeSourceName and volumeClaimTemplateSpec: keep one",
        "spec.mounts[d].mountPath: `/` is not an absolute path below / without ..",
    ];
    assert_eq!(problems, expected);
}
