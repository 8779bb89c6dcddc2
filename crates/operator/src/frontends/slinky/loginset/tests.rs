#![expect(clippy::large_stack_arrays, reason = "facts have whole objects, and tables of them are read best in place")]

use engine::{
    conditions::ConditionStatus,
    daemons::keys::KeyState,
    lint::lint,
    plan::{Next, Plan, SecretContent, Step},
};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm_operator_api::{
    common::shared::SecretKeySelector,
    slinky::{Controller, LoginSet, LoginSetStatus},
};

use super::plan::{ControllerFacts, Facts, HostKeys, plan};
use crate::{
    frontends::slinky::keys::{Ring, ring_of},
    machine::Kind,
    trigger::{Trigger, TriggerKind},
};

fn login_set(spec: &Value) -> LoginSet {
    let mut full = json!({
        "controllerRef": {"name": "lab"},
        "login": {"image": "login:26.05"},
        "sssdConfRef": {"name": "sssd", "key": "conf"},
    });
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet",
        "metadata": {"name": "front", "namespace": "slurm", "uid": "u", "generation": 1},
        "spec": full,
    }))
    .unwrap()
}

fn cluster() -> ControllerFacts {
    ControllerFacts {
        config_server: "lab-controller.slurm:6817".into(),
        generates_keys: false,
        slurm_key: Some(SecretKeySelector { name: "keys".into(), key: "slurm.key".into(), optional: None }),
        key: good("k"),
        ring: Ring::NotUsed,
    }
}

fn good(hash: &str) -> KeyState {
    KeyState::Good { hash: hash.into(), weakness: None }
}

fn facts() -> Facts {
    Facts {
        controller: Some(cluster()),
        sssd: good("s"),
        host_keys: Some(host_keys("u")),
        config_map: None,
        service: None,
        deployment: None,
        pod_problems: Vec::new(),
        domain: "cluster.local".into(),
    }
}

fn host_keys(owner: &str) -> HostKeys {
    let secret = owned(owner, "front-ssh-host-keys");
    HostKeys { secret, missing: Vec::new(), hash: "h".into() }
}

/// An object that this one controls.
fn owned<K: serde::de::DeserializeOwned>(owner: &str, name: &str) -> K {
    let owner = json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": "LoginSet", "name": "front", "uid": owner,
                       "controller": true});
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "slurm", "ownerReferences": [owner]}}))
        .unwrap()
}

/// Plans, and lints the plan.
fn planned(login_set: &LoginSet, facts: &Facts) -> Plan<LoginSetStatus> {
    let made = plan(login_set, facts);
    assert_eq!(lint(login_set, &made), []);
    assert_eq!(format!("{made:?}"), format!("{:?}", plan(login_set, facts)), "the same facts, the same plan");
    made
}

fn titles(plan: &Plan<LoginSetStatus>) -> Vec<String> {
    plan.stages.iter().flatten().map(Step::title).collect()
}

fn object(plan: &Plan<LoginSetStatus>, kind: &str) -> Value {
    let found = plan.stages.iter().flatten().find_map(|step| match step {
        Step::Apply(desired) if desired.resource.kind == kind => Some(serde_json::to_value(&desired.object).unwrap()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("no {kind} in {:?}", titles(plan)))
}

fn deployment(spec: &Value, facts: &Facts) -> Value {
    object(&planned(&login_set(spec), facts), "Deployment")
}

fn pod(spec: &Value) -> Value {
    deployment(spec, &facts())["spec"]["template"]["spec"].clone()
}

fn condition_of<'a>(plan: &'a Plan<LoginSetStatus>, type_: &str) -> (ConditionStatus, &'static str, &'a str) {
    let new_condition = plan.conditions.iter().find(|new_condition| new_condition.type_ == type_).unwrap();
    (new_condition.status, new_condition.reason, &new_condition.message)
}

#[test]
fn all_objects_have_the_names_and_labels_of_the_go_operator() {
    let plan = planned(&login_set(&json!({"replicas": 2})), &facts());
    assert_eq!(titles(&plan), ["apply ConfigMap front-ssh-config", "apply Service front", "apply Deployment front"]);
    let labels = json!({
        "app.kubernetes.io/name": "login", "app.kubernetes.io/instance": "front", "app.kubernetes.io/component": "login",
    });
    let selector = json!({"app.kubernetes.io/name": "login", "app.kubernetes.io/instance": "front"});
    let deployment = object(&plan, "Deployment");
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"], labels);
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], selector);
    assert_eq!(deployment["spec"]["replicas"], 2);
    let service = object(&plan, "Service");
    assert_eq!(service["spec"]["selector"], selector);
    assert_eq!(
        service["spec"]["ports"],
        json!([{"name": "login", "port": 22, "protocol": "TCP", "targetPort": "login"}])
    );
    assert_eq!(plan.status.selector, "app.kubernetes.io/instance=front,app.kubernetes.io/name=login");
}

#[test]
fn the_pod_has_the_files_that_the_image_expects() {
    let pod = pod(&json!({}));
    let mounts: Vec<[&str; 3]> = pod["containers"][0]["volumeMounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| ["mountPath", "name", "subPath"].map(|field| mount[field].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(
        mounts,
        [
            ["/etc/slurm", "slurm-etc", ""],
            ["/run/slurm", "sackd-dir", ""],
            ["/etc/ssh/sshd_config", "ssh-config", "sshd_config"],
            ["/root/.ssh/authorized_keys", "ssh-config", "authorized_keys"],
            ["/etc/sssd/sssd.conf", "sssd-conf", "sssd.conf"],
            ["/etc/ssh/ssh_host_ecdsa_key", "ssh-host-keys", "ssh_host_ecdsa_key"],
            ["/etc/ssh/ssh_host_ecdsa_key.pub", "ssh-host-keys", "ssh_host_ecdsa_key.pub"],
            ["/etc/ssh/ssh_host_ed25519_key", "ssh-host-keys", "ssh_host_ed25519_key"],
            ["/etc/ssh/ssh_host_ed25519_key.pub", "ssh-host-keys", "ssh_host_ed25519_key.pub"],
            ["/etc/ssh/ssh_host_rsa_key", "ssh-host-keys", "ssh_host_rsa_key"],
            ["/etc/ssh/ssh_host_rsa_key.pub", "ssh-host-keys", "ssh_host_rsa_key.pub"],
        ]
    );
    let volume = |name: &str| pod["volumes"].as_array().unwrap().iter().find(|found| found["name"] == name).unwrap();
    assert_eq!(volume("slurm-config")["projected"]["sources"][0]["secret"]["name"], "keys");
    assert_eq!(volume("ssh-host-keys")["secret"]["secretName"], "front-ssh-host-keys");
    assert_eq!(volume("ssh-host-keys")["secret"]["items"][0]["mode"], 0o600);
    assert_eq!(volume("sssd-conf")["secret"]["items"], json!([{"key": "conf", "path": "sssd.conf"}]));
    assert_eq!(pod["initContainers"][0]["image"], "login:26.05");
    assert_eq!(pod["automountServiceAccountToken"], false);
    // Workers are found by their short names.
    assert_eq!(pod["dnsConfig"]["searches"], json!(["slurm-workers-lab.slurm.svc.cluster.local"]));
}

#[test]
fn options_of_sackd_are_added_to_the_address_of_slurmctld() {
    let ours = "--conf-server lab-controller.slurm:6817";
    let env = |spec: Value| pod(&spec)["containers"][0]["env"].clone();
    assert_eq!(env(json!({})), json!([{"name": "SACKD_OPTIONS", "value": ours}]));
    let with = |value: Value| json!({"login": {"image": "x", "env": [{"name": "A", "value": "1"}, value]}});
    let user = with(json!({"name": "SACKD_OPTIONS", "value": "-vv"}));
    let expected = json!([{"name": "A", "value": "1"}, {"name": "SACKD_OPTIONS", "value": format!("{ours} -vv")}]);
    assert_eq!(env(user), expected);
    let container = json!({"name": "login", "env": [{"name": "SACKD_OPTIONS", "value": "-v"}]});
    let template = env(json!({"template": {"spec": {"containers": [container]}}}));
    assert_eq!(template, json!([{"name": "SACKD_OPTIONS", "value": format!("{ours} -v")}]));
    let elsewhere = json!({"name": "SACKD_OPTIONS", "value": "--conf-server other:1"});
    assert_eq!(env(with(elsewhere.clone()))[1], elsewhere);

    let secret = with(json!({"name": "SACKD_OPTIONS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}));
    let plan = planned(&login_set(&secret), &facts());
    let (_, reason, message) = condition_of(&plan, "Ready");
    assert!(reason == "InvalidSpec" && message.contains("spec.login.env"), "{message}");
}

#[test]
fn open_sessions_delay_the_end_of_a_pod_for_as_long_as_the_user_allows() {
    let default = pod(&json!({}));
    assert_eq!(default["terminationGracePeriodSeconds"], 86400);
    let hook =
        |pod: &Value| pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][2].as_str().unwrap().to_owned();
    assert!(hook(&default).contains(":0016 "), "port 22 in /proc/net/tcp");
    let user = json!({
        "login": {"image": "x", "ports": [{"name": "login", "containerPort": 2222}]},
        "template": {"spec": {"terminationGracePeriodSeconds": 60}},
    });
    let other = pod(&user);
    assert_eq!(other["terminationGracePeriodSeconds"], 60);
    assert!(hook(&other).contains(":08AE "), "{}", hook(&other));
    assert_eq!(other["containers"][0]["ports"], json!([{"name": "login", "containerPort": 2222, "protocol": "TCP"}]));
    let probe = other["containers"][0]["readinessProbe"]["exec"]["command"][2].as_str().unwrap().to_owned();
    assert!(probe.contains("/dev/tcp/localhost/2222") && probe.contains("sack.socket"), "{probe}");
}

#[test]
fn a_new_pod_is_ready_before_an_old_one_ends_unless_the_user_wants_otherwise() {
    let strategy = |spec: Value| deployment(&spec, &facts())["spec"]["strategy"].clone();
    let ours = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    assert_eq!(strategy(json!({})), ours);
    assert_eq!(strategy(json!({"strategy": {}})), ours, "as the chart of the Go operator renders it");
    assert_eq!(strategy(json!({"strategy": {"type": "Recreate"}})), json!({"type": "Recreate"}));
}

#[test]
fn it_rolls_when_one_of_its_files_changes() {
    let template = |spec: Value, facts: &Facts| deployment(&spec, facts)["spec"]["template"].clone();
    let first = template(json!({}), &facts());
    assert_eq!(first, template(json!({"replicas": 3}), &facts()), "not when it is scaled");
    for (what, spec, facts) in [
        ("sshd_config", json!({"extraSshdConfig": "Port 2222"}), facts()),
        ("authorized_keys", json!({"rootSshAuthorizedKeys": "ssh-ed25519 A"}), facts()),
        ("sssd.conf", json!({}), Facts { sssd: good("t"), ..facts() }),
        (
            "slurm.key",
            json!({}),
            Facts { controller: Some(ControllerFacts { key: good("l"), ..cluster() }), ..facts() },
        ),
        ("host keys", json!({}), Facts { host_keys: Some(HostKeys { hash: "i".into(), ..host_keys("u") }), ..facts() }),
        (
            "slurmctld",
            json!({}),
            Facts {
                controller: Some(ControllerFacts { config_server: "elsewhere:6817".into(), ..cluster() }),
                ..facts()
            },
        ),
    ] {
        assert_ne!(first, template(spec, &facts), "{what}");
    }
}

#[test]
fn the_files_of_sshd_have_the_users_lines() {
    let spec =
        json!({"extraSshdConfig": "AllowGroups hpc\nX11Forwarding no\n", "rootSshAuthorizedKeys": "ssh-ed25519 A me"});
    let data = object(&planned(&login_set(&spec), &facts()), "ConfigMap")["data"].clone();
    let sshd = "Include /etc/ssh/sshd_config.d/*.conf\nHostKey /etc/ssh/ssh_host_ecdsa_key\n\
                HostKey /etc/ssh/ssh_host_ed25519_key\nHostKey /etc/ssh/ssh_host_rsa_key\nUsePAM yes\n\
                Subsystem sftp internal-sftp\nAllowGroups hpc\nX11Forwarding no\n";
    assert_eq!(data["sshd_config"], sshd);
    assert_eq!(data["authorized_keys"], "# Keys of spec.rootSshAuthorizedKeys\nssh-ed25519 A me\n");
}

#[test]
fn host_keys_are_generated_once() {
    let login_set = login_set(&json!({}));
    let plan = planned(&login_set, &Facts { host_keys: None, ..facts() });
    let steps: Vec<&Step> = plan.stages.iter().flatten().collect();
    let [Step::GenerateSecret(generated), Step::Apply(_)] = *steps else { panic!("{:?}", titles(&plan)) };
    assert!(matches!(generated.content, SecretContent::HostKeys));
    assert_eq!(generated.secret.object.name_any(), "front-ssh-host-keys");
    assert_eq!(generated.secret.object.data["immutable"], true);
    let (ready, _, message) = condition_of(&plan, "Ready");
    assert!(ready == ConditionStatus::False && message.contains("host keys"), "{message}");
    assert!(matches!(plan.next, Next::After(_)));
    // Those of a user have no owner.
    let mut own = host_keys("u");
    own.secret.metadata.owner_references = None;
    let plan = planned(&login_set, &Facts { host_keys: Some(own.clone()), ..facts() });
    assert_eq!(titles(&plan).last().unwrap(), "apply Deployment front");
    own.missing = vec!["ssh_host_rsa_key".into()];
    let plan = planned(&login_set, &Facts { host_keys: Some(own), ..facts() });
    let (_, reason, message) = condition_of(&plan, "Ready");
    assert!(reason == "ReferenceMissing" && message.contains("has no ssh_host_rsa_key: add them"), "{message}");
}

#[test]
fn objects_of_others_are_left_alone() {
    fn foreign<K: serde::de::DeserializeOwned>(name: &str) -> K {
        owned("x", name)
    }
    let keys: Secret = owned("x", "front-ssh-host-keys");
    for (facts, expected, left) in [
        (
            Facts { service: Some(foreign("front")), ..facts() },
            "a Service front exists",
            &["apply ConfigMap front-ssh-config", "apply Deployment front"][..],
        ),
        (
            Facts { deployment: Some(foreign("front")), ..facts() },
            "a Deployment front exists",
            &["apply Service front"],
        ),
        (
            Facts { config_map: Some(foreign("front-ssh-config")), ..facts() },
            "a ConfigMap front-ssh-config exists",
            &["apply Service front"],
        ),
        (
            Facts { host_keys: Some(HostKeys { secret: keys, ..host_keys("x") }), ..facts() },
            "a Secret front-ssh-host-keys exists",
            &["apply Service front"],
        ),
    ] {
        let plan = planned(&login_set(&json!({})), &facts);
        let (_, reason, message) = condition_of(&plan, "Degraded");
        assert!(reason == "NameTaken" && message.contains(expected), "{message}");
        assert_eq!(titles(&plan), left);
    }
}

#[test]
fn missing_dependencies_are_reported_and_login_nodes_that_run_stay() {
    let controller = |controller| Facts { controller, ..facts() };
    let key = |key| controller(Some(ControllerFacts { key, ..cluster() }));
    for (spec, facts, expected, hint) in [
        (json!({}), controller(None), "ReferenceMissing", "create the Controller lab or correct spec.controllerRef"),
        (json!({"login": {}}), facts(), "InvalidSpec", "spec.login.image"),
        (json!({"sssdConfRef": {"name": "", "key": "a"}}), facts(), "InvalidSpec", "spec.sssdConfRef.name"),
        (json!({}), key(KeyState::NoSecret), "ReferenceMissing", "the Secret keys with Slurm's key does not exist"),
        (json!({}), key(KeyState::NoEntry), "ReferenceMissing", "no entry slurm.key"),
        (
            json!({}),
            controller(Some(ControllerFacts { slurm_key: None, key: KeyState::NotNamed, ..cluster() })),
            "InvalidSpec",
            "spec.slurmKeyRef of the Controller lab",
        ),
        (
            json!({}),
            Facts { sssd: KeyState::NoSecret, ..facts() },
            "ReferenceMissing",
            "the Secret sssd with sssd.conf does not exist: create it with the key conf",
        ),
        (
            json!({}),
            Facts { sssd: KeyState::NoEntry, ..facts() },
            "ReferenceMissing",
            "the Secret sssd has no entry conf",
        ),
    ] {
        let plan = planned(&login_set(&spec), &facts);
        assert_eq!(titles(&plan), ["apply Service front"], "{hint}");
        let (ready, reason, message) = condition_of(&plan, "Ready");
        assert_eq!((ready, reason), (ConditionStatus::False, expected), "{message}");
        assert!(message.contains(hint), "{message}");
        assert_eq!(plan.next, Next::OnChange, "a change triggers the next reconcile");

        let live = Facts { deployment: Some(serde_json::from_value(running()).unwrap()), ..facts };
        let plan = planned(&login_set(&spec), &live);
        assert_eq!(titles(&plan), ["apply Service front"], "{hint}");
        assert_eq!(condition_of(&plan, "Ready").0, ConditionStatus::True, "{hint}");
        assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::True, "{hint}");
    }
    // The Controller will generate it.
    let waits = ControllerFacts { key: KeyState::NoSecret, generates_keys: true, ..cluster() };
    let plan = planned(&login_set(&json!({})), &controller(Some(waits)));
    let (_, reason, message) = condition_of(&plan, "Ready");
    assert!(reason == "Starting" && message.contains("waiting for the Secret keys"), "{message}");
}

/// The Deployment, with all pods ready.
fn running() -> Value {
    let mut live = deployment(&json!({}), &facts());
    live["metadata"]["generation"] = json!(1);
    live["status"] = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1});
    live
}

#[test]
fn the_status_has_what_autoscalers_need() {
    let with = |live: Value| {
        planned(&login_set(&json!({})), &Facts { deployment: Some(serde_json::from_value(live).unwrap()), ..facts() })
    };
    let plan = with(running());
    assert_eq!((plan.status.replicas, condition_of(&plan, "Ready").0), (1, ConditionStatus::True));
    assert_eq!(plan.next, Next::OnChange);
    let mut surging = running();
    surging["status"]["replicas"] = json!(2);
    let plan = with(surging);
    assert_eq!((plan.status.replicas, condition_of(&plan, "Ready").1), (2, "Updating"));
    assert_eq!(planned(&login_set(&json!({})), &facts()).status.replicas, 0);
}

#[test]
fn it_is_affected_by_its_dependencies() {
    let object = login_set(&json!({}));
    let trigger = |what, namespace: &str, name: &str| Trigger {
        what,
        namespace: namespace.into(),
        name: name.into(),
        owners: Vec::new(),
    };
    for (what, namespace, name, affected) in [
        (TriggerKind::of::<Controller>(), "slurm", "lab", true),
        (TriggerKind::of::<Controller>(), "other", "lab", false),
        (TriggerKind::of::<Controller>(), "slurm", "other", false),
        (TriggerKind::Secret, "slurm", "sssd", true),
        (TriggerKind::Secret, "other", "sssd", false),
        (TriggerKind::ConfigMap, "slurm", "front-ssh-config", true),
        (TriggerKind::ConfigMap, "slurm", "lab-config", false),
        (TriggerKind::Service, "slurm", "front", true),
        (TriggerKind::Deployment, "slurm", "front", true),
        (TriggerKind::Deployment, "slurm", "front2", false),
        (TriggerKind::Pod, "slurm", "front-6687b976f-2js96", true),
        (TriggerKind::Pod, "slurm", "front2-6687b976f-2js96", false),
    ] {
        assert_eq!(object.is_affected(&trigger(what, namespace, name)), affected, "{what:?} {namespace}/{name}");
    }
}

#[test]
fn sackd_reads_a_ring_and_is_not_restarted_for_it() {
    let with = |ring| Facts { controller: Some(ControllerFacts { ring, ..cluster() }), ..facts() };
    let new = deployment(&json!({}), &with(ring_of("a")));
    let template = &new["spec"]["template"];
    let volumes = template["spec"]["volumes"].as_array().unwrap();
    let keys = volumes.iter().find(|volume| volume["name"] == "slurm-config").unwrap();
    assert_eq!(keys["projected"]["sources"][0]["secret"]["name"], "keys-ring");
    assert_eq!(template["metadata"]["annotations"]["slinky.slurm.net/key-ring"], "keys-ring");
    let mounts = template["spec"]["containers"][0]["volumeMounts"].as_array().unwrap();
    assert!(
        mounts.contains(&json!({"name": "slurm-etc", "mountPath": "/etc/slurm"})),
        "new keys are copied: {mounts:?}"
    );
    let init = template["spec"]["initContainers"][0]["command"][2].as_str().unwrap();
    assert!(init.ends_with("chmod 755 /mnt/etc/slurm\n"), "only root may create files there: {init}");
    assert_eq!(deployment(&json!({}), &with(ring_of("b"))), new, "sackd is told");

    // Login nodes of an earlier release stay as they are, until the user's key changes.
    let old = deployment(&json!({}), &facts());
    let running = |key: &str| {
        let mut live = old.clone();
        live["metadata"]["uid"] = json!("d");
        let controller = ControllerFacts { ring: ring_of("a"), key: good(key), ..cluster() };
        Facts { deployment: Some(serde_json::from_value(live).unwrap()), controller: Some(controller), ..facts() }
    };
    assert_eq!(deployment(&json!({}), &running("k")), old);
    assert_eq!(deployment(&json!({}), &running("changed")), new);

    let plan = planned(&login_set(&json!({})), &with(Ring::Missing("keys-ring".into())));
    let (_, _, message) = condition_of(&plan, "Ready");
    assert!(message.contains("waiting for the Secret keys-ring"), "{message}");
}
