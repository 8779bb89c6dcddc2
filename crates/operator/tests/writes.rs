//! Writes to a real API server.

use anyhow::{Context, Result};
use engine::plan::ObjectVersion;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
    core::ApiResource,
    runtime::events::{Recorder, Reporter},
};
use slurm_operator::{
    machine::{Effects, KubeEffects},
    metrics::Metrics,
    slurm_view::Views,
    trigger,
};
use testkit::api_server::{TestNamespace, client};

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
