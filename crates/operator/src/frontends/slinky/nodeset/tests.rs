use std::{collections::HashMap, sync::Arc};

use engine::{
    conditions::ConditionStatus,
    lint::lint,
    plan::{Desired, FromTemplate, Next, ObjectVersion, Plan, Step},
    podset::{self, Jobs, Phase, SlurmNode, SlurmObservation, SlurmdState, Snapshot, Worker},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{ResourceExt, runtime::watcher::Event};
use serde_json::{Value, json};
use slurm::states::NodeState;
use slurm_operator_api::slinky::{Controller, NodeSet, NodeSetStatus, names};

use super::plan::{Cluster, Facts, GresTypes, LiveChildren, Revision, plan};
use crate::{
    frontends::{
        self,
        slinky::keys::{Ring, ring_of},
    },
    kube_view::{
        own_writes::{ChildrenOf, OwnWrites},
        stores::{Store, Workers},
    },
    machine::Kind,
    trigger::{Trigger, TriggerKind},
};

mod gpus;
mod other_sets;
mod revisions;

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn set(spec: &Value) -> NodeSet {
    let mut full = json!({
        "controllerRef": {"name": "slurm"},
        "replicas": 2,
        "slurmd": {"image": "registry.example/slurmd:26.05"},
        "template": {"spec": {"hostname": "gpu-"}},
    });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet",
        "metadata": {"name": "workers", "namespace": "ns", "uid": "set-uid", "generation": 1},
        "spec": full,
    }))
    .unwrap()
}

#[test]
fn a_missing_drain_policy_is_reported() {
    let condition = |has_drain_policy| {
        let plan = plan(&set(&json!({"drain": {"onDelete": true}})), &Facts { has_drain_policy, ..base_facts() }, NOW);
        let found = plan.conditions.into_iter().find(|found| found.type_ == "DrainOnDelete");
        found.map(|found| (found.status, found.reason))
    };
    assert_eq!(condition(Some(false)), Some((ConditionStatus::False, "PolicyMissing")));
    assert_eq!((condition(Some(true)), condition(None)), (None, None));
}

fn base_facts() -> Facts {
    let controller: Controller = serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
        "metadata": {"name": "slurm", "namespace": "ns", "uid": "controller-uid"},
        "spec": {"slurmKeyRef": {"name": "keys", "key": "slurm.key"}, "jwtKeyRef": {"name": "keys", "key": "jwt.key"}},
    }))
    .unwrap();
    Facts {
        cluster: Some(Cluster {
            controller: Box::new(controller),
            has_key: true,
            ring: Ring::NotUsed,
            gres_types: GresTypes::default(),
        }),
        podset: podset::Facts {
            slurm: SlurmObservation::NoClient { why: "not polled yet".into() },
            ..podset::Facts::default()
        },
        revisions: Vec::new(),
        siblings: set(&json!({})).owner_refs(),
        live: LiveChildren::default(),
        has_drain_policy: None,
        sssd_hash: None,
        propagated_conditions: Vec::new(),
        domain: "cluster.local".into(),
    }
}

trait Owners {
    fn owner_refs(&self) -> Vec<OwnerReference>;
}

impl Owners for NodeSet {
    fn owner_refs(&self) -> Vec<OwnerReference> {
        kube::Resource::controller_owner_ref(self, &()).into_iter().collect()
    }
}

fn planned(set: &NodeSet, facts: &Facts) -> Plan<NodeSetStatus> {
    let plan = plan(set, facts, NOW);
    assert_eq!(lint(set, &plan), []);
    plan
}

fn created(plan: &Plan<NodeSetStatus>) -> Vec<&FromTemplate> {
    let parts = plan.stages.iter().flatten().flat_map(Step::parts);
    parts.filter_map(|step| if let Step::Create(object) = step { Some(&**object) } else { None }).collect()
}

fn titles(plan: &Plan<NodeSetStatus>) -> Vec<Vec<String>> {
    plan.stages.iter().map(|stage| stage.iter().map(Step::title).collect()).collect()
}

fn ready(plan: &Plan<NodeSetStatus>) -> (ConditionStatus, &'static str, &str) {
    let new_condition = plan.conditions.iter().find(|new_condition| new_condition.type_ == "Ready").unwrap();
    (new_condition.status, new_condition.reason, &new_condition.message)
}

fn revision(number: i64, hash: &str, data: Value) -> Revision {
    let object: k8s_openapi::api::apps::v1::ControllerRevision = serde_json::from_value(json!({
        "metadata": {"name": format!("workers-{hash}"), "namespace": "ns", "uid": hash, "resourceVersion": "1"},
        "revision": number,
    }))
    .unwrap();
    let object = ObjectVersion::of::<k8s_openapi::api::apps::v1::ControllerRevision>(&object);
    Revision { object, hash: hash.to_owned(), number, data, claim_templates: Some("[]".to_owned()) }
}

fn applied_revision(plan: &Plan<NodeSetStatus>) -> Option<&Desired> {
    plan.stages.iter().flatten().find_map(|step| match step {
        Step::Apply(desired) if desired.resource.kind == "ControllerRevision" => Some(&**desired),
        _ => None,
    })
}

fn written(plan: &Plan<NodeSetStatus>) -> Option<(String, Value)> {
    let applied = applied_revision(plan)?;
    Some((applied.object.name_any(), applied.object.data.clone()))
}

fn recorded_claims(plan: &Plan<NodeSetStatus>) -> Option<String> {
    applied_revision(plan)?.object.annotations().get(names::annotation::CLAIM_TEMPLATES).cloned()
}

#[test]
fn workers_are_created_at_once_from_one_template() {
    let plan = planned(&set(&json!({})), &base_facts());
    let titles = titles(&plan);
    assert!(titles[0][0].starts_with("apply ControllerRevision workers-"), "{titles:?}");
    for title in [
        "apply Service slurm-workers-slurm",
        "apply PodDisruptionBudget slurm-workers-pdb-slurm",
        "create Pod workers-0",
        "create Pod workers-1",
    ] {
        assert!(titles[1].contains(&title.to_owned()), "{title} of {titles:?}");
    }
    let objects = created(&plan);
    assert!(Arc::ptr_eq(&objects[0].template, &objects[1].template), "the template is shared");
    let pod = objects[1].render();
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    assert_eq!(text("/spec/hostname"), "gpu-1");
    assert_eq!(text("/spec/subdomain"), "slurm-workers-slurm");
    assert_eq!(text("/spec/dnsConfig/searches/0"), "slurm-workers-slurm.ns.svc.cluster.local");
    assert_eq!(text("/metadata/ownerReferences/0/uid"), "set-uid");
    assert_eq!(pod["metadata"]["labels"]["nodeset.slinky.slurm.net/pod-index"], "1");
    assert_eq!(pod["metadata"]["labels"]["slinky.slurm.net/cluster"], "slurm");
    assert_eq!(pod["metadata"]["labels"]["controller.kubernetes.io/hash"], plan.status.node_set_hash);
    assert_eq!(
        pod["spec"]["containers"][0]["args"],
        json!([
            "-Z",
            "--conf-server",
            "slurm-controller.ns:6817",
            "--conf",
            r#"'Features=gpu'"${SLINKY_TOPOLOGY:+ Topology=$SLINKY_TOPOLOGY}""#,
            "-N",
            "$(SLURM_NODE_NAME)",
        ])
    );
    assert_eq!(pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"], "/readyz");
    let tolerated: Vec<_> = pod["spec"]["tolerations"].as_array().unwrap().iter().map(|t| t["key"].clone()).collect();
    assert!(tolerated.contains(&json!("node.kubernetes.io/unreachable")), "an unresponsive kubelet must not end jobs");
}

#[test]
fn an_old_slurm_gets_only_supported_options() {
    let set = set(&json!({"slurmd": {"image": "registry.example/slurmd:24.11"}, "extraConf": "Weight=10 Port=7000"}));
    let plan = planned(&set, &base_facts());
    let container = created(&plan)[0].render()["spec"]["containers"][0].clone();
    assert_eq!(container["args"][4], "'Features=gpu Port=7000 Weight=10'", "24.11 knows no Topology here");
    assert_eq!(container["livenessProbe"]["tcpSocket"]["port"], "slurmd");
    assert_eq!(container["ports"][0]["containerPort"], 7000);
}

/// A spec, the facts, the reason of the problem and a part of its message.
type Case = (Value, fn() -> Facts, &'static str, &'static str);

#[test]
fn problems_say_what_to_do_and_change_no_worker() {
    let no_key = || {
        let mut facts = base_facts();
        facts.cluster.as_mut().unwrap().has_key = false;
        facts
    };
    let cases: [Case; 7] = [
        (
            json!({}),
            || Facts { cluster: None, ..base_facts() },
            "ReferenceMissing",
            "the Controller slurm does not exist: create it",
        ),
        (json!({}), no_key, "ReferenceMissing", "the Secret keys has no entry slurm.key"),
        (json!({"slurmd": {}}), base_facts, "InvalidSpec", "spec.slurmd.image: required"),
        (json!({"extraConf": "no equals sign"}), base_facts, "InvalidSpec", "spec.extraConf"),
        (json!({"template": {"spec": {"volumes": "none"}}}), base_facts, "InvalidSpec", "spec.template.spec"),
        (
            json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "50"}}}),
            base_facts,
            "InvalidSpec",
            "maxUnavailable",
        ),
        (json!({"drain": {"timeout": "soon"}}), base_facts, "InvalidSpec", "spec.drain.timeout"),
    ];
    for (spec, facts, reason, hint) in cases {
        let facts = facts();
        let plan = planned(&set(&spec), &facts);
        assert!(plan.stages.is_empty(), "{hint}: {:?}", titles(&plan));
        let (status, said, message) = ready(&plan);
        assert_eq!((status, said), (ConditionStatus::False, reason));
        assert!(message.contains(hint), "{message}");
        assert_eq!(plan.next, Next::OnChange, "a change triggers the next reconcile");
        assert!(!plan.status.selector.is_empty() && !plan.status.node_set_hash.is_empty(), "the schema requires them");
    }
}

fn busy_worker() -> (Worker, Snapshot) {
    let worker = Worker {
        name: "workers-0".into(),
        uid: "u".into(),
        resource_version: "1".into(),
        hostname: Some("gpu-0".into()),
        index: Some("0".into()),
        phase: Phase::Running,
        slurmd: SlurmdState::Running { since: None },
        ready: Some(NOW),
        ..Worker::default()
    };
    let busy = SlurmNode { states: [NodeState::Allocated].into_iter().collect(), ..SlurmNode::default() };
    let snapshot = Snapshot {
        nodes: Arc::new([("gpu-0".to_owned(), busy)].into()),
        read_at: NOW,
        period: SignedDuration::from_secs(1),
        ctld_started: None,
        clock_ahead: Some(SignedDuration::ZERO),
        version: None,
        pending: HashMap::new(),
        jobs: Jobs::Unread,
        reservations: None,
    };
    (worker, snapshot)
}

#[test]
fn with_an_invalid_spec_workers_are_still_protected_drained_counted_and_deleted() {
    let (worker, snapshot) = busy_worker();
    let worker = Worker { revision: Some("first".into()), ..worker };
    let facts = || Facts {
        podset: podset::Facts {
            workers: vec![Arc::new(worker.clone())],
            slurm: SlurmObservation::Clear(Arc::new(snapshot.clone())),
            ..podset::Facts::default()
        },
        revisions: vec![revision(1, "first", json!({"n": 1}))],
        ..base_facts()
    };
    let no_controller = || {
        let mut facts = Facts { cluster: None, ..facts() };
        facts.podset.yields = true;
        facts
    };
    for (wrong, has_controller) in [
        (json!({"extraConf": "no equals sign"}), true),
        (json!({"template": {"spec": {"volumes": "none", "hostname": "gpu-"}}}), true),
        (json!({"template": {"spec": {"nodeSelector": 7, "hostname": "gpu-"}}}), true),
        (json!({"drain": {"timeout": "soon", "onDelete": true}}), true),
        (json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "abc"}}}), true),
        (json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 5_000_000_000_u64}}}), true),
        (
            json!({"updateStrategy": {"type": "ScheduledUpdate", "scheduledUpdate": {"startTime": "0.0000000000Z"}}}),
            true,
        ),
        (json!({"slurmd": {}}), true),
        (json!({}), false),
    ] {
        let facts = if has_controller { facts() } else { no_controller() };
        let spec = |replicas: i32| {
            let mut spec = wrong.clone();
            spec["replicas"] = json!(replicas);
            spec
        };
        let plan = planned(&set(&spec(2)), &facts);
        let steps = titles(&plan).concat();
        let protects = |step: &String| step.contains("pod-protect") && step.ends_with(" of Pod workers-0");
        assert!(steps.iter().any(protects), "{wrong}: {steps:?}");
        assert!(steps.contains(&"apply PodDisruptionBudget slurm-workers-pdb-slurm".to_owned()), "{steps:?}");
        assert!(created(&plan).is_empty() && written(&plan).is_none(), "{wrong}: {steps:?}");
        assert_eq!((plan.status.replicas, plan.status.slurm_allocated), (1, 1), "{wrong}");
        assert_eq!(plan.status.update_revision.as_deref(), Some("workers-first"), "{wrong}");
        assert!(plan.events[0].is_warning, "{wrong}");

        let plan = planned(&set(&spec(0)), &facts);
        assert!(plan.stages.iter().flatten().any(|step| step.name() == "slurm"), "it is drained: {wrong}");

        let mut going = set(&spec(2));
        going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(NOW));
        going.metadata.finalizers = Some(vec!["nodeset.slinky.slurm.net/drain".into()]);
        let mut empty = facts;
        empty.podset.workers.clear();
        let plan = planned(&going, &empty);
        assert!(
            plan.stages.iter().flatten().any(|step| matches!(step, Step::Finalizer { wanted: false, .. })),
            "nothing holds it: {wrong}: {:?}",
            titles(&plan)
        );
    }
}

#[test]
fn slurmd_learns_the_limits_of_its_container_or_pod() {
    let variables = |slurmd: Value, pod: Value| {
        let spec = json!({"slurmd": slurmd, "template": {"spec": {"hostname": "gpu-", "resources": pod}}});
        let container = created(&planned(&set(&spec), &base_facts()))[0].render()["spec"]["containers"][0].clone();
        let found = container["env"].as_array().unwrap().clone();
        ["POD_CPUS", "POD_MEMORY"].map(|name| {
            let mut variable = found.iter().find(|variable| variable["name"] == name).unwrap().clone();
            variable.as_object_mut().unwrap().remove("name");
            variable
        })
    };
    let image = "registry.example/slurmd:26.05";
    let limits = |cpu: &str, memory: &str| json!({"limits": {"cpu": cpu, "memory": memory}});
    let of_pod = variables(json!({"image": image}), limits("2500m", "3Gi"));
    assert_eq!(of_pod, [json!({"value": "3"}), json!({"value": "3072"})]);
    let of_both = variables(json!({"image": image, "resources": limits("1", "1Gi")}), limits("2", "3Gi"));
    assert_eq!(of_both[0]["valueFrom"]["resourceFieldRef"]["resource"], "limits.cpu");
    assert_eq!(of_both[1]["valueFrom"]["resourceFieldRef"]["divisor"], "1Mi");
    assert_eq!(variables(json!({"image": image}), json!({})), [json!({"value": "0"}), json!({"value": "0"})]);
}

#[test]
fn slurmd_gets_its_name_as_the_last_argument() {
    let container =
        |spec: Value| created(&planned(&set(&spec), &base_facts()))[0].render()["spec"]["containers"][0].clone();
    let image = "registry.example/slurmd:26.05";
    let name_of = |container: &Value| {
        let variables = container["env"].as_array().unwrap();
        let variable = variables.iter().find(|variable| variable["name"] == "SLURM_NODE_NAME").unwrap();
        variable["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap().to_owned()
    };
    let usual = container(json!({"slurmd": {"image": image, "args": ["-vv"]}}));
    let args = usual["args"].as_array().unwrap();
    assert_eq!(args[args.len() - 3..], [json!("-vv"), json!("-N"), json!("$(SLURM_NODE_NAME)")]);
    assert_eq!(name_of(&usual), "metadata.labels['nodeset.slinky.slurm.net/pod-hostname']");
    let script = usual["lifecycle"]["preStop"]["exec"]["command"][2].as_str().unwrap();
    assert!(script.contains("$SLURM_NODE_NAME") && !script.contains("hostname"), "{script}");
    let on_host = container(json!({"template": {"spec": {"hostNetwork": true, "hostname": "gpu-"}}}));
    assert_eq!(name_of(&on_host), "spec.nodeName", "as the operator expects it of such a worker");
    let in_template = json!({"spec": {"hostname": "gpu-", "containers": [{"name": "slurmd", "args": ["-v"]}]}});
    let args = container(json!({"template": in_template}))["args"].clone();
    assert_eq!(args.as_array().unwrap().last().unwrap(), "$(SLURM_NODE_NAME)");

    let slurmd = |extra: Value| {
        let mut slurmd = json!({"image": image});
        slurmd.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        json!({ "slurmd": slurmd })
    };
    for (spec, path) in [
        (slurmd(json!({"args": ["-N", "other-0"]})), "spec.slurmd.args"),
        (slurmd(json!({"args": ["-Nother-0"]})), "spec.slurmd.args"),
        (slurmd(json!({"args": ["-vZ"]})), "spec.slurmd.args"),
        (slurmd(json!({"env": [{"name": "SLURM_NODE_NAME", "value": "x"}]})), "spec.slurmd.env"),
        (
            json!({"template": {"spec": {"containers": [{"name": "slurmd", "args": ["-N", "x"]}]}}}),
            "spec.template.spec.containers.args",
        ),
    ] {
        let plan = planned(&set(&spec), &base_facts());
        let (_, reason, message) = ready(&plan);
        assert!(reason == "InvalidSpec" && message.contains(path), "{spec}: {message}");
    }
    let fine = ["-f/etc/N.conf", "--conf", "Name=Z", "-L/var/log/Z", "-vvv"];
    let args = container(slurmd(json!({ "args": fine })))["args"].clone();
    assert_eq!(args[5], fine[0]);
}

#[test]
fn a_claim_is_created_before_its_worker_and_unconfirmed_writes_are_rechecked() {
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}});
    let set = set(&json!({"replicas": 1, "volumeClaimTemplates": [claim]}));
    let plan = planned(&set, &base_facts());
    let chain = plan.stages.iter().flatten().find(|step| matches!(step, Step::Chain(_))).unwrap();
    assert_eq!(chain.title(), "create PersistentVolumeClaim data-workers-0, then create Pod workers-0");
    let [Step::Create(claim), Step::Create(pod)] = chain.parts()[..] else { panic!("{chain:?}") };
    let (claim, pod) = (claim.render(), pod.render());
    assert_eq!(claim["spec"]["accessModes"][0], "ReadWriteOnce");
    assert_eq!(claim["metadata"]["labels"]["app.kubernetes.io/instance"], "workers");
    assert_eq!(claim["metadata"].get("ownerReferences"), None, "it is retained, so it has no owner");
    let volumes = pod["spec"]["volumes"].as_array().unwrap();
    assert_eq!(volumes.last().unwrap()["persistentVolumeClaim"]["claimName"], "data-workers-0");

    let mut facts = base_facts();
    facts.podset.creating = ["workers-0".into()].into();
    let plan = planned(&set, &facts);
    assert!(created(&plan).is_empty(), "it is being created");
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(5)));
}

#[test]
fn running_jobs_are_requested_while_workers_must_be_chosen() {
    let (worker, snapshot) = busy_worker();
    let mut facts = base_facts();
    facts.podset.workers = vec![Arc::new(worker)];
    facts.podset.slurm = SlurmObservation::Clear(Arc::new(snapshot));
    let needs = |replicas: i32| {
        let spec = json!({"replicas": replicas, "updateStrategy": {"type": "OnDelete"}});
        planned(&set(&spec), &facts).needs.unwrap()
    };
    assert_eq!([needs(1).jobs, needs(0).jobs], [false, true]);
    assert_eq!((&*needs(0).cluster.namespace, &*needs(0).cluster.name), ("ns", "slurm"));
}

#[test]
fn a_delete_that_the_store_does_not_show_is_rechecked() {
    let (set, store, own_writes) = (set(&json!({})), Workers::new(frontends::vocabularies()), OwnWrites::default());
    let pod = json!({"metadata": {
        "name": "workers-0", "namespace": "ns", "uid": "pod-uid", "resourceVersion": "1",
        "labels": {"app.kubernetes.io/name": "slurmd"},
        "ownerReferences": [{
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "name": "workers", "uid": "set-uid",
            "controller": true,
        }],
    }});
    store.take(None, Event::Apply(serde_json::from_value(pod).unwrap()), &|_| {});
    own_writes.children.deleted(&ChildrenOf::new("set-uid", "Pod"), "workers-0", "pod-uid", NOW);
    let (workers, creating) = super::workers(&set, &store, &own_writes, NOW);
    assert_eq!(workers.iter().map(|worker| (worker.terminating, worker.pending)).collect::<Vec<_>>(), [(true, true)]);
    let mut facts = base_facts();
    (facts.podset.workers, facts.podset.creating) = (workers, creating);
    let plan = plan(&set, &facts, NOW);
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(5)));
}

#[test]
fn steps_that_protect_jobs_come_first_and_informational_ones_last() {
    let (worker, snapshot) = busy_worker();
    let mut facts = base_facts();
    facts.podset.workers = vec![Arc::new(worker)];
    facts.podset.slurm = SlurmObservation::Clear(Arc::new(snapshot));
    let plan = planned(&set(&json!({})), &facts);
    let steps: Vec<&str> = plan.stages[1].iter().map(Step::name).filter(|name| *name != "apply").collect();
    assert_eq!(steps, ["amend", "create", "mark", "slurm"]);
}

#[test]
fn a_service_that_belongs_to_no_node_set_is_left_alone() {
    let mut facts = base_facts();
    let service = json!({"metadata": {"name": "slurm-workers-slurm", "namespace": "slurm", "uid": "x"}});
    facts.live.service = Some(serde_json::from_value(service).unwrap());
    let plan = planned(&set(&json!({"replicas": 1})), &facts);
    let steps = titles(&plan).concat();
    assert!(!steps.iter().any(|step| step.contains("Service") || step.contains("create Pod")), "{steps:?}");
    let degraded = plan.conditions.iter().find(|found| found.type_ == "Degraded").unwrap();
    assert!(degraded.reason == "NameTaken" && degraded.message.contains("slurm-workers-slurm"), "{degraded:?}");
}

#[test]
fn the_last_set_of_a_cluster_gives_up_shared_objects_before_it_is_gone() {
    let mut going = set(&json!({"drain": {"onDelete": true}}));
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(NOW));
    going.metadata.finalizers = Some(vec!["foregroundDeletion".into(), "nodeset.slinky.slurm.net/drain".into()]);
    let mut facts = base_facts();
    let owner = json!([{"apiVersion": "v1", "kind": "NodeSet", "name": "workers", "uid": going.metadata.uid}]);
    let service = json!({"metadata": {
        "name": "slurm-workers-slurm", "namespace": "slurm", "uid": "x", "resourceVersion": "1", "ownerReferences": owner,
    }});
    facts.live.service = Some(serde_json::from_value(service).unwrap());
    let found = |facts: &Facts| titles(&planned(&going, facts)).concat();
    assert!(
        found(&facts).iter().any(|step| step.starts_with("delete Service slurm-workers-slurm")),
        "{:?}",
        found(&facts)
    );
    let other =
        OwnerReference { kind: "NodeSet".into(), name: "other".into(), uid: "o".into(), ..OwnerReference::default() };
    facts.live.service.as_mut().unwrap().owner_references_mut().push(other);
    assert!(found(&facts).contains(&"set the owners of Service slurm-workers-slurm".to_owned()), "{:?}", found(&facts));
}

#[test]
fn a_config_map_of_a_user_is_not_taken_for_ssh() {
    let ssh = json!({"replicas": 1, "ssh": {"enabled": true, "sssdConfRef": {"name": "sssd", "key": "sssd.conf"}}});
    let plan_with = |config: Value| {
        let live =
            LiveChildren { ssh_config: Some(serde_json::from_value(config).unwrap()), ..LiveChildren::default() };
        planned(&set(&ssh), &Facts { live, sssd_hash: Some("h".into()), ..base_facts() })
    };
    let name = names::ssh_config("workers");
    let plan = plan_with(json!({"metadata": {"name": name, "namespace": "ns", "uid": "x"}, "data": {"mine": "1"}}));
    let steps = titles(&plan).concat();
    assert!(!steps.iter().any(|step| step.contains("ConfigMap") || step.contains("create Pod")), "{steps:?}");
    let degraded = plan.conditions.iter().find(|found| found.type_ == "Degraded").unwrap();
    assert!(degraded.reason == "NameTaken" && degraded.message.contains(&name), "{degraded:?}");
    // One of ours that has lost its owner.
    let labels = json!({"app.kubernetes.io/name": "slurmd", "app.kubernetes.io/instance": "workers"});
    let plan = plan_with(json!({"metadata": {"name": name, "namespace": "ns", "uid": "x", "labels": labels}}));
    let steps = titles(&plan).concat();
    assert!(steps.iter().any(|step| step.contains("ConfigMap")), "{steps:?}");
}

#[test]
fn a_set_is_woken_when_a_foreign_object_of_a_name_that_it_needs_is_gone() {
    let set = set(&json!({}));
    let gone =
        |what, name: String, namespace: &str| Trigger { what, namespace: namespace.into(), name, owners: Vec::new() };
    for (what, name) in [
        (TriggerKind::Service, names::worker_service("slurm")),
        (TriggerKind::DisruptionBudget, names::worker_disruption_budget("slurm")),
        (TriggerKind::ConfigMap, names::ssh_config("workers")),
    ] {
        assert!(set.is_affected(&gone(what, name.clone(), "ns")), "{name}");
        assert!(!set.is_affected(&gone(what, name.clone(), "other")), "{name}");
        assert!(!set.is_affected(&gone(what, "other".into(), "ns")), "{name}");
    }
}

#[test]
fn workers_of_another_cluster_are_kept() {
    let (worker, _) = busy_worker();
    let mut facts = base_facts();
    let of = |cluster: &str| vec![Arc::new(Worker { cluster: Some(cluster.into()), ..worker.clone() })];
    facts.podset.workers = of("former");
    let plan = planned(&set(&json!({"replicas": 0})), &facts);
    let steps = titles(&plan).concat();
    assert!(!steps.iter().any(|step| step.contains("delete")), "{steps:?}");
    let degraded = plan.conditions.iter().find(|found| found.type_ == "Degraded").unwrap();
    assert!(degraded.reason == "ImmutableField" && degraded.message.contains("former"), "{degraded:?}");
    assert_eq!(super::observe::joined_elsewhere(&set(&json!({})), &of("former")), Some("former"));
    assert_eq!(super::observe::joined_elsewhere(&set(&json!({})), &of("slurm")), None);
}

#[test]
fn a_worker_gets_back_the_label_by_which_it_is_found() {
    use k8s_openapi::api::core::v1::Pod;
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "workers-0", "uid": "u"}})).unwrap();
    let mut facts = Facts { cluster: None, ..base_facts() };
    facts.podset.lost = vec![ObjectVersion::of::<Pod>(&pod)];
    // Also while the set is blocked, paused, or does not want it.
    let mut paused = set(&json!({"replicas": 0}));
    paused.annotations_mut().insert("nodeset.slinky.slurm.net/paused".into(), "true".into());
    for set in [set(&json!({})), paused] {
        let steps = titles(&planned(&set, &facts)).concat();
        assert!(
            steps.iter().any(|step| step.contains("app.kubernetes.io/name") && step.ends_with("Pod workers-0")),
            "{steps:?}"
        );
    }
}

#[test]
fn workers_read_a_ring_and_wait_for_it() {
    let with = |ring| {
        let mut facts = base_facts();
        facts.cluster.as_mut().unwrap().ring = ring;
        facts
    };
    let plan = planned(&set(&json!({})), &with(ring_of("a")));
    let pod = created(&plan)[0].render();
    assert_eq!(pod["metadata"]["annotations"][names::annotation::KEY_RING], "keys-ring");
    assert_eq!(pod["spec"]["volumes"][0]["projected"]["sources"][0]["secret"]["name"], "keys-ring");
    let revision = |plan: &Plan<NodeSetStatus>| plan.status.node_set_hash.clone();
    assert_eq!(revision(&plan), revision(&planned(&set(&json!({})), &base_facts())), "the ring makes no new revision");
    let plan = planned(&set(&json!({})), &with(Ring::Missing("keys-ring".into())));
    assert_eq!(created(&plan).len(), 0);
    assert!(ready(&plan).2.contains("waiting for the Secret keys-ring"), "{:?}", ready(&plan));
}
