//! From what was read to the tree that is shown. Pure, and without any right beyond those of a viewer.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use slurm_operator_api::common::conditions::{
    self, ACCOUNTING_REACHABLE, CONFIGURATION_IN_EFFECT, CONFIGURATION_VALID, DATABASE_REACHABLE, DEGRADED,
    DRAIN_ON_DELETE, GRES_MISMATCH, INSECURE, PROGRESSING, READY, SLURM_KEY_IN_USE, SLURM_REACHABLE,
};

use super::{
    model::{Attention, Branch, Event, Facts, Health, Object, Pod, Tree},
    plan_workers,
};

/// Conditions that are False when something is wrong.
const WANTED: [&str; 7] = [
    SLURM_REACHABLE,
    DATABASE_REACHABLE,
    ACCOUNTING_REACHABLE,
    CONFIGURATION_VALID,
    CONFIGURATION_IN_EFFECT,
    SLURM_KEY_IN_USE,
    DRAIN_ON_DELETE,
];

/// Those among them that say what is going on, and need nobody.
const IN_PROGRESS: [&str; 2] = [CONFIGURATION_IN_EFFECT, SLURM_KEY_IN_USE];

/// Conditions that are True when something is wrong.
const UNWANTED: [&str; 3] = [DEGRADED, GRES_MISMATCH, INSECURE];

/// What is unreachable for a shorter time is just starting.
const UNREACHABLE_FOR: SignedDuration = SignedDuration::from_secs(60);

/// How long the operator may take to act on a change.
const ACTS_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// How many pods of a daemon are shown that are not ready.
const MOST_PODS: usize = 5;

/// What is shown, and of which namespace.
pub struct Scope {
    /// `None` for all.
    pub namespace: Option<String>,
    /// How many events are shown.
    pub events: usize,
}

/// Builds the tree.
pub fn tree(facts: &Facts, scope: &Scope, now: Timestamp) -> Tree {
    let mut builder = Builder { facts, now, attention: Vec::new() };
    let mut clusters: Vec<Branch> = of_kind(facts, "Controller").map(|object| builder.cluster(object)).collect();
    clusters.extend(builder.without_controller());
    clusters.extend(builder.unused_accountings());
    clusters.extend(builder.tokens());
    let mut attention = builder.attention;
    attention.sort();
    attention.dedup();
    Tree {
        namespace: scope.namespace.clone(),
        attention,
        clusters,
        events: events(facts, scope.events),
        unread: facts.unread.clone(),
    }
}

fn of_kind<'a>(facts: &'a Facts, kind: &'a str) -> impl Iterator<Item = &'a Object> {
    facts.objects.iter().filter(move |object| object.kind == kind)
}

/// The Controller that an object refers to.
pub fn controller_of<'a>(object: &Object, facts: &'a Facts) -> Option<&'a Object> {
    let name = object.text("/spec/controllerRef/name");
    of_kind(facts, "Controller").find(|found| found.namespace == object.namespace && found.name == name)
}

/// The pods of a daemon.
pub fn pods_of<'a>(object: &'a Object, program: &'a str, facts: &'a Facts) -> impl Iterator<Item = &'a Pod> {
    facts
        .pods
        .iter()
        .filter(move |pod| pod.namespace == object.namespace && pod.instance == object.name && pod.program == program)
}

/// The program that runs for an object of this kind.
pub fn program_of(kind: &str) -> &'static str {
    match kind {
        "Controller" => "slurmctld",
        "RestApi" => "slurmrestd",
        "Accounting" => "slurmdbd",
        "LoginSet" => "login",
        "NodeSet" => "slurmd",
        _ => "",
    }
}

struct Builder<'a> {
    facts: &'a Facts,
    now: Timestamp,
    attention: Vec<Attention>,
}

impl Builder<'_> {
    fn cluster(&mut self, controller: &Object) -> Branch {
        let mut branch = self.branch(controller);
        let version = controller.text("/status/slurmVersion");
        if !version.is_empty() {
            branch.summary = format!("{}, Slurm {version}", branch.summary);
        }
        branch.children = pods_of(controller, "slurmctld", self.facts).map(slurmctld).collect();
        let refers = |object: &&Object| {
            object.namespace == controller.namespace && object.text("/spec/controllerRef/name") == controller.name
        };
        let mut children = Vec::new();
        for rest_api in of_kind(self.facts, "RestApi").filter(refers) {
            children.push(self.daemon(rest_api));
        }
        for accounting in of_kind(self.facts, "Accounting").filter(|object| uses(controller, object)) {
            children.push(self.daemon(accounting));
        }
        for set in of_kind(self.facts, "NodeSet").filter(refers) {
            children.push(self.node_set(set, Some(controller)));
        }
        for login in of_kind(self.facts, "LoginSet").filter(refers) {
            children.push(self.daemon(login));
        }
        branch.children.extend(children);
        branch
    }

    /// Sets and daemons that refer to a Controller that does not exist, or could not be read.
    fn without_controller(&mut self) -> Vec<Branch> {
        let facts = self.facts;
        let is_lost = |object: &&Object| {
            !object.text("/spec/controllerRef/name").is_empty() && controller_of(object, facts).is_none()
        };
        let lost: Vec<&Object> = facts.objects.iter().filter(is_lost).collect();
        let names: BTreeSet<(&str, &str)> =
            lost.iter().map(|object| (object.namespace.as_str(), object.text("/spec/controllerRef/name"))).collect();
        let is_read = !facts.unread.iter().any(|unread| unread.what == "controllers");
        let (health, summary) =
            if is_read { (Health::Bad, "does not exist") } else { (Health::Unknown, "could not be read") };
        let of_name = |(namespace, name): (&str, &str)| {
            let mut branch = Branch::new("Controller", namespace, name, health, summary);
            for object in &lost {
                if object.namespace == namespace && object.text("/spec/controllerRef/name") == name {
                    let is_set = object.kind == "NodeSet";
                    branch.children.push(if is_set { self.node_set(object, None) } else { self.daemon(object) });
                }
            }
            branch
        };
        names.into_iter().map(of_name).collect()
    }

    fn unused_accountings(&mut self) -> Vec<Branch> {
        let facts = self.facts;
        let is_unused = |object: &&Object| !of_kind(facts, "Controller").any(|controller| uses(controller, object));
        let unused: Vec<&Object> = of_kind(facts, "Accounting").filter(is_unused).collect();
        unused.into_iter().map(|object| self.daemon(object)).collect()
    }

    /// Only those that are not ready; the others are counted.
    fn tokens(&mut self) -> Vec<Branch> {
        let tokens: Vec<&Object> = of_kind(self.facts, "Token").collect();
        let all: Vec<Branch> = tokens.into_iter().map(|token| self.branch(token)).collect();
        let (ready, others): (Vec<Branch>, Vec<Branch>) =
            all.into_iter().partition(|token| token.health == Health::Good);
        let summary = format!("{} ready", ready.len());
        let counted = ready.first().map(|first| Branch::new("Tokens", &first.namespace, "", Health::Good, summary));
        others.into_iter().chain(counted).collect()
    }

    /// An object with its conditions.
    fn branch(&mut self, object: &Object) -> Branch {
        let conditions = object.conditions();
        let (health, summary) = overall(&conditions);
        let mut branch = Branch::new(&object.kind, &object.namespace, &object.name, health, summary);
        if object.is_deleted() {
            branch.health = branch.health.min(Health::Busy);
            branch.notes.push("is being deleted".to_owned());
        }
        if let Some(progress) = conditions::find(&conditions, PROGRESSING)
            && (progress.status == "True" || progress.reason == conditions::reason::PAUSED)
            && progress.message != branch.summary
        {
            branch.notes.push(progress.message.clone());
        }
        for condition in conditions.iter().filter(|condition| is_finding(condition)) {
            if condition.message != branch.summary {
                branch.notes.push(format!("{}: {}", condition.type_, condition.message));
            }
            if let Some(health) = self.severity(condition) {
                self.attend(health, object, &condition.reason, &condition.message);
                branch.health = branch.health.min(health);
            }
        }
        self.watch_operator(object, &conditions, &mut branch);
        branch
    }

    /// A change that the operator has not acted on: it does not run, or does not watch this namespace.
    fn watch_operator(&mut self, object: &Object, conditions: &[Condition], branch: &mut Branch) {
        if !object.is_behind() {
            return;
        }
        let is_new = object.changed.is_some_and(|changed| self.now < changed + ACTS_WITHIN);
        let text = if conditions.is_empty() {
            "the operator has not seen it"
        } else {
            "the operator has not acted on the last change"
        };
        branch.notes.push(text.to_owned());
        if !is_new {
            let message = format!("{text}: does it run, and does it watch this namespace?");
            self.attend(Health::Warning, object, "NotObserved", &message);
            branch.health = branch.health.min(Health::Warning);
        }
    }

    fn attend(&mut self, health: Health, object: &Object, reason: &str, message: &str) {
        let (reason, message) = (reason.to_owned(), message.to_owned());
        self.attention.push(Attention { health, object: object.title(), reason, message });
    }

    /// Whether somebody must look at a finding.
    fn severity(&self, condition: &Condition) -> Option<Health> {
        let type_ = condition.type_.as_str();
        let is_new = self.now < condition.last_transition_time.0 + UNREACHABLE_FOR;
        match type_ {
            DEGRADED => Some(Health::Bad),
            // It is part of Degraded.
            GRES_MISMATCH => None,
            INSECURE | DRAIN_ON_DELETE => Some(Health::Warning),
            _ if IN_PROGRESS.contains(&type_) || condition.status == "Unknown" => None,
            CONFIGURATION_VALID => Some(Health::Bad),
            _ => (!is_new).then_some(Health::Bad),
        }
    }

    /// A daemon, with those of its pods that are not ready.
    fn daemon(&mut self, object: &Object) -> Branch {
        let mut branch = self.branch(object);
        let program = program_of(&object.kind);
        let pods: Vec<&Pod> = pods_of(object, program, self.facts).collect();
        let ready = pods.iter().filter(|pod| pod.is_ready).count();
        if object.kind == "LoginSet" && !pods.is_empty() {
            branch.summary = format!("{}, {ready} of {} pods", branch.summary, pods.len());
        }
        let sick = pods.into_iter().filter(|pod| !pod.is_ready);
        branch.children = sick.take(MOST_PODS).map(|pod| of_pod(pod, program, "ready")).collect();
        branch
    }

    fn node_set(&mut self, set: &Object, controller: Option<&Object>) -> Branch {
        let mut branch = self.branch(set);
        let workers = match plan_workers::explain(set, controller, self.facts, self.now) {
            Ok(workers) => workers,
            Err(why) => {
                branch.notes.push(why);
                return branch;
            }
        };
        if workers.is_paused() {
            self.attend(Health::Warning, set, "Paused", "paused: no worker is created, drained or removed");
        }
        branch.progress = workers.progress(update_of(set));
        branch.workers = workers.lines(self.now);
        let found = workers.attention(&set.title());
        if let Some(worst) = found.iter().map(|found| found.health).min() {
            branch.health = branch.health.min(worst);
        }
        self.attention.extend(found);
        branch
    }
}

/// Whether a cluster uses an Accounting.
fn uses(controller: &Object, accounting: &Object) -> bool {
    controller.namespace == accounting.namespace && controller.text("/spec/accountingRef/name") == accounting.name
}

/// What an update of a set is called.
pub fn update_of(set: &Object) -> &'static str {
    match set.text("/spec/updateStrategy/type") {
        "OnDelete" => "update on delete",
        "ScheduledUpdate" => "scheduled update",
        _ => "rolling update",
    }
}

/// Health and summary by Ready, Progressing and Degraded.
pub fn overall(conditions: &[Condition]) -> (Health, String) {
    let Some(ready) = conditions::find(conditions, READY) else {
        return (Health::Unknown, "not seen by the operator yet".to_owned());
    };
    let text = match ready.status.as_str() {
        "True" => "ready",
        "False" => "not ready",
        _ => "unknown",
    };
    let health = if conditions::is_true(conditions, DEGRADED) {
        Health::Bad
    } else if conditions::is_true(conditions, PROGRESSING) || ready.status == "False" {
        Health::Busy
    } else if ready.status == "True" {
        Health::Good
    } else {
        Health::Unknown
    };
    let summary = if ready.message.is_empty() { text.to_owned() } else { ready.message.clone() };
    (health, summary)
}

/// Whether a condition says that something is not as it should be.
pub fn is_finding(condition: &Condition) -> bool {
    let type_ = condition.type_.as_str();
    (WANTED.contains(&type_) && condition.status != "True") || (UNWANTED.contains(&type_) && condition.status == "True")
}

fn slurmctld(pod: &Pod) -> Branch {
    of_pod(pod, "slurmctld", if pod.is_active { "ready, in charge" } else { "ready" })
}

fn of_pod(pod: &Pod, program: &str, ready: &str) -> Branch {
    let health = if pod.is_ready { Health::Good } else { Health::Busy };
    let mut summary = pod.problem.clone().unwrap_or_else(|| ready.to_owned());
    if pod.restarts > 0 {
        summary = format!("{summary}, restarted {} times", pod.restarts);
    }
    Branch::new(program, &pod.namespace, &pod.name, health, summary)
}

/// The last events of our objects, and the last warnings of their pods.
pub fn events(facts: &Facts, most: usize) -> Vec<Event> {
    let kinds: BTreeSet<&str> = facts.objects.iter().map(|object| object.kind.as_str()).collect();
    let pods: BTreeSet<&str> = facts.pods.iter().map(|pod| pod.name.as_str()).collect();
    let is_ours = |event: &&Event| {
        kinds.contains(event.kind.as_str())
            || (event.is_warning && event.kind == "Pod" && pods.contains(event.name.as_str()))
    };
    let mut found: Vec<Event> = facts.events.iter().filter(is_ours).cloned().collect();
    found.sort_by(|a, b| (a.time, &a.object, &a.message).cmp(&(b.time, &b.object, &b.message)));
    let first = found.len().saturating_sub(most);
    found.split_off(first)
}
