use engine::{
    daemons::{
        keyring::{HasRead, JWKS, KeyUser, LiveRing, SlurmKey},
        shared::{Daemon, LOGIN, SLURMCTLD, SLURMD},
    },
    plan::{Fingerprint, ObjectVersion, ReadKeys},
};
use k8s_openapi::api::core::v1::Secret;
use kube::Resource;
use slurm_operator_api::slinky::names::annotation;

use super::*;
use crate::frontends::slinky::controller::plan_keys::{KeyFacts, RingSecret};

fn key(text: &str) -> SlurmKey {
    SlurmKey::new(text.repeat(20).into_bytes()).unwrap()
}

fn user(name: &str, daemon: Daemon, has_read: HasRead) -> KeyUser {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name, "uid": name}})).unwrap();
    KeyUser { pod: ObjectVersion::of::<Pod>(&pod), daemon, has_read, asked: None }
}

/// A cluster with its plans carried out, and daemons that obey.
struct Cluster {
    controller: Controller,
    facts: Facts,
    workers: Vec<(&'static str, Daemon, Option<String>)>,
}

impl Cluster {
    fn start(users_key: &str) -> Self {
        let mut cluster = Self { controller: controller(&json!({})), facts: base_facts(), workers: Vec::new() };
        cluster.facts.keys.owners = vec![cluster.controller.controller_owner_ref(&()).unwrap()];
        cluster.set_key(users_key);
        cluster.pass();
        cluster.workers = vec![("w-0", SLURMD, None), ("front", LOGIN, None)];
        cluster
    }

    fn set_key(&mut self, text: &str) {
        self.facts.slurm_key = good(&key(text).hash());
        self.facts.keys.wanted = Some(key(text));
    }

    fn plan(&self) -> Plan<ControllerStatus> {
        planned(&self.controller, &self.facts)
    }

    /// Plans, and carries out what concerns slurmctld and the ring. Daemons read it in the next pass.
    fn pass(&mut self) -> Plan<ControllerStatus> {
        let plan = self.plan();
        for step in plan.stages.iter().flatten() {
            let Step::Apply(desired) = step else { continue };
            let mut object = serde_json::to_value(&desired.object).unwrap();
            match (desired.resource.kind.as_str(), desired.object.name_any().as_str()) {
                ("Secret", "keys-ring") => {
                    object["metadata"]["resourceVersion"] = json!("1");
                    let secret: Secret = serde_json::from_value(object).unwrap();
                    let live = LiveRing::of(&VOCABULARY, &secret);
                    let object = Secret { data: None, ..secret };
                    self.facts.keys.secret = Some(RingSecret { object, seen: Fingerprint::of(&json!({})), live });
                }
                ("StatefulSet", _) => {
                    self.facts.stateful_set = Some(serde_json::from_value(running(&plan)).unwrap());
                }
                ("ConfigMap", _) => {
                    object["metadata"]["uid"] = json!("config");
                    self.facts.config_map = Some(serde_json::from_value(object).unwrap());
                }
                _ => {}
            }
        }
        let set = serde_json::to_value(&self.facts.stateful_set).unwrap();
        let read = set.pointer("/spec/template/metadata/annotations").map(|of| of[annotation::KEY_RING_READ].clone());
        let read = read.and_then(|read| read.as_str().map(str::to_owned));
        let has_read = |read: &Option<String>| read.clone().map_or(HasRead::First, HasRead::Ring);
        let mut users = vec![user("lab-controller-0", SLURMCTLD, read.map_or(HasRead::UsersSecret, HasRead::Ring))];
        users.extend(self.workers.iter().map(|(name, daemon, read)| user(name, *daemon, has_read(read))));
        self.facts.keys.users = Some(users);
        plan
    }

    /// The daemons that the plan asks read their keys.
    fn obey(&mut self, plan: &Plan<ControllerStatus>) -> Vec<String> {
        let asked = asked(plan);
        for keys in &asked {
            let worker = self.workers.iter_mut().find(|(name, ..)| *name == keys.pod.name).unwrap();
            worker.2 = Some(keys.hash.clone());
        }
        asked.iter().map(|keys| format!("{} in {}", keys.program, keys.pod.name)).collect()
    }

    fn reason(&self) -> &'static str {
        condition_of(&self.plan(), "SlurmKeyInUse").1
    }

    fn key_in_use(&self) -> String {
        let ring = self.facts.keys.secret.as_ref().unwrap().live.as_ref().unwrap();
        ring.ring.default.hash()
    }
}

fn asked(plan: &Plan<ControllerStatus>) -> Vec<&ReadKeys> {
    let steps = plan.stages.iter().flatten();
    steps.filter_map(|step| if let Step::ReadKeys(keys) = step { Some(&**keys) } else { None }).collect()
}

fn sources(set: &Value) -> Vec<String> {
    let sources = volume(set, "slurm-etc").unwrap()["projected"]["sources"].as_array().unwrap();
    sources.iter().filter_map(|source| source["secret"]["name"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_new_cluster_reads_a_ring_and_never_the_users_secret() {
    let mut cluster = Cluster::start("a");
    let fresh = Facts { keys: KeyFacts { wanted: Some(key("a")), ..KeyFacts::default() }, ..base_facts() };
    let facts = Facts { keys: KeyFacts { owners: cluster.facts.keys.owners.clone(), ..fresh.keys }, ..fresh };
    let plan = planned(&cluster.controller, &facts);
    assert_eq!(names(&plan)[0], ["Secret keys-ring"], "before the pods that mount it");
    let ring = object(&plan, "Secret", "keys-ring");
    assert_eq!(ring["metadata"]["ownerReferences"][0]["uid"], "u");
    assert!(ring["data"][JWKS].is_string() && ring["data"]["slurm.key"].is_string());
    let set = stateful_set(&plan);
    assert_eq!(sources(&set), ["keys-ring", "keys"], "the other one is jwt.key");
    assert_eq!(set["spec"]["template"]["metadata"]["annotations"]["slinky.slurm.net/slurm-key-hash"], key("a").hash());
    assert!(!format!("{plan:?}").contains("aaaa"), "a plan has no secret");
    cluster.pass();
    assert_eq!(condition_of(&cluster.plan(), "SlurmKeyInUse").0, ConditionStatus::True);
}

#[test]
fn a_new_key_reaches_all_daemons_in_three_steps() {
    let mut cluster = Cluster::start("a");
    cluster.set_key("b");
    let mut reasons = Vec::new();
    for _ in 0..20 {
        let plan = cluster.pass();
        reasons.push(condition_of(&plan, "SlurmKeyInUse").1);
        let asked = cluster.obey(&plan);
        assert!(asked.is_empty() || asked == ["slurmd in w-0", "sackd in front"], "{asked:?}");
    }
    reasons.dedup();
    assert_eq!(reasons, ["AddingKey", "SwitchingKey", "RemovingKey", "AsExpected"]);
    assert_eq!(cluster.key_in_use(), key("b").hash());
}

#[test]
fn a_step_waits_for_every_daemon() {
    let mut cluster = Cluster::start("a");
    cluster.set_key("b");
    for _ in 0..5 {
        cluster.pass();
    }
    let plan = cluster.plan();
    let (status, reason, message) = condition_of(&plan, "SlurmKeyInUse");
    assert_eq!((status, reason), (ConditionStatus::False, "AddingKey"));
    assert!(message.contains("step 1 of 3") && message.ends_with("2 left: w-0; front"), "{message}");
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(2)));
    assert_eq!(cluster.key_in_use(), key("a").hash());
    // What went wrong is noted behind the time.
    let front =
        cluster.facts.keys.users.as_mut().and_then(|users| users.iter_mut().find(|user| user.pod.name == "front"));
    front.unwrap().asked = Some(format!("{NOW} sackd does not handle SIGHUP"));
    let plan = cluster.plan();
    let message = condition_of(&plan, "SlurmKeyInUse").2;
    assert!(message.ends_with("2 left: w-0; front (sackd does not handle SIGHUP)"), "{message}");
}

#[test]
fn the_user_may_go_back_at_any_time() {
    for passes in 0..12 {
        let mut cluster = Cluster::start("a");
        cluster.set_key("b");
        for pass in 0..30 {
            if pass == passes {
                cluster.set_key("a");
            }
            let plan = cluster.pass();
            cluster.obey(&plan);
        }
        assert_eq!((cluster.reason(), cluster.key_in_use()), ("AsExpected", key("a").hash()), "{passes}");
    }
}

#[test]
fn a_users_key_that_is_missing_or_too_short_changes_nothing() {
    for (state, reason) in [(KeyState::NoSecret, "ReferenceMissing"), (good("short"), "KeyTooShort")] {
        let mut cluster = Cluster::start("a");
        let before = serde_json::to_value(&cluster.facts.stateful_set).unwrap();
        cluster.facts.keys.wanted = None;
        cluster.facts.slurm_key = state;
        let plan = cluster.pass();
        assert_eq!(serde_json::to_value(&cluster.facts.stateful_set).unwrap()["spec"], before["spec"]);
        let (status, found, message) = condition_of(&plan, "SlurmKeyInUse");
        assert_eq!((status, found), (ConditionStatus::False, reason), "{message}");
        assert_eq!(condition_of(&plan, "Degraded").1, reason);
        assert_eq!(asked(&plan).len(), 0);
    }
}

#[test]
fn a_cluster_of_an_earlier_release_is_not_restarted_for_the_ring() {
    let object = controller(&json!({}));
    // With a KeyFacts that has no key, the plan is that of a release without rings.
    let hash = key("a").hash();
    let facts = changes::settled(&object, Facts { slurm_key: good(&hash), ..base_facts() });
    let owners = vec![object.controller_owner_ref(&()).unwrap()];
    let keys = KeyFacts { wanted: Some(key("a")), owners, ..KeyFacts::default() };
    let mut cluster = Cluster { controller: object, facts: Facts { keys, ..facts }, workers: Vec::new() };
    let plan = cluster.pass();
    assert_eq!(sources(&stateful_set(&plan)), ["keys", "keys"]);
    assert!(names(&plan)[0].contains(&"Secret keys-ring".to_owned()));
    // Until the key changes: then slurmctld reads the old one from the ring, and pods with the user's Secret are replaced.
    cluster.set_key("b");
    let plan = cluster.pass();
    assert_eq!(sources(&stateful_set(&plan)), ["keys-ring", "keys"]);
    assert_eq!((cluster.key_in_use(), condition_of(&plan, "SlurmKeyInUse").1), (hash, "ReplacingPods"));
}

#[test]
fn a_key_that_was_changed_before_there_was_a_ring_is_refused() {
    let object = controller(&json!({}));
    let facts = changes::settled(&object, Facts { slurm_key: good(&key("a").hash()), ..base_facts() });
    let owners = vec![object.controller_owner_ref(&()).unwrap()];
    let keys = KeyFacts { wanted: Some(key("b")), owners, ..KeyFacts::default() };
    let facts = Facts { keys, slurm_key: good(&key("b").hash()), ..facts };
    let plan = planned(&object, &facts);
    assert_eq!(condition_of(&plan, "Degraded").1, "KeyNotChanged");
    let written = names(&plan).concat();
    assert!(!written.iter().any(|name| name.starts_with("StatefulSet") || name.starts_with("Secret")), "{written:?}");
}

/// It hashes all entries of the Secret, for example those of a Secret with both keys.
#[test]
fn the_go_operator_knows_the_key_by_the_hash_of_the_whole_secret() {
    let object = controller(&json!({}));
    let hash = key("a").hash();
    let settled = || changes::settled(&object, Facts { slurm_key: good(&hash), ..base_facts() });
    let mut live = settled().stateful_set.unwrap();
    live.metadata.annotations = None;
    let template = live.spec.as_mut().unwrap().template.metadata.as_mut().unwrap();
    template.annotations.as_mut().unwrap().insert(annotation::hash::SLURM_KEY.to_owned(), "of-both-keys".to_owned());
    let owners = vec![object.controller_owner_ref(&()).unwrap()];
    let with = |users_secret: &str| {
        let users_secret = Some(users_secret.to_owned());
        let keys = KeyFacts { wanted: Some(key("a")), users_secret, owners: owners.clone(), ..KeyFacts::default() };
        planned(&object, &Facts { keys, stateful_set: Some(live.clone()), snapshot: Some(no_jobs()), ..settled() })
    };
    let plan = with("of-both-keys");
    assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False, "{:?}", plan.conditions);
    assert_eq!(sources(&stateful_set(&plan)), ["keys-ring", "keys"]);
    assert_eq!(condition_of(&with("of-other-keys"), "Degraded").1, "KeyNotChanged");
}

#[test]
fn what_cannot_follow_keeps_the_key() {
    let mut cluster = Cluster::start("a");
    cluster.set_key("b");
    cluster.facts.keys.obstacle = Some("slurmdbd is external".to_owned());
    for _ in 0..3 {
        cluster.pass();
    }
    assert_eq!((cluster.reason(), cluster.key_in_use()), ("KeyNotChanged", key("a").hash()));
    cluster.facts.keys.obstacle = None;
    cluster.controller.spec.extra_conf = Some("SlurmctldParameters=enable_stepmgr".to_owned());
    assert_eq!(cluster.reason(), "KeyNotChanged");
}

#[test]
fn no_step_is_made_while_jobs_have_a_step_manager() {
    let with = |jobs: &[u32]| {
        let jobs = JobIndex { step_managers: jobs.iter().copied().collect(), ..JobIndex::default() };
        let jobs = Jobs::Read(JobList { jobs: Arc::new(jobs), ..JobList::default() });
        Some(Arc::new(Snapshot { jobs, ..(*no_jobs()).clone() }))
    };
    let go = |cluster: &mut Cluster| {
        for _ in 0..20 {
            let plan = cluster.pass();
            cluster.obey(&plan);
        }
    };
    let mut cluster = Cluster::start("a");
    cluster.facts.slurm = Some(slurm(Ok(())));
    assert!(cluster.plan().needs.is_none(), "jobs are not read without need");
    cluster.set_key("b");
    go(&mut cluster);
    let plan = cluster.plan();
    assert_eq!(condition_of(&plan, "SlurmKeyInUse").1, "JobsNotKnown");
    assert!(plan.needs.is_some_and(|needs| needs.jobs));
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(2)));

    cluster.facts.snapshot = with(&[17]);
    go(&mut cluster);
    let plan = cluster.plan();
    let (status, reason, message) = condition_of(&plan, "SlurmKeyInUse");
    assert_eq!((status, reason), (ConditionStatus::False, "JobsWithStepManager"));
    assert!(message.ends_with("when the jobs started: 17"), "{message}");
    assert_eq!(cluster.key_in_use(), key("a").hash());

    // Another one starts during the change.
    cluster.facts.snapshot = with(&[]);
    cluster.pass();
    assert_eq!(cluster.reason(), "AddingKey");
    cluster.facts.snapshot = with(&[18]);
    go(&mut cluster);
    assert_eq!((cluster.reason(), cluster.key_in_use()), ("JobsWithStepManager", key("a").hash()));
    cluster.facts.snapshot = with(&[]);
    go(&mut cluster);
    assert_eq!((cluster.reason(), cluster.key_in_use()), ("AsExpected", key("b").hash()));
}

#[test]
fn a_secret_of_somebody_else_is_left_alone() {
    let mut cluster = Cluster::start("a");
    cluster.facts.keys.secret.as_mut().unwrap().live = None;
    let plan = cluster.plan();
    assert_eq!(condition_of(&plan, "Degraded").1, "NameTaken");
    assert!(!names(&plan).concat().contains(&"Secret keys-ring".to_owned()));
}

#[test]
fn an_external_controller_has_no_ring() {
    let spec = json!({"external": true, "externalConfig": {"host": "elsewhere", "port": 6817}});
    let facts = Facts { keys: KeyFacts { wanted: Some(key("a")), ..KeyFacts::default() }, ..base_facts() };
    let plan = planned(&controller(&spec), &facts);
    assert!(!names(&plan).concat().contains(&"Secret keys-ring".to_owned()));
    assert!(!plan.conditions.iter().any(|condition| condition.type_ == "SlurmKeyInUse"));
}

#[test]
fn missing_keys_are_generated_once_if_requested() {
    let object = controller(&json!({"generateKeys": true}));
    let facts = Facts { slurm_key: KeyState::NoSecret, jwt_key: KeyState::NoSecret, ..base_facts() };
    let plan = planned(&object, &facts);
    assert_eq!(names(&plan), [&["mint keys"][..], ALL[0], ALL[1]]);
    let Step::GenerateSecret(generated) = &plan.stages[0][0] else { panic!("{plan:?}") };
    let SecretContent::Keys { entries } = &generated.content else { panic!("{generated:?}") };
    assert_eq!(entries, &["slurm.key", "jwt.key"]);
    assert!(generated.secret.object.owner_references().is_empty(), "keys outlive the Controller");
    assert_eq!(generated.secret.object.labels()["app.kubernetes.io/managed-by"], "slurm-operator");
    assert_eq!(condition_of(&plan, "Degraded").0, ConditionStatus::False);
    assert_ne!(plan.next, Next::OnChange);

    let apart = controller(&json!({"generateKeys": true, "jwtKeyRef": {"name": "other", "key": "jwt.key"}}));
    assert_eq!(names(&planned(&apart, &facts))[0], ["mint keys", "mint other"]);
    let half = Facts { jwt_key: KeyState::NoSecret, ..base_facts() };
    assert_eq!(names(&planned(&apart, &half))[0], ["mint other"]);
    let lacking = Facts { jwt_key: KeyState::NoEntry, ..base_facts() };
    let plan = planned(&object, &lacking);
    assert_eq!(names(&plan), ALL, "a Secret that exists is never changed");
    assert_eq!(condition_of(&plan, "Ready").1, "ReferenceMissing");
}

#[test]
fn generated_keys_have_the_annotations_of_the_spec() {
    let annotations = json!({"slurmKey": {"a": "1"}, "jwtKey": {"b": "2"}});
    let facts = Facts { slurm_key: KeyState::NoSecret, jwt_key: KeyState::NoSecret, ..base_facts() };
    let of = |spec: Value| -> Vec<Value> {
        let plan = planned(&controller(&spec), &facts);
        let annotations = |step: &Step| {
            let Step::GenerateSecret(generated) = step else { panic!("{step:?}") };
            json!(generated.secret.object.annotations())
        };
        plan.stages[0].iter().map(annotations).collect()
    };
    let shared = json!({"generateKeys": true, "keyAnnotations": annotations});
    assert_eq!(of(shared), [json!({"a": "1", "b": "2"})]);
    let jwt = json!({"name": "other", "key": "jwt.key"});
    let apart = json!({"generateKeys": true, "keyAnnotations": annotations, "jwtKeyRef": jwt});
    assert_eq!(of(apart), [json!({"a": "1"}), json!({"b": "2"})]);
    assert_eq!(of(json!({"generateKeys": true, "keyAnnotations": {"slurmKey": null}})), [json!({})]);
}

#[test]
fn keys_of_a_cluster_that_has_run_are_not_generated_again() {
    let object = controller(&json!({"generateKeys": true}));
    let lost = || Facts { slurm_key: KeyState::NoSecret, jwt_key: KeyState::NoSecret, ..base_facts() };
    let live = running(&planned(&object, &base_facts()));
    for (facts, expected) in [
        (Facts { stateful_set: Some(serde_json::from_value(live).unwrap()), ..lost() }, &ALL[1..]),
        (Facts { has_workers: true, ..lost() }, &ALL[..]),
    ] {
        let plan = planned(&object, &facts);
        assert_eq!(names(&plan), expected, "neither keys nor slurmctld are changed");
        let (_, reason, message) = condition_of(&plan, "Degraded");
        assert_eq!(reason, "ReferenceMissing");
        assert!(message.contains("the Secret keys") && message.contains("restore it from a backup"), "{message}");
    }
}
