//! Plans for objects in files: what the operator would do, without a cluster.
//!
//! An in-process API server answers reads from these objects, so observing uses the same code as in the operator.
//! There is no Slurm: whatever depends on it is reported as waiting for it.

use std::{fmt::Write as _, io::Read as _, path::Path, sync::Arc};

use anyhow::{Context, Result, bail};
use axum::{
    Json, Router,
    extract::Request,
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
};
use clap::Args;
use engine::{
    lint::lint,
    plan::{Plan, Step},
};
use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use kube::{Client, runtime::watcher::Event};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    frontends::{self, KindVisitor, slinky},
    kube_view::{KubeView, drain_policy::DrainPolicy, stores::Store},
    machine::Kind,
    metrics::Metrics,
    slurm_view::Views,
    sources::Sources,
    trigger,
};

/// Flags of `slurm-operator plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// File with objects in YAML or JSON, as printed by `kubectl get -o yaml`; `-` for standard input
    #[arg(short = 'f', long = "filename", required = true)]
    pub files: Vec<std::path::PathBuf>,
    /// Also print the objects that would be applied or created, without the content of Secrets
    #[arg(long)]
    pub objects: bool,
}

/// Returns the plan of every custom resource in the files.
pub fn run(args: &PlanArgs) -> Result<String> {
    let mut objects = Vec::new();
    for file in &args.files {
        objects.extend(read(file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(plan_all(objects, args.objects))
}

fn read(file: &Path) -> Result<Vec<Value>> {
    let text = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(file)?
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let mut objects = Vec::new();
    for mut document in documents.into_iter().filter(|document| !document.is_null()) {
        if document.get("kind").and_then(Value::as_str).is_none() {
            bail!("found a document without a kind");
        }
        match document.get_mut("items").map(Value::take) {
            Some(Value::Array(items)) => objects.extend(items),
            _ => objects.push(document),
        }
    }
    for object in &mut objects {
        complete(object);
    }
    Ok(objects)
}

/// Fills in what the API server would set.
fn complete(object: &mut Value) {
    let name = format!("{}-{}", text(object, "/kind"), text(object, "/metadata/name"));
    let is_node = text(object, "/kind") == "Node";
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    if !is_node {
        metadata.entry("namespace").or_insert_with(|| "default".into());
    }
    metadata.entry("uid").or_insert_with(|| name.into());
    metadata.entry("resourceVersion").or_insert_with(|| "1".into());
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

async fn plan_all(objects: Vec<Value>, show: bool) -> Result<String> {
    let rings = slinky::keys::expected(&objects);
    let objects = Arc::new(objects.into_iter().chain(rings).collect::<Vec<Value>>());
    let slurm = Views::new(trigger::channel(), Metrics::default());
    let kube =
        KubeView { drain_policy: DrainPolicy::offline(), ..KubeView::new(client(&objects), frontends::vocabularies()) };
    let sources = Sources::new(kube, slurm, &[]);
    fill(&*sources.kube.workers.0, &objects, "Pod");
    fill(&*sources.kube.nodes.0, &objects, "Node");
    let mut planners = Planners { sources: &sources, objects: &objects, show, plans: Vec::new(), kinds: Vec::new() };
    frontends::visit(&mut planners);
    let mut out = String::new();
    for plan in planners.plans {
        out.push_str(&plan.await?);
    }
    if out.is_empty() {
        bail!("the files contain none of these kinds: {}", planners.kinds.join(", "));
    }
    Ok(out)
}

/// Collects the plans of all kinds.
struct Planners<'a> {
    sources: &'a Sources,
    objects: &'a [Value],
    show: bool,
    plans: Vec<BoxFuture<'a, Result<String>>>,
    /// Their names.
    kinds: Vec<String>,
}

impl KindVisitor for Planners<'_> {
    fn kind<K: Kind>(&mut self) {
        self.plans.push(plans::<K>(self.sources, self.objects, self.show).boxed());
        self.kinds.push(K::kind(&()).into_owned());
    }
}

fn fill<K: DeserializeOwned>(store: &impl Store<K>, objects: &[Value], kind: &str) {
    let found = objects.iter().filter(|object| text(object, "/kind") == kind);
    store.take(None, Event::Init, &|_| {});
    for object in found.filter_map(|object| serde_json::from_value(object.clone()).ok()) {
        store.take(None, Event::InitApply(object), &|_| {});
    }
    store.take(None, Event::InitDone, &|_| {});
}

/// Whether an object is of this kind. Kinds of two API groups may have one name; without an apiVersion the kind decides.
fn is_a<K: Kind>(object: &Value) -> bool {
    let group = text(object, "/apiVersion").rsplit_once('/').map(|(group, _)| group);
    text(object, "/kind") == K::kind(&()) && group.is_none_or(|group| group == K::group(&()))
}

async fn plans<K: Kind>(sources: &Sources, objects: &[Value], show: bool) -> Result<String> {
    let mut out = String::new();
    let now = Timestamp::now();
    let kind = K::kind(&());
    for object in objects.iter().filter(|object| is_a::<K>(object)) {
        let title = format!("{kind} {}/{}", text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        let object: K = serde_json::from_value(object.clone()).with_context(|| format!("{title} cannot be decoded"))?;
        let facts =
            object.observe(sources, now).await.map_err(|failure| anyhow::anyhow!("{title}: {}", failure.text()))?;
        let plan = object.plan(&facts, now);
        describe(&title, &plan, show, now, &mut out)?;
        for error in object.validate() {
            writeln!(out, "  invalid: {error}")?;
        }
        for violation in lint(&object, &plan) {
            writeln!(out, "  this is a bug of the operator, please report it: {violation}")?;
        }
    }
    Ok(out)
}

fn describe<S>(title: &str, plan: &Plan<S>, show: bool, now: Timestamp, out: &mut String) -> Result<()> {
    writeln!(out, "{title}")?;
    for (number, stage) in plan.stages.iter().enumerate().filter(|(_, stage)| !stage.is_empty()) {
        writeln!(out, "  stage {}", number + 1)?;
        for step in stage {
            writeln!(out, "    {}", step.title())?;
            if let (true, Some(object)) = (show, shown(step)) {
                for line in serde_saphyr::to_string(&object)?.lines() {
                    writeln!(out, "      {line}")?;
                }
            }
        }
    }
    if plan.stages.iter().all(Vec::is_empty) {
        writeln!(out, "  nothing to do")?;
    }
    for (node, blocker) in &plan.waiting {
        writeln!(out, "  waiting for {node}: {}", blocker.text(now))?;
    }
    for new_condition in &plan.conditions {
        let message = if new_condition.message.is_empty() { new_condition.reason } else { &new_condition.message };
        writeln!(out, "  {}: {:?} ({message})", new_condition.type_, new_condition.status)?;
    }
    Ok(())
}

fn shown(step: &Step) -> Option<Value> {
    let object = match step {
        Step::Apply(desired) if desired.resource.kind != "Secret" => serde_json::to_value(&desired.object).ok()?,
        Step::Create(object) => object.render(),
        _ => return None,
    };
    Some(object)
}

/// A client for an API server that serves these objects and accepts no writes.
pub fn client(objects: &Arc<Vec<Value>>) -> Client {
    let objects = Arc::clone(objects);
    let router = Router::new().fallback(move |request: Request| {
        let answer = answer(&objects, request.uri());
        async move { answer }
    });
    Client::new(router, "default")
}

fn answer(objects: &[Value], uri: &Uri) -> Response {
    let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let (group, rest) = match parts.as_slice() {
        ["api", _, rest @ ..] => ("", rest),
        ["apis", group, _, rest @ ..] => (*group, rest),
        _ => return missing(uri),
    };
    let (namespace, plural, name) = match rest {
        ["namespaces", namespace, plural] => (Some(*namespace), *plural, None),
        ["namespaces", namespace, plural, name] => (Some(*namespace), *plural, Some(*name)),
        [plural] => (None, *plural, None),
        [plural, name] => (None, *plural, Some(*name)),
        _ => return missing(uri),
    };
    let matches = |object: &&Value| {
        let api = text(object, "/apiVersion").split_once('/').map_or("", |(group, _)| group);
        api == group
            && format!("{}s", text(object, "/kind").to_lowercase()) == plural
            && namespace.is_none_or(|namespace| text(object, "/metadata/namespace") == namespace)
            && name.is_none_or(|name| text(object, "/metadata/name") == name)
            && labels_match(object, uri.query().unwrap_or_default())
    };
    let mut found = objects.iter().filter(matches);
    if name.is_some() {
        return found.next().map_or_else(|| missing(uri), |object| Json(object).into_response());
    }
    let items: Vec<&Value> = found.collect();
    Json(json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}))
        .into_response()
}

/// Whether an object has the labels of the query's label selector; only `key=value` is supported.
fn labels_match(object: &Value, query: &str) -> bool {
    let selector = query.split('&').find_map(|part| part.strip_prefix("labelSelector=")).unwrap_or_default();
    let selector = selector.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/").replace('+', " ");
    selector.split(',').filter_map(|term| term.split_once('=')).all(|(key, value)| {
        let labels = object.pointer("/metadata/labels");
        labels.and_then(|labels| labels.get(key.trim())).and_then(Value::as_str) == Some(value.trim())
    })
}

fn missing(uri: &Uri) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "reason": "NotFound",
        "message": format!("{} is not in the given files", uri.path()),
    });
    (StatusCode::NOT_FOUND, Json(status)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECTS: &str = r"
apiVersion: v1
kind: List
items:
- apiVersion: slinky.slurm.net/v1beta1
  kind: Controller
  metadata: {name: slurm, namespace: ns}
  spec:
    generateKeys: true
    slurmKeyRef: {name: keys, key: slurm.key}
    jwtKeyRef: {name: keys, key: jwt.key}
    slurmctld: {image: 'slurmctld:26.05'}
- apiVersion: slinky.slurm.net/v1beta1
  kind: NodeSet
  metadata: {name: workers, namespace: ns}
  spec:
    controllerRef: {name: slurm}
    replicas: 2
    slurmd: {image: 'slurmd:26.05'}
- apiVersion: slinky.slurm.net/v1beta1
  kind: LoginSet
  metadata: {name: people, namespace: ns}
  spec:
    controllerRef: {name: slurm}
    login: {image: 'login:26.05'}
    sssdConfRef: {name: sssd, key: sssd.conf}
---
apiVersion: v1
kind: Secret
metadata: {name: keys, namespace: ns}
data: {slurm.key: aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnRlcjI=, jwt.key: aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMmh1bnRlcjI=}
";

    fn planned(text: &str, objects: bool) -> Result<String> {
        let folder = std::env::temp_dir().join(format!("slurm-operator-plan-{}", crate::random::id()?));
        std::fs::create_dir(&folder)?;
        let file = folder.join("objects.yaml");
        std::fs::write(&file, text)?;
        let result = run(&PlanArgs { files: vec![file], objects });
        std::fs::remove_dir_all(folder)?;
        result
    }

    /// CRDs of earlier releases, and API servers without CEL, let much of this in.
    #[test]
    fn malformed_objects_do_not_end_the_operator() {
        let more = r"
apiVersion: slinky.slurm.net/v1beta1
kind: RestApi
metadata: {name: rest, namespace: ns}
spec: {controllerRef: {name: slurm}, replicas: 2, slurmrestd: {image: 'slurmrestd:26.05'}, service: {port: 80, spec: {type: NodePort}}}
---
apiVersion: slinky.slurm.net/v1beta1
kind: Accounting
metadata: {name: records, namespace: ns}
spec:
  slurmKeyRef: {name: keys, key: slurm.key}
  jwtKeyRef: {name: keys, key: jwt.key}
  slurmdbd: {image: 'slurmdbd:26.05'}
  storageConfig: {host: mariadb, passwordKeyRef: {name: keys, key: jwt.key}}
  extraConf: CommitDelay=1
---
apiVersion: slinky.slurm.net/v1beta1
kind: Token
metadata: {name: alice, namespace: ns}
spec: {username: alice, lifetime: 1h, jwtKeyRef: {name: keys, key: jwt.key}, secretRef: {name: s, key: k}}
";
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&format!("{OBJECTS}\n---{more}")).unwrap();
        let listed = objects.iter_mut().filter_map(|object| Some(object.get_mut("items")?.take())).collect::<Vec<_>>();
        objects.retain(|object| object.get("items").is_none());
        objects.extend(listed.into_iter().flat_map(|items| items.as_array().cloned().unwrap_or_default()));
        objects.iter_mut().for_each(complete);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut rng = testkit::Rng::new(11);
        let (mut planned, mut refused) = (0, 0);
        for round in 0..300 {
            let mut objects = objects.clone();
            for object in objects.iter_mut().filter(|object| object.get("spec").is_some()) {
                // Most stay as they are, so that one does not hide the others.
                if rng.percent(30) {
                    testkit::damage(&mut object["spec"], &mut rng);
                }
            }
            match runtime.block_on(plan_all(objects, true)) {
                Ok(text) => {
                    assert!(!text.contains("this is a bug"), "round {round}: {text}");
                    planned += 1;
                }
                // It cannot be decoded.
                Err(_) => refused += 1,
            }
        }
        assert!(planned > 50 && refused > 50, "{planned} planned, {refused} refused");
    }

    #[test]
    fn prints_the_plan_without_a_cluster_and_without_secrets() {
        let text = planned(OBJECTS, true).unwrap();
        for line in [
            "Controller ns/slurm",
            "    apply StatefulSet slurm-controller",
            "NodeSet ns/workers",
            "    create Pod workers-0",
            "    create Pod workers-1",
            "LoginSet ns/people",
            "    apply Service people",
            "  Ready: False (the Secret sssd with sssd.conf does not exist",
            "  Ready: False",
        ] {
            assert!(text.lines().any(|found| found.starts_with(line)), "{line} in {text}");
        }
        assert!(text.contains("ClusterName=ns_slurm"), "objects are shown: {text}");
        assert!(!text.contains("aHVudGVy") && !text.contains("hunter2"), "{text}");
        assert!(!planned(OBJECTS, false).unwrap().contains("ClusterName"), "unless they are not asked for");
    }

    #[test]
    fn says_what_slurm_would_refuse() {
        let wrong =
            OBJECTS.replace("generateKeys: true", "generateKeys: true\n    extraConf: 'SchedulerParamters=defer'");
        let text = planned(&wrong, false).unwrap();
        let finding =
            "spec.extraConf: line 1: SchedulerParamters is not known to Slurm 26.05; did you mean SchedulerParameters?";
        assert!(text.contains(&format!("  ConfigurationValid: False ({finding}")), "{text}");
        assert!(text.contains(&format!("  invalid: {finding}\n")), "{text}");
        assert!(!text.contains("apply StatefulSet"), "{text}");
    }

    #[test]
    fn says_what_is_wrong_with_the_files() {
        for (text, hint) in [
            ("just text", "without a kind"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
                "none of these kinds: Controller, RestApi, Accounting, NodeSet, LoginSet, Token",
            ),
            ("apiVersion: slurm.nebius.ai/v1alpha1\nkind: NodeSet\nmetadata: {name: a}\n", "none of these kinds"),
            ("kind: NodeSet\nmetadata: {name: a}\nspec: 7\n", "NodeSet default/a cannot be decoded"),
        ] {
            let error = format!("{:#}", planned(text, false).unwrap_err());
            assert!(error.contains(hint), "{error}");
        }
        let missing = run(&PlanArgs { files: vec!["/nowhere.yaml".into()], objects: false }).unwrap_err();
        assert!(format!("{missing:#}").starts_with("cannot read /nowhere.yaml"), "{missing:#}");
    }
}
