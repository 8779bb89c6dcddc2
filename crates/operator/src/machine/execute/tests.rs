use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use engine::plan::{
    ClusterKey, Desired, DrainedWorker, DrainedWorkers, Event, Fingerprint, FromTemplate, GeneratedSecret,
    MetadataPatch, ObjectVersion, PodConditionPatch, ReadKeys, RegisterWorker, RereadFiles, ServiceState, SlurmWrite,
};
use k8s_openapi::{
    api::{
        apps::v1::ControllerRevision,
        core::v1::{ConfigMap, Node, ObjectReference},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference},
};
use serde_json::{Value, json};
use slurm_operator_api::slinky::{Token, TokenStatus};

use super::*;
use crate::{failure::FailureSource, kube_view::own_writes::StoreEntry};

/// Records the calls, and fails for names that start with `bad`.
#[derive(Default)]
struct Recorder {
    calls: Mutex<Vec<String>>,
    statuses: Mutex<Vec<Value>>,
    under_way: AtomicUsize,
    most: AtomicUsize,
}

impl Recorder {
    fn call(&self, call: String) {
        self.calls.lock().unwrap().push(call);
    }

    fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }
}

fn failure(object: &str) -> Failure {
    Failure { action: "applying", object: object.to_owned(), source: FailureSource::Timeout(Duration::from_secs(10)) }
}

impl Effects for Recorder {
    async fn apply(&self, manager: &str, desired: &Desired) -> Result<Fingerprint, Failure> {
        let name = kube::ResourceExt::name_any(&desired.object);
        let under_way = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(under_way, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.call(format!("apply {name} as {manager}"));
        if name.starts_with("bad") { Err(failure(&name)) } else { Ok(Fingerprint::of_value(&json!(name))) }
    }

    async fn generate_secret(&self, _: &str, _: &GeneratedSecret) -> Result<(), Failure> {
        Ok(())
    }

    async fn set_owners(&self, _: &ObjectVersion, _: &[OwnerReference]) -> Result<(), Failure> {
        Ok(())
    }

    async fn delete(&self, object: &ObjectVersion) -> Result<(), Failure> {
        self.call(format!("delete {}", object.name));
        let status = kube::core::Status { code: 409, reason: "Conflict".into(), ..kube::core::Status::default() };
        let conflict = || FailureSource::Kube(Box::new(kube::Error::Api(Box::new(status))));
        if object.name.starts_with("old") {
            Err(Failure { source: conflict(), ..failure(&object.name) })
        } else {
            Ok(())
        }
    }

    async fn create(&self, object: &FromTemplate) -> Result<Option<String>, Failure> {
        self.call(format!("create {}", object.name()));
        if object.name().starts_with("bad") { Err(failure(object.name())) } else { Ok(Some("7".to_owned())) }
    }

    async fn patch_metadata(&self, _: &MetadataPatch) -> Result<String, Failure> {
        Ok("12".to_owned())
    }

    async fn patch_conditions(&self, _: &PodConditionPatch) -> Result<String, Failure> {
        Ok("12".to_owned())
    }

    async fn grow_claim(&self, claim: &ObjectVersion, size: &Quantity) -> Result<(), Failure> {
        self.call(format!("grow {} to {}", claim.name, size.0));
        Ok(())
    }

    async fn still_drained(
        &self,
        _: &ClusterKey,
        nodes: BTreeMap<&str, &ServiceState>,
    ) -> Result<HashSet<String>, Failure> {
        self.call(format!("look at {}", nodes.len()));
        Ok(nodes.into_keys().filter(|node| !node.starts_with("resumed")).map(str::to_owned).collect())
    }

    async fn slurm(&self, _: &SlurmWrite) -> Result<(), Failure> {
        Ok(())
    }

    async fn register(&self, worker: &RegisterWorker) -> AttemptResult {
        self.call(format!("register {}", worker.node));
        if worker.node.starts_with("busy") { AttemptResult::HasSteps } else { AttemptResult::Asked }
    }

    async fn reread(&self, files: &RereadFiles) -> Result<bool, Failure> {
        self.call(format!("reread {}", files.hash));
        Ok(files.hash != "late")
    }

    async fn read_keys(&self, keys: &ReadKeys) -> Result<bool, Failure> {
        self.call(format!("read keys in {}", keys.pod.name));
        Ok(true)
    }

    async fn add_finalizer(&self, _: &ObjectVersion, name: &str) -> Result<(), Failure> {
        self.call(format!("add the finalizer {name}"));
        Ok(())
    }

    async fn keep_finalizers(&self, _: &ObjectVersion, others: &[String]) -> Result<(), Failure> {
        self.call(format!("keep the finalizers {others:?}"));
        Ok(())
    }

    async fn status(&self, manager: &str, _: &ApiResource, _: &ObjectReference, status: Value) -> Result<(), Failure> {
        self.call(format!("status as {manager}"));
        self.statuses.lock().unwrap().push(status);
        Ok(())
    }

    async fn publish(&self, _: &ObjectReference, event: &Event) {
        self.call(format!("note {}", event.reason));
    }
}

fn apply(name: &str) -> Step {
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name, "namespace": "slurm"}})).unwrap();
    Step::Apply(Box::new(Desired::of(&map)))
}

fn plan(stages: Vec<Vec<Step>>) -> Plan<TokenStatus> {
    let ready =
        NewCondition { type_: "Ready", status: ConditionStatus::True, reason: "Good", message: "all is well".into() };
    let event = Event { is_warning: false, reason: "Done", text: String::new() };
    Plan { stages, conditions: vec![ready], events: vec![event], ..Plan::default() }
}

fn token() -> Token {
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token",
        "metadata": {"name": "t", "namespace": "slurm", "uid": "u", "generation": 4},
        "spec": {"username": "alice"},
    }))
    .unwrap()
}

async fn run(recorder: &Recorder, token: &Token, plan: Plan<TokenStatus>) -> Outcome {
    execute(recorder, &OwnWrites::default(), token, plan, Timestamp::UNIX_EPOCH, || true).await
}

#[tokio::test]
async fn stages_run_in_order_and_their_steps_together() {
    let recorder = Recorder::default();
    let outcome = run(&recorder, &token(), plan(vec![vec![apply("a"), apply("b")], vec![apply("c")]])).await;
    let calls = recorder.calls();
    assert!(calls[..2].contains(&"apply a as slurm-operator/token".to_owned()), "{calls:?}");
    assert_eq!(calls[2..], ["apply c as slurm-operator/token", "status as slurm-operator/token-status", "note Done"]);
    assert_eq!(recorder.most.load(Ordering::SeqCst), 2, "the steps of a stage run concurrently");
    assert_eq!((outcome.writes, outcome.failures.len()), (4, 0));
    assert_eq!(recorder.statuses.lock().unwrap()[0]["observedGeneration"], 4);
}

#[tokio::test]
async fn a_large_stage_runs_completely_with_limited_concurrency() {
    let recorder = Recorder::default();
    let steps: Vec<Step> = (0..=3 * CONCURRENCY).map(|number| apply(&format!("a{number}"))).collect();
    let count = steps.len();
    let outcome = run(&recorder, &token(), plan(vec![steps])).await;
    assert_eq!(recorder.most.load(Ordering::SeqCst), CONCURRENCY);
    assert_eq!(recorder.calls().iter().filter(|call| call.starts_with("apply a")).count(), count);
    assert_eq!(outcome.writes, count + 1, "including the status");
}

#[tokio::test]
async fn a_failed_step_stops_later_stages_and_shows_in_the_status() {
    let recorder = Recorder::default();
    let outcome = run(&recorder, &token(), plan(vec![vec![apply("bad"), apply("b")], vec![apply("c")]])).await;
    let calls = recorder.calls();
    assert!(calls.iter().any(|call| call.contains("apply b")), "other steps of the stage still run");
    assert!(!calls.iter().any(|call| call.contains("apply c")), "{calls:?}");
    assert_eq!(outcome.failures.len(), 1);
    let status = recorder.statuses.lock().unwrap()[0].clone();
    let conditions = status["conditions"].as_array().unwrap();
    let find = |type_| conditions.iter().find(|condition| condition["type"] == type_).unwrap();
    assert_eq!((&find("Ready")["status"], &find("Ready")["reason"]), (&json!("Unknown"), &json!("Timeout")));
    assert_eq!(find("Degraded")["status"], "True");
    assert!(calls.contains(&"note Timeout".to_owned()), "a failure is also an event: {calls:?}");
    assert!(find("Degraded")["message"].as_str().unwrap().contains("applying bad"), "{status}");
}

#[tokio::test]
async fn facts_that_cannot_be_read_are_reported() {
    let recorder = Recorder::default();
    let mut token = token();
    let unread = || Failure { action: "reading", object: "Secret slurm/keys".to_owned(), source: FailureSource::Taken };
    let now = Timestamp::UNIX_EPOCH;
    report(&recorder, &OwnWrites::default(), &token, &failure("Secret slurm/keys"), now).await;
    assert_eq!(recorder.calls(), Vec::<String>::new(), "if nothing can be read, nothing can be written");
    run(&recorder, &token, plan(Vec::new())).await;
    let planned = recorder.statuses.lock().unwrap()[0].clone();
    token.status = serde_json::from_value(planned).unwrap();
    token.metadata.generation = Some(5);
    report(&recorder, &OwnWrites::default(), &token, &unread(), now).await;
    assert_eq!(recorder.calls()[2..], ["status as slurm-operator/token-status", "note NameTaken"]);
    let status = recorder.statuses.lock().unwrap()[1].clone();
    let conditions = status["conditions"].as_array().unwrap();
    let find = |type_| conditions.iter().find(|condition| condition["type"] == type_).unwrap();
    assert_eq!((&find("Degraded")["status"], &find("Ready")["status"]), (&json!("True"), &json!("True")), "{status}");
    assert!(find("Degraded")["message"].as_str().unwrap().contains("Secret slurm/keys"), "{status}");
    assert_eq!(status["observedGeneration"], 4, "generation 5 was not planned");
}

#[tokio::test]
async fn a_status_that_is_already_there_is_not_written_again() {
    let recorder = Recorder::default();
    let mut token = token();
    run(&recorder, &token, plan(Vec::new())).await;
    token.status = serde_json::from_value(recorder.statuses.lock().unwrap()[0].clone()).unwrap();
    let later = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(1);
    let outcome = execute(&recorder, &OwnWrites::default(), &token, plan(Vec::new()), later, || true).await;
    assert_eq!(outcome.writes, 0);
    assert_eq!(recorder.calls().len(), 2, "neither written nor published a second time");
}

#[tokio::test]
async fn without_leadership_nothing_more_is_written() {
    let recorder = Recorder::default();
    let looks = AtomicUsize::new(0);
    let leads = || looks.fetch_add(1, Ordering::SeqCst) == 0;
    let plan = plan(vec![vec![apply("a"), apply("b")], vec![apply("c")]]);
    let outcome = execute(&recorder, &OwnWrites::default(), &token(), plan, Timestamp::UNIX_EPOCH, leads).await;
    assert_eq!(recorder.calls(), ["apply a as slurm-operator/token"], "not even the next step of the same stage");
    assert!(outcome.is_stale, "the lease may only have been renewed late");
}

/// A pod to delete, with its Slurm node.
fn drained(name: &str) -> (String, DrainedWorker) {
    let pod: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name, "namespace": "slurm"}})).unwrap();
    let delete = Step::Delete(Box::new(ObjectVersion::of::<ConfigMap>(&pod)), "a test");
    (name.to_owned(), DrainedWorker { state: ServiceState::default(), delete })
}

#[tokio::test]
async fn a_worker_that_was_resumed_since_the_plan_is_not_deleted() {
    let recorder = Recorder::default();
    let cluster = ClusterKey { group: "g", namespace: "slurm".into(), name: "c".into() };
    let workers = ["gpu-0", "resumed-1", "gpu-2"].map(drained).into();
    let step = Step::DeleteDrained(Box::new(DrainedWorkers { cluster, workers }));
    assert_eq!(
        step.title(),
        "delete ConfigMap gpu-0: a test; delete ConfigMap gpu-2: a test; delete ConfigMap resumed-1: a test"
    );
    let outcome = run(&recorder, &token(), plan(vec![vec![step]])).await;
    assert!(outcome.is_stale && outcome.failures.is_empty());
    let calls = recorder.calls();
    assert_eq!(calls.iter().filter(|call| call.starts_with("look")).collect::<Vec<_>>(), ["look at 3"]);
    assert_eq!(calls.iter().filter(|call| call.starts_with("delete")).count(), 2, "{calls:?}");
    assert!(!calls.contains(&"delete resumed-1".to_owned()));
}

#[tokio::test]
async fn the_results_of_registrations_are_facts_for_the_next_plan() {
    let (recorder, own_writes) = (Recorder::default(), OwnWrites::default());
    let register = |node: &str| {
        let pod: ConfigMap = serde_json::from_value(json!({"metadata": {"name": node, "uid": node}})).unwrap();
        let pod = ObjectVersion::of::<ConfigMap>(&pod);
        Step::Register(Box::new(RegisterWorker { pod, container: "slurmd", node: node.to_owned() }))
    };
    let plan = plan(vec![vec![register("busy-0"), register("idle-1")]]);
    let outcome = execute(&recorder, &own_writes, &token(), plan, Timestamp::UNIX_EPOCH, || true).await;
    assert!(outcome.failures.is_empty());
    let attempts = own_writes.attempts.of(["busy-0", "idle-1", "other"].into_iter());
    assert_eq!(attempts.len(), 2);
    assert_eq!(attempts["busy-0"].result, AttemptResult::HasSteps);
    assert_eq!(attempts["idle-1"], Attempt { at: Timestamp::UNIX_EPOCH, result: AttemptResult::Asked });
}

#[tokio::test]
async fn what_was_done_is_told_even_if_the_status_stays_the_same() {
    let recorder = Recorder::default();
    let mut token = token();
    let event = || Event { is_warning: false, reason: "NodeCordon", text: "draining".into() };
    let own_writes = OwnWrites::default();
    let plan = || Plan { action_events: vec![event()], ..plan(Vec::new()) };
    execute(&recorder, &own_writes, &token, plan(), Timestamp::UNIX_EPOCH, || true).await;
    token.status = serde_json::from_value(recorder.statuses.lock().unwrap()[0].clone()).unwrap();
    let later = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_hours(1);
    execute(&recorder, &own_writes, &token, plan(), later, || true).await;
    let calls = recorder.calls();
    assert_eq!(calls.iter().filter(|call| *call == "note NodeCordon").count(), 2, "{calls:?}");
    assert_eq!(calls.iter().filter(|call| call.starts_with("status")).count(), 1, "{calls:?}");
}

#[tokio::test]
async fn an_apply_that_would_change_nothing_is_skipped() {
    let (recorder, own_writes) = (Recorder::default(), OwnWrites::default());
    let left = Fingerprint::of_value(&json!("a"));
    let again = |seen| {
        let Step::Apply(mut desired) = apply("a") else { panic!("an apply") };
        desired.seen = seen;
        plan(vec![vec![Step::Apply(desired)]])
    };
    let token = token();
    let run = async |seen| {
        execute(&recorder, &own_writes, &token, again(seen), Timestamp::UNIX_EPOCH, || true).await;
        std::mem::take(&mut *recorder.calls.lock().unwrap()).iter().filter(|call| call.starts_with("apply")).count()
    };
    assert_eq!(run(Some(left)).await, 1, "the cache is empty after a restart");
    assert_eq!(run(Some(left)).await, 0);
    assert_eq!(run(None).await, 1, "it was deleted");
    assert_eq!(run(Some(Fingerprint::of_value(&json!("edited")))).await, 1);
}

#[tokio::test]
async fn a_deleted_revision_is_forgotten() {
    let (recorder, own_writes) = (Recorder::default(), OwnWrites::default());
    let revision: ControllerRevision =
        serde_json::from_value(json!({"metadata": {"name": "r", "namespace": "slurm", "uid": "x"}, "revision": 1}))
            .unwrap();
    let desired = Desired::of(&revision);
    let (key, wanted) = (
        AppliedCache::key(&desired.resource.group, &desired.resource.kind, &desired.object.metadata),
        desired.fingerprint(),
    );
    own_writes.applied.insert(&key, wanted, wanted);
    let delete = Step::Delete(Box::new(ObjectVersion::of::<ControllerRevision>(&revision)), "it is old");
    execute(&recorder, &own_writes, &token(), plan(vec![vec![delete]]), Timestamp::UNIX_EPOCH, || true).await;
    assert!(!own_writes.applied.has(&key, wanted, Some(wanted)));
}

#[tokio::test]
async fn created_objects_are_remembered() {
    let (recorder, own_writes) = (Recorder::default(), OwnWrites::default());
    let template = std::sync::Arc::new(json!({"metadata": {"namespace": "slurm"}}));
    let overrides = json!({"metadata": {"name": "w-0"}});
    let object = FromTemplate { resource: ApiResource::erase::<ConfigMap>(&()), template, overrides, exclusive: None };
    let plan = plan(vec![vec![Step::Create(Box::new(object))]]);
    execute(&recorder, &own_writes, &token(), plan, Timestamp::UNIX_EPOCH, || true).await;
    let made = ChildrenOf::new("u", "ConfigMap");
    assert_eq!(own_writes.children.unconfirmed(&made, [], 6, Timestamp::UNIX_EPOCH).unseen, ["w-0".to_owned()].into());
    let shown = StoreEntry { name: "w-0", uid: "x", version: "1", is_terminating: false };
    assert!(own_writes.children.unconfirmed(&made, [shown], 6, Timestamp::UNIX_EPOCH).unseen.is_empty());
}

#[tokio::test]
async fn a_write_without_response_counts_as_done() {
    let (recorder, own_writes) = (Recorder::default(), OwnWrites::default());
    let template = std::sync::Arc::new(json!({"metadata": {"namespace": "slurm"}}));
    let overrides = json!({"metadata": {"name": "bad-0"}});
    let object = FromTemplate { resource: ApiResource::erase::<ConfigMap>(&()), template, overrides, exclusive: None };
    let plan = plan(vec![vec![Step::Create(Box::new(object))]]);
    let outcome = execute(&recorder, &own_writes, &token(), plan, Timestamp::UNIX_EPOCH, || true).await;
    assert_eq!(outcome.failures.len(), 1);
    assert_eq!(
        own_writes.children.unconfirmed(&ChildrenOf::new("u", "ConfigMap"), [], 9, Timestamp::UNIX_EPOCH).unseen,
        ["bad-0".to_owned()].into()
    );
}

#[tokio::test]
async fn finalizers_of_others_are_kept() {
    let (recorder, own_writes, mut token) = (Recorder::default(), OwnWrites::default(), token());
    let mut call = async |finalizers: &[&str], wanted: bool| {
        token.metadata.finalizers = Some(finalizers.iter().map(|&name| name.to_owned()).collect());
        let plan = plan(vec![vec![Step::Finalizer { name: "ours", wanted }]]);
        execute(&recorder, &own_writes, &token, plan, Timestamp::UNIX_EPOCH, || true).await;
        let calls = std::mem::take(&mut *recorder.calls.lock().unwrap());
        calls.into_iter().find(|call| call.contains("finalizer"))
    };
    assert_eq!(call(&["theirs"], true).await.as_deref(), Some("add the finalizer ours"));
    assert_eq!(call(&["theirs", "ours"], true).await, None);
    assert_eq!(call(&["theirs", "ours"], false).await.as_deref(), Some("keep the finalizers [\"theirs\"]"));
    assert_eq!(call(&["theirs"], false).await, None);
}

#[tokio::test]
async fn a_chain_stops_at_a_failure_without_stopping_other_steps() {
    let recorder = Recorder::default();
    let chain = Step::Chain(vec![apply("bad"), apply("after")]);
    let outcome = run(&recorder, &token(), plan(vec![vec![chain, Step::Chain(vec![apply("a"), apply("b")])]])).await;
    let applied: Vec<_> = recorder.calls().into_iter().filter(|call| call.starts_with("apply")).collect();
    let mut applied: Vec<_> = applied.iter().filter_map(|call| call.split(' ').nth(1)).collect();
    applied.sort_unstable();
    assert_eq!(applied, ["a", "b", "bad"], "the failed chain stops, the others run");
    assert_eq!(outcome.failures.len(), 1);
}

#[tokio::test]
async fn a_conflict_is_not_a_failure_and_is_retried_soon() {
    let recorder = Recorder::default();
    let object = ObjectVersion {
        resource: ApiResource::erase::<ConfigMap>(&()),
        namespace: Some("slurm".into()),
        name: "old".into(),
        uid: "x".into(),
        resource_version: "1".into(),
    };
    let chain = Step::Chain(vec![Step::Delete(Box::new(object), "a test"), apply("after")]);
    let outcome = run(&recorder, &token(), plan(vec![vec![chain], vec![apply("later")]])).await;
    assert!(outcome.is_stale && outcome.failures.is_empty());
    assert_eq!(recorder.calls()[..2], ["delete old", "apply later as slurm-operator/token"]);
}

#[tokio::test]
async fn a_status_is_written_once_even_if_the_store_lags() {
    let (recorder, own_writes, mut token) = (Recorder::default(), OwnWrites::default(), token());
    token.metadata.resource_version = Some("5".into());
    let later = Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(7);
    for now in [Timestamp::UNIX_EPOCH, later] {
        execute(&recorder, &own_writes, &token, plan(Vec::new()), now, || true).await;
    }
    assert_eq!(recorder.calls(), ["status as slurm-operator/token-status", "note Done"]);
}

/// A kind without a status of ours.
impl Kind for Node {
    type Facts = ();
    type Status = ();
    const NAME: &'static str = "node";
    const NEEDS: &'static [crate::machine::Need] = &[];

    fn objects(client: kube::Client, _: Option<&str>) -> kube::Api<kube::core::DeserializeGuard<Self>> {
        kube::Api::all(client)
    }

    fn status(&self) -> Option<&()> {
        None
    }

    fn validate(&self) -> Vec<slurm_operator_api::common::validation::FieldError> {
        Vec::new()
    }

    async fn observe(&self, _: &crate::sources::Sources, _: Timestamp) -> Result<(), Failure> {
        Ok(())
    }

    fn is_affected(&self, _: &crate::trigger::Trigger) -> bool {
        false
    }

    fn plan(&self, (): &(), _: Timestamp) -> Plan<()> {
        let events = vec![Event { is_warning: false, reason: "Seen", text: "a node".to_owned() }];
        Plan { events, ..Plan::default() }
    }
}

#[tokio::test]
async fn a_kind_without_a_status_only_gets_events() {
    let (recorder, node) = (Recorder::default(), Node::default());
    let plan = node.plan(&(), Timestamp::UNIX_EPOCH);
    let outcome = execute(&recorder, &OwnWrites::default(), &node, plan, Timestamp::UNIX_EPOCH, || true).await;
    assert!(outcome.failures.is_empty() && recorder.statuses.lock().unwrap().is_empty());
    assert_eq!(recorder.calls(), ["note Seen"]);
}

#[test]
fn writes_that_differ_only_in_the_object_are_one_line() {
    let title =
        |what: &str, object: &str, why: &str| Title { what: what.into(), object: object.into(), why: why.into() };
    let deletes = ["gpu-3", "gpu-4", "gpu-7"].map(|name| title("delete Pod", name, ": scale-in"));
    let others = [
        title("delete Pod", "gpu-9", ": it is outdated"),
        title("drain", "gpu-[0-1]", " (admin) in Slurm"),
        title("drain", "gpu-[5-6]", " (admin) in Slurm"),
    ];
    let expected = [
        ("delete Pod gpu-9: it is outdated", None),
        ("delete Pod gpu-[3-4,7]: scale-in", Some("gpu-3 gpu-4 gpu-7")),
        ("drain gpu-[0-1], gpu-[5-6] (admin) in Slurm", Some("gpu-0 gpu-1 gpu-5 gpu-6")),
    ];
    let found = lines(deletes.into_iter().chain(others).collect());
    let found: Vec<_> = found.iter().map(|line| (line.text.as_str(), line.objects.as_deref())).collect();
    assert_eq!(found, expected);
}

/// Somebody who follows one worker finds its name in the log, whatever happened to others at the same time.
#[test]
fn each_write_names_each_object_in_a_line_that_is_not_too_long() {
    let created = (0..1_200).map(|number| Title {
        what: "create Pod".to_owned(),
        object: format!("a-long-name-of-a-set-{number}"),
        why: String::new(),
    });
    let found = lines(created.collect());
    assert_eq!(found.len(), 5);
    let names: Vec<&str> = found.iter().flat_map(|line| line.objects.as_deref().unwrap().split(' ')).collect();
    assert_eq!(names.iter().filter(|name| **name == "a-long-name-of-a-set-777").count(), 1);
    assert_eq!(names.len(), 1_200);
    // Container runtimes split lines of more than 16 KiB.
    assert!(found.iter().all(|line| line.text.len() + line.objects.as_ref().unwrap().len() < 16_000));
}

#[tokio::test]
async fn what_follows_a_reread_waits_for_it() {
    let reread = |hash: &str| {
        let pod: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "ctld", "uid": "u"}})).unwrap();
        let pod = ObjectVersion::of::<ConfigMap>(&pod);
        let files = RereadFiles { pod, container: "slurmctld", hash: hash.to_owned(), change: String::new() };
        Step::Reread(Box::new(files))
    };
    for (hash, is_late) in [("there", false), ("late", true)] {
        let recorder = Recorder::default();
        let chain = Step::Chain(vec![reread(hash), reread("next")]);
        let outcome = run(&recorder, &token(), plan(vec![vec![chain]])).await;
        assert!(outcome.failures.is_empty() && outcome.is_stale == is_late, "{hash}");
        let calls = recorder.calls();
        assert_eq!(calls[0], format!("reread {hash}"));
        assert_eq!(calls.contains(&"reread next".to_owned()), !is_late, "{calls:?}");
    }
}
