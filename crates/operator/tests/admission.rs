//! The webhook, called by a real API server.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use axum::http::Request;
use jiff::SignedDuration;
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingWebhookConfiguration,
    core::v1::{ConfigMap, PersistentVolumeClaim, Secret},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
    client::Body,
};
use serde_json::{Value, json};
use slurm_operator::{
    certificates::{Current, Lifetimes},
    health::Readiness,
    webhook::{Keeper, Metrics, Source, serve_reviews},
};
use testkit::{
    Rng,
    api_server::{TestNamespace, client, establish},
    damage, wait_for,
};
use tokio::{
    net::{TcpListener, UdpSocket},
    task::JoinHandle,
};

const SOON: Duration = Duration::from_secs(30);

const KINDS: [&str; 6] = ["controller", "restapi", "accounting", "nodeset", "loginset", "token"];

/// A webhook that serves one namespace.
struct Hook {
    client: Client,
    namespace: TestNamespace,
    configurations: Api<ValidatingWebhookConfiguration>,
    tasks: Vec<JoinHandle<()>>,
}

/// What the API server answered.
#[derive(Debug)]
struct Reply {
    code: u16,
    message: String,
    warnings: Vec<String>,
}

impl Hook {
    async fn start(test: &str, lifetimes: Lifetimes) -> Result<Self> {
        let client = client().await?;
        establish(&client, &slurm_operator_api::crds()).await?;
        let namespace = TestNamespace::create(&client, test).await?;
        let listener = TcpListener::bind((own_address().await?, 0)).await?;
        let address = listener.local_addr()?;
        let configurations = Api::all(client.clone());
        let configuration = configuration(namespace.name(), address)?;
        configurations.create(&PostParams::default(), &configuration).await?;
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "tls"}}))?;
        namespace.api().create(&PostParams::default(), &secret).await?;

        let current = Current::default();
        let serving = serve_reviews(
            listener,
            client.clone(),
            Metrics::default(),
            current.clone(),
            std::future::pending::<Result<()>>(),
        );
        let mut tasks = vec![tokio::spawn(async move {
            let _ = serving.await;
        })];
        // Two replicas keep the certificates; one of them serves.
        let mut ready = Vec::new();
        for current in [current, Current::default()] {
            let readiness = Readiness::default();
            let keeper = Keeper {
                client: client.clone(),
                namespace: namespace.name().to_owned(),
                secret: "tls".to_owned(),
                names: vec![address.ip().to_string()],
                validating: Some(namespace.name().to_owned()),
                mutating: None,
                lifetimes,
            };
            ready.push(readiness.clone());
            tasks.push(tokio::spawn(async move {
                Source::Secret(Box::new(keeper)).keep(&current, &readiness).await;
            }));
        }
        tokio::task::yield_now().await;
        let hook = Self { client, namespace, configurations, tasks };
        wait_for("the webhook to be ready and called", SOON, async || {
            ensure!(ready.iter().all(|readiness| readiness.missing().is_empty()), "{}", ready[0].missing());
            let reply = hook.create("nodeset", node_set(json!({"extraConf": "Weigth=1"}))).await?;
            ensure!(reply.code == 422 && reply.message.contains("denied the request"), "{reply:?}");
            Ok(())
        })
        .await?;
        Ok(hook)
    }

    async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Reply> {
        let content = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", content);
        let response = self.client.send(request.body(Body::from(body.to_string().into_bytes()))?).await?;
        let code = response.status().as_u16();
        let texts = response.headers().get_all("warning").iter().filter_map(|value| value.to_str().ok());
        let warnings = texts.map(str::to_owned).collect();
        let bytes = response.into_body().collect_bytes().await?;
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        Ok(Reply { code, message: body["message"].as_str().unwrap_or_default().to_owned(), warnings })
    }

    fn path(&self, kind: &str, rest: &str) -> String {
        format!("/apis/slinky.slurm.net/v1beta1/namespaces/{}/{kind}s{rest}", self.namespace.name())
    }

    /// Creates an object, as a dry run.
    async fn create(&self, kind: &str, object: Value) -> Result<Reply> {
        self.send("POST", &self.path(kind, "?dryRun=All"), &object).await
    }

    async fn put(&self, kind: &str, object: Value) -> Result<()> {
        let reply = self.send("POST", &self.path(kind, ""), &object).await?;
        ensure!(reply.code == 201, "{reply:?}");
        Ok(())
    }

    async fn change(&self, kind: &str, name: &str, patch: Value) -> Result<Reply> {
        self.send("PATCH", &self.path(kind, &format!("/{name}")), &patch).await
    }

    /// An API server without controller manager does not empty a namespace, so the test does.
    async fn finish(self) -> Result<()> {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.configurations.delete(self.namespace.name(), &DeleteParams::default()).await?;
        for kind in KINDS {
            self.send("DELETE", &self.path(kind, ""), &json!({})).await?;
        }
        self.namespace.delete().await
    }
}

/// The address at which the API server reaches this process: the API server of the local cluster has a network of its own.
async fn own_address() -> Result<IpAddr> {
    let server = Config::infer().await?.cluster_url;
    let host = server.host().context("the API server has no host")?;
    let socket = UdpSocket::bind("0.0.0.0:0").await?;
    // Sends nothing: it only finds the route.
    socket.connect((host, server.port_u16().unwrap_or(443))).await?;
    Ok(socket.local_addr()?.ip())
}

/// As the chart has it, but for this namespace and without a Service.
fn configuration(namespace: &str, address: SocketAddr) -> Result<ValidatingWebhookConfiguration> {
    let changed =
        "request.operation != 'UPDATE' || !has(object.spec) || !has(oldObject.spec) || object.spec != oldObject.spec";
    let hook = |kind: &str| {
        json!({
            "name": format!("{kind}-v1beta1.kb.io"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 10,
            "clientConfig": {"url": format!("https://{address}/validate-slinky-slurm-net-v1beta1-{kind}")},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [{"apiGroups": ["slinky.slurm.net"], "apiVersions": ["v1beta1"], "operations": ["CREATE", "UPDATE"],
                "resources": [format!("{kind}s")], "scope": "Namespaced"}],
            "matchConditions": [{"name": "spec-is-new", "expression": changed}],
        })
    };
    Ok(serde_json::from_value(json!({"metadata": {"name": namespace}, "webhooks": KINDS.map(hook)}))?)
}

fn object(kind: &str, name: &str, mut spec: Value, changes: Value) -> Value {
    if let (Some(spec), Value::Object(changes)) = (spec.as_object_mut(), changes) {
        spec.extend(changes);
    }
    json!({"apiVersion": "slinky.slurm.net/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn keys() -> Value {
    json!({"slurmKeyRef": {"name": "auth", "key": "slurm.key"}, "jwtKeyRef": {"name": "auth", "key": "jwt.key"}})
}

fn controller(changes: Value) -> Value {
    let mut spec = keys();
    (spec["slurmctld"], spec["clusterName"]) = (json!({"image": "slurmctld:26.05"}), json!("alps"));
    object("Controller", "slurm", spec, changes)
}

fn node_set(changes: Value) -> Value {
    let spec = json!({"controllerRef": {"name": "slurm"}, "slurmd": {"image": "slurmd:26.05"}});
    object("NodeSet", "gpu", spec, changes)
}

fn login_set(changes: Value) -> Value {
    let sssd = json!({"name": "sssd", "key": "sssd.conf"});
    let spec = json!({"controllerRef": {"name": "slurm"}, "login": {"image": "login:26.05"}, "sssdConfRef": sssd});
    object("LoginSet", "people", spec, changes)
}

fn accounting(changes: Value) -> Value {
    let mut spec = keys();
    spec["slurmdbd"] = json!({"image": "slurmdbd:26.05"});
    spec["storageConfig"] = json!({"host": "mariadb", "passwordKeyRef": {"name": "mariadb", "key": "password"}});
    object("Accounting", "records", spec, changes)
}

fn rest_api(changes: Value) -> Value {
    let spec = json!({"controllerRef": {"name": "slurm"}, "slurmrestd": {"image": "slurmrestd:26.05"}});
    object("RestApi", "rest", spec, changes)
}

fn token(changes: Value) -> Value {
    let spec = json!({"username": "alice", "jwtKeyRef": {"name": "auth", "key": "jwt.key"}});
    object("Token", "alice", spec, changes)
}

/// A rule on creation: an object that is accepted without a warning, one that is not, and what is said about it.
type Rule = (&'static str, Value, Value, &'static str);

fn refused() -> Vec<Rule> {
    let name = |length| controller(json!({"clusterName": "a".repeat(length)}));
    let files = |map: &str| controller(json!({"configFileRefs": [{"name": map}]}));
    let ha = |claim: &str| controller(json!({"ha": {"enabled": true}, "persistence": {"existingClaim": claim}}));
    let update = |strategy: Value| node_set(json!({"updateStrategy": strategy}));
    let rolling = |max: Value| update(json!({"rollingUpdate": {"maxUnavailable": max}}));
    let scheduled = |duration: &str| {
        let schedule = json!({"startTime": "2030-01-01T00:00:00Z", "duration": duration});
        update(json!({"type": "ScheduledUpdate", "scheduledUpdate": schedule}))
    };
    let ssh = |name: &str| node_set(json!({"ssh": {"enabled": true, "sssdConfRef": {"name": name, "key": "k"}}}));
    let hostname = |name: &str| node_set(json!({"template": {"spec": {"hostname": name}}}));
    let node = |conf: &str| node_set(json!({"extraConf": conf}));
    let partition = |conf: &str| node_set(json!({"partition": {"enabled": true, "config": conf}}));
    let sssd = |name: &str| login_set(json!({"sssdConfRef": {"name": name, "key": "sssd.conf"}}));
    let life = |text: &str| token(json!({"lifetime": text}));
    vec![
        ("controller", name(40), name(41), "spec.clusterName"),
        ("controller", files("good"), files("reserved"), "must not contain slurm.conf"),
        ("controller", ha("shared"), ha("single"), "ReadWriteMany"),
        ("controller", ha("gone"), ha("single"), "spec.persistence.existingClaim"),
        (
            "controller",
            controller(json!({"extraConf": "SchedulerParameters=defer"})),
            controller(json!({"extraConf": "SchedulerParamters=defer"})),
            "did you mean SchedulerParameters?",
        ),
        ("controller", controller(json!({})), controller(json!({"slurmctld": {}})), "spec.slurmctld.image: required"),
        ("nodeset", node_set(json!({})), node_set(json!({"controllerRef": {"name": ""}})), "spec.controllerRef.name"),
        ("nodeset", node_set(json!({})), node_set(json!({"slurmd": {}})), "spec.slurmd.image: required"),
        ("nodeset", rolling(json!("10%")), rolling(json!("many")), "maxUnavailable"),
        ("nodeset", scheduled("1m"), scheduled("59s"), "scheduledUpdate.duration: must be at least 1 minute"),
        ("nodeset", ssh("sssd"), ssh(""), "spec.ssh.sssdConfRef.name"),
        ("nodeset", hostname("gpu-"), hostname("GPU_"), "spec.template.spec.hostname"),
        ("nodeset", node("Weight=10 Features=a"), node("Weight"), "spec.extraConf: must be a list of Key=Value"),
        ("nodeset", partition("MaxTime=60"), partition("MaxTiem=60"), "did you mean MaxTime?"),
        ("loginset", login_set(json!({})), login_set(json!({"controllerRef": {"name": ""}})), "controllerRef.name"),
        ("loginset", login_set(json!({})), sssd(""), "spec.sssdConfRef.name"),
        (
            "accounting",
            accounting(json!({})),
            accounting(json!({"extraConf": "DbdPort=1"})),
            "spec.extraConf: DbdPort is fixed",
        ),
        ("restapi", rest_api(json!({})), rest_api(json!({"slurmrestd": {}})), "spec.slurmrestd.image: required"),
        ("token", life("30s"), life("29s"), "spec.lifetime: must be at least 30 seconds"),
    ]
}

fn warned() -> Vec<Rule> {
    let ips = json!({"service": {"spec": {"externalIPs": ["10.0.0.1"]}}});
    let files = |map: &str| controller(json!({"configFileRefs": [{"name": map}]}));
    let rolling = |max: u8| node_set(json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": max}}}));
    vec![
        ("controller", controller(json!({})), controller(ips.clone()), "externalIPs: ignored"),
        ("loginset", login_set(json!({})), login_set(ips.clone()), "externalIPs: ignored"),
        ("accounting", accounting(json!({})), accounting(ips.clone()), "externalIPs: ignored"),
        ("restapi", rest_api(json!({})), rest_api(ips), "externalIPs: ignored"),
        ("controller", files("good"), files("gone"), "the ConfigMap gone does not exist"),
        ("controller", files("good"), files("odd"), "Slurm does not read notes.txt"),
        ("nodeset", rolling(1), rolling(0), "with 0 no worker is replaced"),
    ]
}

/// Rules on a change: what must stay, and a change that is accepted.
fn immutable() -> Vec<(&'static str, Value, Value, Value, &'static str)> {
    let key = |name: &str| json!({"name": name, "key": "jwt.key"});
    let claims = json!([{"metadata": {"name": "scratch"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    vec![
        (
            "controller",
            controller(json!({})),
            json!({"clusterName": "other"}),
            json!({"extraConf": "MaxJobCount=5"}),
            "clusterName",
        ),
        (
            "controller",
            controller(json!({})),
            json!({"slurmKeyRef": {"name": "other"}}),
            json!({"jwtHs256KeyRef": key("auth")}),
            "slurmKeyRef is immutable",
        ),
        (
            "controller",
            controller(json!({})),
            json!({"jwtKeyRef": key("other")}),
            json!({"jwtKeyRef": key("auth")}),
            "jwtKeyRef",
        ),
        (
            "controller",
            controller(json!({})),
            json!({"persistence": {"enabled": false}}),
            json!({"persistence": {"enabled": true}}),
            "persistence.enabled",
        ),
        (
            "controller",
            controller(json!({})),
            json!({"persistence": {"existingClaim": "x"}}),
            json!({"persistence": {}}),
            "existingClaim",
        ),
        (
            "nodeset",
            node_set(json!({})),
            json!({"controllerRef": {"name": "other"}}),
            json!({"replicas": 2}),
            "controllerRef",
        ),
        (
            "nodeset",
            node_set(json!({})),
            json!({"volumeClaimTemplates": claims}),
            json!({"replicas": 2}),
            "volumeClaimTemplates",
        ),
        (
            "loginset",
            login_set(json!({})),
            json!({"controllerRef": {"name": "other"}}),
            json!({"replicas": 2}),
            "controllerRef",
        ),
        (
            "accounting",
            accounting(json!({})),
            json!({"jwtKeyRef": key("other")}),
            json!({"jwtKeyRef": key("auth")}),
            "jwtKeyRef",
        ),
        ("token", token(json!({})), json!({"jwtKeyRef": key("other")}), json!({"lifetime": "1h"}), "jwtKeyRef"),
        (
            "nodeset",
            node_set(json!({})),
            json!({"extraConf": "Weigth=1"}),
            json!({"extraConf": "Weight=1"}),
            "did you mean Weight?",
        ),
        (
            "controller",
            controller(json!({})),
            json!({"configFileRefs": [{"name": "reserved"}]}),
            json!({"configFileRefs": []}),
            "slurm.conf",
        ),
    ]
}

/// What objects in the tables refer to.
async fn surroundings(hook: &Hook) -> Result<()> {
    for (name, file) in [("good", "gres.conf"), ("reserved", "slurm.conf"), ("odd", "notes.txt")] {
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}, "data": {file: ""}}))?;
        hook.namespace.api().create(&PostParams::default(), &map).await?;
    }
    for (name, mode) in [("shared", "ReadWriteMany"), ("single", "ReadWriteOnce")] {
        let spec = json!({"accessModes": [mode], "resources": {"requests": {"storage": "1Gi"}}});
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        hook.namespace.api().create(&PostParams::default(), &claim).await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_rule_accepts_and_refuses() -> Result<()> {
    let hook = Hook::start("admission", Lifetimes::default()).await?;
    surroundings(&hook).await?;
    for (kind, good, bad, says) in refused() {
        let reply = hook.create(kind, good.clone()).await?;
        ensure!(reply.code == 201 && reply.warnings.is_empty(), "{good}: {reply:?}");
        let reply = hook.create(kind, bad.clone()).await?;
        ensure!(reply.code == 422 && reply.message.contains(says), "{bad}: {reply:?}");
    }
    for (kind, good, odd, says) in warned() {
        let reply = hook.create(kind, good.clone()).await?;
        ensure!(reply.code == 201 && reply.warnings.is_empty(), "{good}: {reply:?}");
        let reply = hook.create(kind, odd.clone()).await?;
        ensure!(reply.code == 201 && reply.warnings.concat().contains(says), "{odd}: {reply:?}");
    }
    for (number, (kind, mut object, bad, good, says)) in immutable().into_iter().enumerate() {
        let name = format!("changes-{number}");
        object["metadata"]["name"] = json!(name);
        hook.put(kind, object).await?;
        let reply = hook.change(kind, &name, json!({"spec": bad})).await?;
        ensure!(reply.code == 422 && reply.message.contains(says), "{name} {bad}: {reply:?}");
        let reply = hook.change(kind, &name, json!({"spec": good})).await?;
        ensure!(reply.code == 200, "{name} {good}: {reply:?}");
    }
    hook.finish().await
}

/// A mistake that got in while the webhook was off. Without the webhook, everything but the spec can change.
#[tokio::test]
async fn old_mistakes_and_a_webhook_that_is_down_block_nothing_else() -> Result<()> {
    let hook = Hook::start("admission-old", Lifetimes::default()).await?;
    let path =
        format!("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{}", hook.namespace.name());
    let policy = async |policy: &str, port: Option<u16>| -> Result<()> {
        let mut configuration = serde_json::to_value(hook.configurations.get(hook.namespace.name()).await?)?;
        for webhook in configuration["webhooks"].as_array_mut().into_iter().flatten() {
            webhook["failurePolicy"] = json!(policy);
            if let Some(port) = port {
                webhook["clientConfig"]["url"] = json!(format!("https://127.0.0.1:{port}/gone"));
            }
        }
        let reply = hook.send("PUT", &path, &configuration).await?;
        ensure!(reply.code == 200, "{reply:?}");
        Ok(())
    };
    let original = hook.configurations.get(hook.namespace.name()).await?;
    // The discard port: nobody answers.
    policy("Ignore", Some(9)).await?;
    let wrong = node_set(json!({"extraConf": "Weigth=1"}));
    wait_for("the API server to ignore the webhook", SOON, async || hook.put("nodeset", wrong.clone()).await).await?;
    policy("Fail", Some(9)).await?;
    wait_for("the webhook to be down", SOON, async || {
        let reply = hook.create("nodeset", node_set(json!({}))).await?;
        ensure!(reply.code == 500 && reply.message.contains("failed calling webhook"), "{reply:?}");
        Ok(())
    })
    .await?;
    let labelled = hook.change("nodeset", "gpu", json!({"metadata": {"finalizers": ["example.org/f"]}})).await?;
    ensure!(labelled.code == 200, "{labelled:?}");
    let freed = hook.change("nodeset", "gpu", json!({"metadata": {"finalizers": null}})).await?;
    ensure!(freed.code == 200, "{freed:?}");

    let mut restored = serde_json::to_value(original)?;
    restored["metadata"] = json!({"name": hook.namespace.name(),
        "resourceVersion": hook.configurations.get(hook.namespace.name()).await?.metadata.resource_version});
    let reply = hook.send("PUT", &path, &restored).await?;
    ensure!(reply.code == 200, "{reply:?}");
    wait_for("the old mistake to be a warning", SOON, async || {
        let scaled = hook.change("nodeset", "gpu", json!({"spec": {"minReadySeconds": 7}})).await?;
        let back = hook.change("nodeset", "gpu", json!({"spec": {"minReadySeconds": null}})).await?;
        ensure!(scaled.code == 200 && back.code == 200 && back.warnings.concat().contains("(not new)"), "{back:?}");
        Ok(())
    })
    .await?;
    hook.finish().await
}

/// Objects of all kinds with random changes. Each is accepted, or refused with a reason; the webhook always answers.
#[tokio::test]
async fn malformed_objects_are_answered() -> Result<()> {
    let hook = Hook::start("admission-odd", Lifetimes::default()).await?;
    let good = [
        ("controller", controller(json!({"persistence": {"existingClaim": "x"}, "configFileRefs": [{"name": "m"}]}))),
        ("nodeset", node_set(json!({"template": {"spec": {"hostname": "a-"}}, "partition": {"enabled": true}}))),
        ("loginset", login_set(json!({}))),
        ("accounting", accounting(json!({}))),
        ("restapi", rest_api(json!({}))),
        ("token", token(json!({"lifetime": "1h"}))),
    ];
    let mut rng = Rng::new(7);
    let (mut accepted, mut refused) = (0, 0);
    for round in 0..200 {
        let (kind, object) = &good[round % good.len()];
        let mut object = object.clone();
        for _ in 0..=rng.below(2) {
            damage(&mut object["spec"], &mut rng);
        }
        let reply = hook.create(kind, object.clone()).await?;
        match reply.code {
            201 => accepted += 1,
            400 | 422 => refused += 1,
            _ => anyhow::bail!("round {round}: {object}: {reply:?}"),
        }
    }
    ensure!(accepted > 10 && refused > 10, "{accepted} accepted, {refused} refused");
    hook.finish().await
}

/// Both the certificate and the authority are replaced while the API server calls all the time.
#[tokio::test]
async fn certificates_rotate_without_a_failed_call() -> Result<()> {
    let seconds = SignedDuration::from_secs;
    let lifetimes = Lifetimes { authority: seconds(20), serving: seconds(12), trusted_after: seconds(1) };
    let hook = Hook::start("admission-rotation", lifetimes).await?;
    let authority = async || -> Result<(Value, Value)> {
        let secret: Secret = hook.namespace.api().get("tls").await?;
        let content = secret.data.unwrap_or_default().remove("certificates.json").context("no certificates")?;
        let content: Value = serde_json::from_slice(&content.0)?;
        Ok((content["authority"]["created"].clone(), content["signed_by"].clone()))
    };
    let first = authority().await?;
    let mut admissions = 0;
    loop {
        let (good, bad) =
            (hook.create("token", token(json!({}))), hook.create("token", token(json!({"lifetime": "1s"}))));
        let (good, bad) = tokio::try_join!(good, bad)?;
        ensure!(good.code == 201 && bad.code == 422, "after {admissions}: {good:?} {bad:?}");
        admissions += 2;
        let now = authority().await?;
        if admissions >= 1_000 && now.0 != first.0 && now.1 == now.0 {
            break;
        }
    }
    hook.finish().await
}
