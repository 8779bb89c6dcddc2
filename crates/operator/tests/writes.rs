//! Writes to a real API server.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use engine::plan::{Desired, FromTemplate, ObjectVersion};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, PersistentVolumeClaim},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
    core::ApiResource,
    runtime::events::{Recorder, Reporter},
};
use serde_json::{Value, json};
use slurm_operator::{
    machine::{Effects, KubeEffects},
    metrics::Metrics,
    slurm_view::Views,
    trigger,
};
use testkit::{
    api_server::{TestNamespace, client},
    wait_for,
};

/// Workers are created right after the finalizer. If the status was written in between, or another program added its own
/// finalizer, the set must get ours all the same, or deleting it would not wait for the jobs of its workers.
#[tokio::test]
async fn a_finalizer_is_added_to_an_object_that_has_changed_and_removed_from_one_that_has_not() -> Result<()> {
    let client = client().await?;
    let namespace = TestNamespace::create(&client, "finalizers").await?;
    let objects: Api<ConfigMap> = namespace.api();
    let slurm = Views::new(trigger::channel(), Metrics::default());
    let effects = KubeEffects::new(client.clone(), Recorder::new(client, Reporter::from("test")), slurm);
    let config = ConfigMap {
        metadata: ObjectMeta { name: Some("changes".into()), ..ObjectMeta::default() },
        ..ConfigMap::default()
    };
    let first = objects.create(&PostParams::default(), &config).await?;
    let observed = |object: &ConfigMap| ObjectVersion {
        resource: ApiResource::erase::<ConfigMap>(&()),
        namespace: Some(namespace.name().to_owned()),
        name: "changes".into(),
        uid: object.metadata.uid.clone().unwrap_or_default(),
        resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
    };
    let finalizers = async || anyhow::Ok(objects.get("changes").await?.metadata.finalizers.unwrap_or_default());

    for name in ["example.org/theirs", "example.org/drain", "example.org/reservation", "example.org/drain"] {
        effects
            .add_finalizer(&observed(&first), name)
            .await
            .map_err(|failure| anyhow::anyhow!("{}", failure.text()))?;
    }
    assert_eq!(finalizers().await?, ["example.org/theirs", "example.org/drain", "example.org/reservation"]);

    let others = ["example.org/theirs".to_owned(), "example.org/drain".to_owned()];
    let refused = effects.keep_finalizers(&observed(&first), &others).await;
    assert_eq!(refused.err().context("an old version is refused")?.class(), "Conflict");
    let now = objects.get("changes").await?;
    effects.keep_finalizers(&observed(&now), &[]).await.map_err(|failure| anyhow::anyhow!("{}", failure.text()))?;
    assert_eq!(finalizers().await?, [""; 0]);

    let mut gone = observed(&now);
    gone.uid = "11111111-2222-3333-4444-555555555555".into();
    let refused = effects.add_finalizer(&gone, "example.org/drain").await;
    // The API server takes it for a change of an immutable field.
    assert_eq!(refused.err().context("another object of the same name")?.class(), "Invalid");
    assert_eq!(finalizers().await?, [""; 0]);
    gone.name = "absent".into();
    assert!(effects.add_finalizer(&gone, "example.org/drain").await.is_err(), "nothing is created");
    assert!(objects.get_opt("absent").await?.is_none());
    namespace.delete().await
}

/// The Go operator has written `maxUnavailable`, which the API server does not accept beside our `minAvailable`.
#[tokio::test]
async fn an_object_of_the_go_operator_is_taken_over() -> Result<()> {
    let client = client().await?;
    let namespace = TestNamespace::create(&client, "takeover").await?;
    let slurm = Views::new(trigger::channel(), Metrics::default());
    let effects = KubeEffects::new(client.clone(), Recorder::new(client, Reporter::from("test")), slurm);
    let budgets: Api<PodDisruptionBudget> = namespace.api();
    let budget = |name: &str, owner: &str, spec: Value| -> Result<PodDisruptionBudget> {
        let owner = json!({"apiVersion": "v1", "kind": "NodeSet", "name": "gpu", "uid": owner});
        let metadata = json!({"name": name, "namespace": namespace.name(), "ownerReferences": [owner]});
        Ok(serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?)
    };
    let go_operator = PostParams { field_manager: Some("manager".into()), ..PostParams::default() };
    let protect = json!({"matchLabels": {"protect": "true"}});
    let wanted = json!({"minAvailable": i32::MAX, "selector": protect});
    let theirs = json!({"maxUnavailable": 0, "selector": protect});
    for (name, owner) in [("ours", "u-1"), ("foreign", "u-2")] {
        budgets.create(&go_operator, &budget(name, owner, theirs.clone())?).await?;
    }
    let apply = async |name: &str| {
        let live = budgets.get(name).await?;
        let desired = Desired::of(&budget(name, "u-1", wanted.clone())?).seeing(Some(&live));
        let result = effects.apply("slurm-operator/nodeset", &desired).await.map(drop);
        anyhow::Ok((desired.takeover.is_some(), result.map_err(|failure| failure.text())))
    };

    // The disruption controller writes the status at the same time; the operator tries again after such a conflict, too.
    wait_for("the takeover", Duration::from_secs(10), async || {
        let (is_taken, result) = apply("ours").await?;
        ensure!(is_taken && result.is_ok(), "{result:?}");
        Ok(())
    })
    .await?;
    let spec = budgets.get("ours").await?.spec.context("a budget has a spec")?;
    assert_eq!((spec.max_unavailable, spec.min_available), (None, Some(IntOrString::Int(i32::MAX))));
    assert_eq!(apply("ours").await?, (false, Ok(())), "it is ours now");
    let (is_taken, refused) = apply("foreign").await?;
    assert!(!is_taken && refused.is_err_and(|text| text.contains("cannot be both set")));
    namespace.delete().await
}

/// The Go operator probes by HTTP whatever the version. If an image tag does not say the version (a digest, `latest`), this operator
/// probes the port, and the API server refuses a probe with both.
#[tokio::test]
async fn probes_of_the_go_operator_are_replaced() -> Result<()> {
    let client = client().await?;
    let namespace = TestNamespace::create(&client, "probes").await?;
    let slurm = Views::new(trigger::channel(), Metrics::default());
    let effects = KubeEffects::new(client.clone(), Recorder::new(client, Reporter::from("test")), slurm);
    let sets: Api<StatefulSet> = namespace.api();
    let set = |handler: Value| -> Result<StatefulSet> {
        // A kind that does not exist: the garbage collector would delete what belongs to a Controller that does not.
        let owner = json!({"apiVersion": "v1", "kind": "Controller", "name": "lab", "uid": "u-1", "controller": true});
        let labels = json!({"app": "slurmctld"});
        let image =
            "registry.example/slurmctld@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let container = json!({
            "name": "slurmctld", "image": image, "readinessProbe": handler, "livenessProbe": handler,
            "ports": [{"name": "slurmctld", "containerPort": 6817}],
        });
        Ok(serde_json::from_value(json!({
            "metadata": {"name": "lab", "namespace": namespace.name(), "ownerReferences": [owner]},
            "spec": {
                "serviceName": "lab", "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        }))?)
    };
    let go_operator = PostParams { field_manager: Some("manager".into()), ..PostParams::default() };
    sets.create(&go_operator, &set(json!({"httpGet": {"path": "/readyz", "port": "slurmctld"}}))?).await?;
    // The controller of StatefulSets writes the status at the same time.
    wait_for("the takeover", Duration::from_secs(10), async || {
        let live = sets.get("lab").await?;
        let desired = Desired::of(&set(json!({"tcpSocket": {"port": "slurmctld"}}))?).seeing(Some(&live));
        let result = effects.apply("slurm-operator/controller", &desired).await.map(drop);
        result.map_err(|failure| anyhow::anyhow!(failure.text()))
    })
    .await?;
    let live = serde_json::to_value(sets.get("lab").await?)?;
    for probe in ["readinessProbe", "livenessProbe"] {
        let path = format!("/spec/template/spec/containers/0/{probe}");
        let probe = live.pointer(&path).context("no probe")?;
        ensure!(probe.get("httpGet").is_none() && probe.get("tcpSocket").is_some(), "{probe}");
    }
    namespace.delete().await
}

/// An admin may create the claim of a worker, for example for a volume with data.
#[tokio::test]
async fn a_claim_made_by_hand_is_used_and_another_object_is_not() -> Result<()> {
    let client = client().await?;
    let namespace = TestNamespace::create(&client, "claims").await?;
    let slurm = Views::new(trigger::channel(), Metrics::default());
    let effects = KubeEffects::new(client.clone(), Recorder::new(client, Reporter::from("test")), slurm);
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let by_hand = json!({"metadata": {"name": "data-gpu-0"}, "spec": spec});
    let claims: Api<PersistentVolumeClaim> = namespace.api();
    let there = claims.create(&PostParams::default(), &serde_json::from_value(by_hand)?).await?;
    // As above, for the garbage collector.
    let owner = json!({"apiVersion": "v1", "kind": "NodeSet", "name": "gpu", "uid": "u", "controller": true});
    let wanted = |resource: ApiResource, name: &str| FromTemplate {
        template: Arc::new(json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": {"namespace": namespace.name()}, "spec": spec,
        })),
        resource,
        overrides: json!({"metadata": {"name": name, "namespace": namespace.name(), "ownerReferences": [owner]}}),
        exclusive: None,
    };
    let claim = wanted(ApiResource::erase::<PersistentVolumeClaim>(&()), "data-gpu-0");
    let version = effects.create(&claim).await.map_err(|failure| anyhow::anyhow!("{}", failure.text()))?;
    assert_eq!(version, there.metadata.resource_version, "it is left as it is");
    let config: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "taken"}}))?;
    namespace.api::<ConfigMap>().create(&PostParams::default(), &config).await?;
    let config = wanted(ApiResource::erase::<ConfigMap>(&()), "taken");
    assert_eq!(effects.create(&config).await.err().context("it has another owner")?.class(), "NameTaken");
    namespace.delete().await
}
