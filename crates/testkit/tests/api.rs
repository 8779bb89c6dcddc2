//! The custom resources on a real API server. The CRDs stay there; everything else is deleted.

#![expect(clippy::indexing_slicing, reason = "test code: objects are written as JSON and changed in place")]

use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::Request,
};
use serde_json::{Value, json};
use slurm_operator_api::{
    crds,
    slinky::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token},
};
use testkit::{
    api_server::{TestNamespace, apply, client, establish},
    wait_for,
};

/// Objects are written as JSON: typed objects would fill in defaults before the server does.
struct Tokens {
    client: Client,
    namespace: TestNamespace,
    api: Api<DynamicObject>,
}

impl Tokens {
    async fn start(test: &str) -> anyhow::Result<Self> {
        let client = client().await?;
        establish(&client, &crds()).await?;
        let namespace = TestNamespace::create(&client, test).await?;
        let api = namespace.dynamic_api(&ApiResource::erase::<Token>(&()));
        Ok(Self { client, namespace, api })
    }

    async fn apply(&self, name: &str, spec: Value) -> kube::Result<DynamicObject> {
        let token = DynamicObject::new(name, &ApiResource::erase::<Token>(&())).data(json!({ "spec": spec }));
        apply(&self.api, &token).await
    }

    /// Returns the server's error for a rejected spec.
    async fn refusal(&self, name: &str, spec: Value) -> anyhow::Result<String> {
        let error = self.apply(name, spec).await.err().with_context(|| format!("{name} was accepted"))?;
        let kube::Error::Api(status) = error else { return Err(error.into()) };
        ensure!(status.is_invalid(), "{status:?}");
        Ok(status.message)
    }

    /// An API server without controller manager does not empty a namespace, so the test does.
    async fn finish(self) -> anyhow::Result<()> {
        self.api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        self.namespace.delete().await
    }
}

fn minimal() -> Value {
    json!({"username": "alice", "jwtKeyRef": {"name": "jwt", "key": "jwt.key"}})
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = minimal();
    if let Some(fields) = spec.as_object_mut() {
        fields.insert(field.to_owned(), value);
    }
    spec
}

#[tokio::test]
async fn a_token_gets_its_defaults() -> anyhow::Result<()> {
    let tokens = Tokens::start("token-defaults").await?;

    let accepted = tokens.apply("plain", minimal()).await?;
    assert_eq!(accepted.data["spec"], with("refresh", json!(true)));

    let accepted = tokens.apply("named", with("secretRef", json!({"key": "TOKEN"}))).await?;
    assert_eq!(accepted.data["spec"]["secretRef"], json!({"key": "TOKEN", "name": ""}));

    let old = json!({"username": "alice", "jwtHs256KeyRef": {"name": "jwt", "key": "k"}, "lifetime": "1h30m", "refresh": false});
    let accepted = tokens.apply("old", old.clone()).await?;
    assert_eq!(accepted.data["spec"], old);

    tokens.finish().await
}

#[tokio::test]
async fn a_token_without_a_key_is_refused() -> anyhow::Result<()> {
    let tokens = Tokens::start("token-key").await?;

    let message = tokens.refusal("none", json!({"username": "alice"})).await?;
    assert!(message.contains("jwtKeyRef") && message.contains("jwtHs256KeyRef"), "{message}");
    let message = tokens.refusal("null", with("jwtKeyRef", Value::Null)).await?;
    assert!(message.contains("spec.jwtKeyRef"), "{message}");
    let message = tokens.refusal("keyless", with("jwtKeyRef", json!({"name": "jwt"}))).await?;
    assert!(message.contains("spec.jwtKeyRef.key"), "{message}");

    tokens.finish().await
}

#[tokio::test]
async fn a_lifetime_is_a_go_duration() -> anyhow::Result<()> {
    let tokens = Tokens::start("token-lifetime").await?;

    for lifetime in ["0", "90s", "1.5h", "720h0m0s", "-1m", "1\u{b5}s"] {
        tokens.apply("good", with("lifetime", json!(lifetime))).await.with_context(|| lifetime.to_owned())?;
    }
    for lifetime in ["", "15", "1d", "soon", "1h 30m"] {
        let message =
            tokens.refusal("bad", with("lifetime", json!(lifetime))).await.with_context(|| lifetime.to_owned())?;
        assert!(message.contains("spec.lifetime"), "{message}");
    }

    tokens.finish().await
}

#[tokio::test]
async fn kubectl_shows_user_and_readiness() -> anyhow::Result<()> {
    let tokens = Tokens::start("token-columns").await?;
    tokens.apply("shown", minimal()).await?;

    let ready = Condition {
        type_: "Ready".into(),
        status: "True".into(),
        reason: "Signed".into(),
        message: String::new(),
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
        observed_generation: Some(1),
    };
    let status = json!({
        "apiVersion": Token::api_version(&()), "kind": Token::kind(&()), "status": { "conditions": [ready] },
    });
    tokens.api.patch_status("shown", &PatchParams::apply("testkit"), &Patch::Apply(&status)).await?;

    let table = table(&tokens).await?;
    let columns: Vec<&str> = names(&table["columnDefinitions"]);
    assert_eq!(columns, ["Name", "USER", "READY", "IAT", "AGE"]);
    assert_eq!(
        table["rows"][0]["cells"].as_array().map(|cells| &cells[..3]),
        Some(&[json!("shown"), json!("alice"), json!("True")][..])
    );

    tokens.finish().await
}

/// The request that kubectl makes to print a table.
async fn table(tokens: &Tokens) -> anyhow::Result<Value> {
    let path = Token::url_path(&(), Some(tokens.namespace.name()));
    let mut request = Request::new(path).list(&ListParams::default())?;
    request.headers_mut().insert("accept", "application/json;as=Table;v=v1;g=meta.k8s.io".parse()?);
    Ok(tokens.client.request(request).await?)
}

fn names(columns: &Value) -> Vec<&str> {
    columns.as_array().into_iter().flatten().filter_map(|column| column["name"].as_str()).collect()
}

/// Objects of one kind, written as JSON.
struct Objects {
    namespace: TestNamespace,
    resource: ApiResource,
    api: Api<DynamicObject>,
}

impl Objects {
    async fn start<K: Resource<DynamicType = ()>>(test: &str) -> anyhow::Result<Self> {
        let client = client().await?;
        establish(&client, &crds()).await?;
        let namespace = TestNamespace::create(&client, test).await?;
        let resource = ApiResource::erase::<K>(&());
        let api = namespace.dynamic_api(&resource);
        Ok(Self { namespace, resource, api })
    }

    /// Creates an object. POST instead of apply, because Helm creates this way, and nulls are kept.
    async fn create(&self, name: &str, spec: Value) -> kube::Result<DynamicObject> {
        let object = DynamicObject::new(name, &self.resource).data(json!({ "spec": spec }));
        self.api.create(&PostParams::default(), &object).await
    }

    /// Asserts that the server accepts the spec and fills in exactly these defaults.
    async fn accepts(&self, name: &str, spec: Value, defaults: &Value) -> anyhow::Result<()> {
        let mut expected = spec.clone();
        merge(&mut expected, defaults);
        let created = self.create(name, spec).await.with_context(|| format!("{name} was refused"))?;
        ensure!(created.data.get("spec") == Some(&expected), "{name}: {} instead of {expected}", created.data);
        Ok(())
    }

    /// Asserts that the server rejects the spec with this text.
    async fn refuses(&self, name: &str, spec: Value, words: &str) -> anyhow::Result<()> {
        let error = self.create(name, spec).await.err().with_context(|| format!("{name} was accepted"))?;
        let kube::Error::Api(status) = error else { return Err(error.into()) };
        ensure!(status.is_invalid() && status.message.contains(words), "{name}: {status:?}");
        Ok(())
    }

    /// Changes the spec with a merge patch.
    async fn change(&self, name: &str, spec: Value) -> kube::Result<DynamicObject> {
        self.api.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "spec": spec }))).await
    }

    /// Asserts that the server rejects each of the changes with this text.
    async fn keeps(&self, name: &str, changes: &[(Value, &str)]) -> anyhow::Result<()> {
        for (change, words) in changes {
            let error =
                self.change(name, change.clone()).await.err().with_context(|| format!("{change} was accepted"))?;
            let kube::Error::Api(status) = error else { return Err(error.into()) };
            ensure!(status.is_invalid() && status.message.contains(words), "{change}: {status:?}");
        }
        Ok(())
    }

    /// Scales like `kubectl scale`, and checks the scale status.
    async fn scales(&self, name: &str, status: Value) -> anyhow::Result<()> {
        let manager = PatchParams::default();
        self.api.patch_status(name, &manager, &Patch::Merge(json!({ "status": status }))).await?;
        let scale = self.api.get_scale(name).await?;
        let said = scale.status.context("the scale has no status")?;
        ensure!((said.replicas, said.selector.as_deref()) == (2, Some("app.kubernetes.io/instance=it")), "{said:?}");
        ensure!(scale.spec.and_then(|spec| spec.replicas) == Some(1));

        let scale = self.api.patch_scale(name, &manager, &Patch::Merge(json!({"spec": {"replicas": 3}}))).await?;
        ensure!(scale.spec.and_then(|spec| spec.replicas) == Some(3));
        let object = self.api.get(name).await?;
        ensure!(object.data.pointer("/spec/replicas") == Some(&json!(3)), "{}", object.data);
        ensure!(object.metadata.generation == Some(2), "a status update must not change the generation");
        Ok(())
    }

    async fn finish(self) -> anyhow::Result<()> {
        self.api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        self.namespace.delete().await
    }
}

/// Adds the fields of `more` that are missing, at any depth.
fn merge(value: &mut Value, more: &Value) {
    let (Some(fields), Some(more)) = (value.as_object_mut(), more.as_object()) else { return };
    for (name, field) in more {
        merge(fields.entry(name.clone()).or_insert_with(|| field.clone()), field);
    }
}

fn keys() -> Value {
    json!({"slurmKeyRef": {"name": "auth", "key": "slurm.key"}, "jwtKeyRef": {"name": "auth", "key": "jwt.key"}})
}

fn plus(mut spec: Value, more: &Value) -> Value {
    merge(&mut spec, more);
    spec
}

#[tokio::test]
async fn a_controller_gets_its_defaults() -> anyhow::Result<()> {
    let controllers = Objects::start::<Controller>("controller-defaults").await?;
    let defaults = json!({"external": false, "generateKeys": false, "inplaceReconfigure": false});

    controllers.accepts("plain", keys(), &defaults).await?;
    let inner =
        json!({"ha": {}, "persistence": {"resources": {"requests": {"storage": 4_294_967_296_i64}}}, "metrics": {}});
    let filled = json!({
        "ha": {"enabled": false, "backups": 1}, "persistence": {"enabled": true}, "metrics": {"enabled": false},
    });
    controllers.accepts("inner", plus(keys(), &inner), &plus(defaults.clone(), &filled)).await?;
    // The Go operator's chart writes null for lists without entries.
    let nulls = json!({
        "configFileRefs": null, "prologScriptRefs": null, "epilogScriptRefs": null,
        "prologSlurmctldScriptRefs": null, "epilogSlurmctldScriptRefs": null,
        "template": {"metadata": {"labels": null, "annotations": null}},
        "metrics": {"enabled": true, "serviceMonitor": null},
    });
    controllers.accepts("nulls", plus(keys(), &nulls), &defaults).await?;
    // For other fields a null is dropped.
    let dropped = controllers.create("dropped", plus(keys(), &json!({"slurmctld": null, "ha": null}))).await?;
    assert_eq!(dropped.data["spec"], plus(keys(), &defaults));
    let place = json!({"external": true, "externalConfig": {"host": "head.example.com", "port": 6817}});
    controllers.accepts("external", place, &defaults).await?;

    // All of them can be deserialized.
    let names: Vec<String> = controllers
        .namespace
        .api::<Controller>()
        .list(&ListParams::default())
        .await?
        .items
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    assert_eq!(names, ["dropped", "external", "inner", "nulls", "plain"]);

    controllers.finish().await
}

#[tokio::test]
async fn a_controller_that_cannot_work_is_refused() -> anyhow::Result<()> {
    let controllers = Objects::start::<Controller>("controller-rules").await?;
    let with = |more: Value| plus(keys(), &more);

    controllers.refuses("empty", json!({}), "slurmKeyRef is required").await?;
    controllers.refuses("keyless", json!({"slurmKeyRef": {"key": "k"}}), "jwtKeyRef is required").await?;
    controllers.refuses("nowhere", json!({"external": true}), "externalConfig is required").await?;
    let port = json!({"external": true, "externalConfig": {"host": "head"}});
    controllers.refuses("portless", port, "spec.externalConfig.port").await?;
    controllers.refuses("alone", with(json!({"ha": {"enabled": true}})), "persistence.existingClaim").await?;
    controllers.refuses("few", with(json!({"ha": {"backups": 0}})), "spec.ha.backups").await?;

    let api = |value: Value| with(json!({ "externalRestApi": value }));
    controllers.refuses("scheme", api(json!({"url": "ftp://head"})), "spec.externalRestApi.url").await?;
    controllers.refuses("user", api(json!({"url": "https://me:secret@head"})), "spec.externalRestApi.url").await?;
    let plain = json!({"url": "http://head", "ca": {"secretKeyRef": {"key": "ca.crt"}}});
    controllers.refuses("plain", api(plain), "ca is for https only").await?;
    controllers.refuses("no-ca", api(json!({"url": "https://head", "ca": {}})), "exactly one of").await?;
    let interval = json!({"metrics": {"serviceMonitor": {"interval": "often"}}});
    controllers.refuses("often", with(interval), "spec.metrics.serviceMonitor.interval").await?;

    controllers.finish().await
}

#[tokio::test]
async fn what_a_running_cluster_depends_on_is_immutable() -> anyhow::Result<()> {
    let controllers = Objects::start::<Controller>("controller-fixed").await?;
    controllers.create("bare", keys()).await?;
    let claim = "existingClaim is immutable";
    controllers
        .keeps(
            "bare",
            &[
                (json!({"clusterName": "other"}), "clusterName is immutable"),
                (json!({"persistence": {"enabled": false}}), "persistence.enabled is immutable"),
                (json!({"persistence": {"existingClaim": "other"}}), claim),
                (json!({"slurmKeyRef": {"name": "other"}}), "slurmKeyRef is immutable"),
                (json!({"jwtKeyRef": {"name": "other"}}), "jwtKeyRef"),
                (json!({"jwtKeyRef": {"key": "other.key"}}), "jwtKeyRef"),
            ],
        )
        .await?;
    // Absent, null and empty are one, and so is a value that is the default.
    for same in [
        json!({"clusterName": ""}),
        json!({"clusterName": null}),
        json!({"persistence": {}}),
        json!({"persistence": {"existingClaim": ""}}),
        json!({"persistence": null}),
        json!({"extraConf": "MaxJobCount=7"}),
    ] {
        controllers.change("bare", same.clone()).await.with_context(|| format!("{same} was refused"))?;
    }
    let more = json!({"clusterName": "lab", "persistence": {"existingClaim": "state"}});
    let mut old = plus(keys(), &more);
    old["jwtHs256KeyRef"] = old["jwtKeyRef"].take();
    if let Some(spec) = old.as_object_mut() {
        spec.remove("jwtKeyRef");
    }
    controllers.create("full", old).await?;
    let removed = json!({"clusterName": null});
    let changes = [
        (removed, "clusterName"),
        (json!({"persistence": null}), claim),
        (json!({"slurmKeyRef": null}), "slurmKeyRef"),
    ];
    controllers.keeps("full", &changes).await?;
    let jwt = json!({"jwtHs256KeyRef": null, "jwtKeyRef": {"name": "auth", "key": "jwt.key"}});
    controllers.change("full", jwt).await.context("the deprecated name of the key could not be replaced")?;
    let external = json!({"external": true, "externalConfig": {"host": "head.example.com", "port": 6817}});
    controllers.create("external", external).await?;
    controllers.change("external", keys()).await.context("the keys of an external cluster could not be added")?;
    let evil = json!({"external": true, "externalConfig": {"host": "a`touch${IFS}/tmp/x`", "port": 1}});
    controllers.refuses("evil", evil, "spec.externalConfig.host").await?;
    controllers.create(&"n".repeat(41), keys()).await?;
    controllers.refuses(&"n".repeat(42), keys(), "41 characters").await?;
    controllers.finish().await?;

    let accountings = Objects::start::<Accounting>("accounting-fixed").await?;
    accountings.create("bare", keys()).await?;
    accountings.keeps("bare", &[(json!({"jwtKeyRef": {"name": "other"}}), "jwtKeyRef")]).await?;
    accountings.change("bare", json!({"extraConf": "DebugLevel=debug"})).await?;
    accountings.create(&"n".repeat(41), keys()).await?;
    accountings.refuses(&"n".repeat(42), keys(), "41 characters").await?;
    accountings.finish().await?;

    let sets = Objects::start::<NodeSet>("nodeset-fixed").await?;
    let claims = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    sets.create("bare", json!({"controllerRef": {"name": "slurm"}})).await?;
    let fixed = "volumeClaimTemplates are immutable";
    let changes = [
        (json!({"controllerRef": {"name": "b"}}), "controllerRef is immutable"),
        (json!({"volumeClaimTemplates": claims}), fixed),
    ];
    sets.keeps("bare", &changes).await?;
    for same in [json!({"volumeClaimTemplates": []}), json!({"volumeClaimTemplates": null}), json!({"replicas": 3})] {
        sets.change("bare", same.clone()).await.with_context(|| format!("{same} was refused"))?;
    }
    sets.create("full", json!({"controllerRef": {"name": "slurm"}, "volumeClaimTemplates": claims})).await?;
    let modes = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteMany"]}}]);
    sets.keeps(
        "full",
        &[(json!({"volumeClaimTemplates": modes}), fixed), (json!({"volumeClaimTemplates": null}), fixed)],
    )
    .await?;
    sets.change("full", json!({"replicas": 5, "volumeClaimTemplates": claims})).await?;
    sets.refuses(&"n".repeat(58), json!({"controllerRef": {"name": "slurm"}}), "57 characters").await?;
    sets.finish().await
}

#[tokio::test]
async fn a_node_set_gets_its_defaults_and_keeps_its_templates() -> anyhow::Result<()> {
    let node_sets = Objects::start::<NodeSet>("nodeset-defaults").await?;
    let defaults = json!({
        "replicas": 1, "scalingMode": "StatefulSet", "revisionHistoryLimit": 0, "ordinalPadding": 0, "pinToNode": false,
        "workloadDisruptionProtection": true, "pruneSlurmNodeRecords": "Never", "oversubscribeNode": false,
    });
    let minimal = json!({"controllerRef": {"name": "alps"}});
    node_sets.accepts("plain", minimal.clone(), &defaults).await?;

    let inner = json!({
        "updateStrategy": {"rollingUpdate": {}, "scheduledUpdate": {"flags": null}},
        "persistentVolumeClaimRetentionPolicy": {}, "partition": {}, "drain": {}, "volumeClaimTemplates": null,
        "ssh": {"sssdConfRef": {"key": "sssd.conf"}},
    });
    let filled = json!({
        "updateStrategy": {
            "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"}, "scheduledUpdate": {"duration": "30m"},
        },
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "partition": {"enabled": false}, "drain": {"onTimeout": "Wait", "onDelete": false},
        "ssh": {"enabled": false, "sssdConfRef": {"name": ""}},
    });
    node_sets.accepts("inner", plus(minimal.clone(), &inner), &plus(defaults.clone(), &filled)).await?;

    // Nothing in them is added, dropped or changed.
    let opaque = json!({
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 2}},
        "slurmd": {
            "image": "registry.example.com/slurmd:25.11", "securityContext": {"privileged": false}, "args": [],
            "resources": {"limits": {"cpu": 64, "nvidia.com/gpu": "8"}}, "fieldFromTheFuture": {"share": 1.5, "empty": ""},
        },
        "template": {"spec": {
            "hostname": "gpu-", "terminationGracePeriodSeconds": 0, "containers": [{"name": "x", "stdin": false}],
            "volumes": [{"name": "shm", "emptyDir": {}}], "fieldFromTheFuture": [[], {}, 0, "x"],
        }},
        "volumeClaimTemplates": [{"metadata": {"name": "scratch"}, "spec": {"resources": {"requests": {"storage": 1024}}}}],
    });
    node_sets.accepts("opaque", plus(minimal, &opaque), &defaults).await?;

    let typed = node_sets.namespace.api::<NodeSet>().get("opaque").await?;
    let back = serde_json::to_value(&typed.spec)?;
    for field in ["slurmd", "template", "volumeClaimTemplates"] {
        assert_eq!(back[field], opaque[field], "{field}");
    }

    node_sets.finish().await
}

#[tokio::test]
async fn a_node_set_that_cannot_work_is_refused() -> anyhow::Result<()> {
    let node_sets = Objects::start::<NodeSet>("nodeset-rules").await?;
    let with = |more: Value| plus(json!({"controllerRef": {"name": "alps"}}), &more);

    node_sets.refuses("no-ref", json!({}), "spec.controllerRef").await?;
    node_sets.refuses("mode", with(json!({"scalingMode": "Deployment"})), "spec.scalingMode").await?;
    node_sets.refuses("negative", with(json!({"replicas": -1})), "spec.replicas").await?;
    node_sets
        .refuses("newline", with(json!({"partition": {"config": "State=UP\nx"}})), "spec.partition.config")
        .await?;
    node_sets.refuses("no-sssd", with(json!({"ssh": {"enabled": true}})), "spec.ssh.sssdConfRef").await?;
    let update = |value: Value| with(json!({ "updateStrategy": value }));
    let words = "scheduledUpdate.startTime and scheduledUpdate.duration are required";
    node_sets.refuses("unscheduled", update(json!({"type": "ScheduledUpdate"})), words).await?;
    node_sets.refuses("no-start", update(json!({"type": "ScheduledUpdate", "scheduledUpdate": {}})), words).await?;
    let start = json!({"scheduledUpdate": {"startTime": "tomorrow"}});
    node_sets.refuses("bad-start", update(start), "spec.updateStrategy.scheduledUpdate.startTime").await?;
    node_sets.refuses("share", update(json!({"rollingUpdate": {"maxUnavailable": true}})), "maxUnavailable").await?;
    let many = json!({"rollingUpdate": {"maxUnavailable": 3_000_000_000_u64}});
    node_sets.refuses("many", update(many), "maxUnavailable").await?;
    node_sets.create("hold", update(json!({"rollingUpdate": {"maxUnavailable": 0}}))).await?;
    node_sets.refuses("no-time", with(json!({"drain": {"onTimeout": "Kill"}})), "timeout is required").await?;
    node_sets.refuses("policy", with(json!({"drain": {"onTimeout": "Panic"}})), "spec.drain.onTimeout").await?;

    node_sets.finish().await
}

#[tokio::test]
async fn workers_and_login_nodes_scale() -> anyhow::Result<()> {
    let node_sets = Objects::start::<NodeSet>("nodeset-scale").await?;
    node_sets.create("it", json!({"controllerRef": {"name": "alps"}})).await?;
    let selector = "app.kubernetes.io/instance=it";
    node_sets.scales("it", json!({"replicas": 2, "selector": selector, "nodeSetHash": "5f6d"})).await?;
    node_sets.finish().await?;

    let login_sets = Objects::start::<LoginSet>("loginset-scale").await?;
    let sssd = json!({"name": "sssd", "key": "sssd.conf"});
    login_sets.create("it", json!({"controllerRef": {"name": "alps"}, "sssdConfRef": sssd})).await?;
    login_sets.scales("it", json!({"replicas": 2, "selector": selector})).await?;
    login_sets.refuses("no-sssd", json!({"controllerRef": {"name": "alps"}}), "spec.sssdConfRef").await?;
    let spec = json!({"controllerRef": {"name": "alps"}, "sssdConfRef": {"name": "sssd", "key": "sssd.conf"}});
    login_sets.create(&"a".repeat(63), spec.clone()).await?;
    for name in [&*"a".repeat(64), "1st", "a.b"] {
        login_sets.refuses(name, spec.clone(), "the name is also that of a Service").await?;
    }
    login_sets.finish().await
}

#[tokio::test]
async fn accounting_and_rest_api_get_their_defaults() -> anyhow::Result<()> {
    let accountings = Objects::start::<Accounting>("accounting-defaults").await?;
    let storage =
        json!({"storageConfig": {"host": "mariadb", "passwordKeyRef": {"name": "mariadb", "key": "password"}}});
    let defaults = json!({"external": false, "storageConfig": {"port": 3306, "database": "slurm_acct_db"}});
    accountings.accepts("plain", plus(keys(), &storage), &defaults).await?;
    accountings.refuses("empty", storage, "slurmKeyRef is required").await?;
    accountings.refuses("nowhere", json!({"external": true}), "externalConfig is required").await?;
    let no_password = plus(keys(), &json!({"storageConfig": {"host": "mariadb"}}));
    accountings.refuses("no-password", no_password, "spec.storageConfig.passwordKeyRef").await?;
    accountings.finish().await?;

    let rest_apis = Objects::start::<RestApi>("restapi-defaults").await?;
    rest_apis.accepts("plain", json!({"controllerRef": {"name": "alps"}}), &json!({"replicas": 1})).await?;
    rest_apis.refuses("no-ref", json!({"replicas": 1}), "spec.controllerRef").await?;
    let port = json!({"controllerRef": {}, "service": {"port": 70_000}});
    rest_apis.refuses("port", port, "spec.service.port").await?;
    let spec = json!({"controllerRef": {"name": "alps"}, "slurmrestd": {"image": "slurmrestd:26.05"}});
    rest_apis.create(&"a".repeat(55), spec.clone()).await?;
    for name in [&*"a".repeat(56), "1st", "a.b"] {
        rest_apis.refuses(name, spec.clone(), "part of the name of a Service").await?;
    }
    rest_apis.finish().await
}

/// A copy of a CRD in a group of its own, as parallel tests use the real one, with or without its rules.
fn copy_of(mut crd: Value, has_rules: bool) -> anyhow::Result<CustomResourceDefinition> {
    crd["spec"]["group"] = json!(OLDER);
    crd["metadata"]["name"] =
        json!(format!("{}.{OLDER}", crd["spec"]["names"]["plural"].as_str().context("no plural")?));
    crd["spec"]["names"]["shortNames"] = json!([]);
    if !has_rules {
        strip(&mut crd["spec"]["versions"]);
    }
    Ok(serde_json::from_value(crd)?)
}

const OLDER: &str = "older.example.com";

fn crd_of(kind: &str) -> anyhow::Result<CustomResourceDefinition> {
    crds().into_iter().find(|crd| crd.spec.names.kind == kind).with_context(|| format!("no CRD of {kind}"))
}

/// Removes what refuses values.
fn strip(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for rule in ["x-kubernetes-validations", "maximum", "minimum", "pattern"] {
                // A property may have such a name.
                if !fields.get(rule).is_some_and(Value::is_object) {
                    fields.remove(rule);
                }
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(all) => all.iter_mut().for_each(strip),
        _ => {}
    }
}

#[tokio::test]
async fn objects_that_are_older_than_a_rule_can_be_scaled_reported_and_deleted() -> anyhow::Result<()> {
    let client = client().await?;
    let namespace = TestNamespace::create(&client, "older-than-rules").await?;
    let controllers = (
        json!(crd_of("Controller")?),
        ApiResource::erase::<Controller>(&()),
        keys(),
        json!({"extraConf": "MaxJobCount=7"}),
        json!({"slurmVersion": "26.05.3"}),
    );
    let sets = (
        json!(crd_of("NodeSet")?),
        ApiResource::erase::<NodeSet>(&()),
        json!({
            "controllerRef": {"name": "alps"},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 3_000_000_000_u64}},
        }),
        json!({"replicas": 3}),
        json!({"nodeSetHash": "5f6d", "selector": "a=b", "replicas": 2}),
    );
    for (crd, resource, spec, change, status) in [controllers, sets] {
        establish(&client, &[copy_of(crd.clone(), false)?]).await?;
        let resource =
            ApiResource { group: OLDER.to_owned(), api_version: format!("{OLDER}/{}", resource.version), ..resource };
        let api: Api<DynamicObject> = namespace.dynamic_api(&resource);
        // Longer than a new one may be.
        let name = "n".repeat(60);
        let object = DynamicObject::new(&name, &resource).data(json!({ "spec": spec }));
        api.create(&PostParams::default(), &object).await.context("an object of an earlier release")?;

        establish(&client, &[copy_of(crd, true)?]).await?;
        let long = DynamicObject::new(&"m".repeat(60), &resource).data(json!({ "spec": spec }));
        // The API server takes up the rules a moment later.
        wait_for("new objects to be refused", Duration::from_secs(30), async || {
            let made = api.create(&PostParams::default(), &long).await;
            if made.is_ok() {
                api.delete(&long.name_any(), &DeleteParams::default()).await?;
            }
            ensure!(made.is_err(), "a new {} with a long name was accepted", resource.kind);
            Ok(())
        })
        .await?;
        let params = PatchParams::default();
        let changed = api.patch(&name, &params, &Patch::Merge(json!({ "spec": change }))).await.context("change")?;
        for (field, value) in change.as_object().context("an object")? {
            assert_eq!(&changed.data["spec"][field], value);
        }
        let reported = api.patch_status(&name, &params, &Patch::Merge(json!({ "status": status }))).await;
        let reported = reported.context("status")?;
        for (field, value) in status.as_object().context("an object")? {
            assert_eq!(&reported.data["status"][field], value);
        }
        api.delete(&name, &DeleteParams::default()).await.context("deletion")?;
        wait_for("the object to be gone", Duration::from_secs(30), async || {
            ensure!(api.get_opt(&name).await?.is_none(), "it is still there");
            Ok(())
        })
        .await?;
    }
    namespace.delete().await
}
