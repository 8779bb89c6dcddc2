//! Tokens on a real API server, with the operator's reconcile loop.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
    runtime::events::{Recorder, Reporter},
};
use serde_json::json;
use slurm::token::{Claims, Key, verify};
use slurm_operator::{
    frontends,
    health::{Readiness, Waiting},
    kube_view::{KubeView, watches},
    lease::Election,
    machine::{KubeEffects, Machine, run},
    metrics::Metrics,
    slurm_view::Views,
    sources::Sources,
    trigger,
};
use slurm_operator_api::{crds, slinky::Token};
use testkit::{
    api_server::{TestNamespace, client, establish},
    wait_for,
};
use tokio::task::JoinHandle;

const SOON: Duration = Duration::from_secs(30);

/// A namespace with an operator that reconciles its Tokens.
struct Scene {
    namespace: TestNamespace,
    metrics: Metrics,
    operator: JoinHandle<()>,
}

impl Scene {
    async fn start(test: &str) -> Result<Self> {
        let client = client().await?;
        establish(&client, &crds()).await?;
        let namespace = TestNamespace::create(&client, test).await?;
        let metrics = Metrics::default();
        let operator = tokio::spawn(operate(client, namespace.name().to_owned(), metrics.clone()));
        Ok(Self { namespace, metrics, operator })
    }

    async fn finish(self) -> Result<()> {
        self.operator.abort();
        self.namespace.delete().await
    }

    fn secrets(&self) -> Api<Secret> {
        self.namespace.api()
    }

    async fn put_key(&self, seed: u8) -> Result<Key> {
        let secret = Secret {
            metadata: ObjectMeta { name: Some("keys".into()), ..ObjectMeta::default() },
            data: Some([("jwt.key".to_owned(), ByteString(vec![seed; 32]))].into()),
            ..Secret::default()
        };
        let secrets = self.secrets();
        if secrets.get_opt("keys").await?.is_some() {
            secrets.delete("keys", &DeleteParams::default()).await?;
        }
        secrets.create(&PostParams::default(), &secret).await?;
        Ok(Key::new(&[seed; 32])?)
    }

    /// A Secret that a user makes.
    async fn put_secret(&self, name: &str, entry: &str, text: &str) -> Result<Secret> {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
            data: Some([(entry.to_owned(), ByteString(text.into()))].into()),
            ..Secret::default()
        };
        Ok(self.secrets().create(&PostParams::default(), &secret).await?)
    }

    async fn put_token(&self, name: &str, spec: serde_json::Value) -> Result<Token> {
        let mut full = json!({"username": "alice", "jwtKeyRef": {"name": "keys", "key": "jwt.key"}});
        full.as_object_mut().context("an object")?.extend(spec.as_object().context("an object")?.clone());
        let token = json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token", "metadata": {"name": name}, "spec": full,
        });
        let params = PatchParams::apply("test").force();
        Ok(self.namespace.api::<Token>().patch(name, &params, &Patch::Apply(&token)).await?)
    }

    /// Waits until a Secret contains a valid token other than the one with this ID.
    async fn good(&self, secret: &str, key: &Key, other_than: Option<&str>) -> Result<Claims> {
        wait_for(&format!("a good token in {secret}"), SOON, async || {
            let found = self.secrets().get(secret).await?;
            let data = found.data.unwrap_or_default();
            let text = data.get("SLURM_JWT").context("no entry")?;
            let claims = verify(key, std::str::from_utf8(&text.0)?, Timestamp::now())?;
            ensure!(Some(&*claims.id) != other_than, "still the old one");
            Ok(claims)
        })
        .await
    }

    /// Waits until the Ready condition has this reason; returns its message.
    async fn ready(&self, name: &str, status: &str, reason: &str) -> Result<String> {
        wait_for(&format!("{name} to be ready: {status}, {reason}"), SOON, async || {
            let token = self.namespace.api::<Token>().get(name).await?;
            let conditions = token.status.map(|status| status.conditions).unwrap_or_default();
            let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").context("no condition")?;
            ensure!(ready.status == status && ready.reason == reason, "{ready:?}");
            ensure!(ready.observed_generation == token.metadata.generation, "an old generation");
            Ok(ready.message)
        })
        .await
    }
}

async fn operate(client: Client, namespace: String, metrics: Metrics) {
    let election = Election::new(true);
    let reporter = Reporter { controller: "slurm-operator".into(), instance: None };
    let slurm = Views::new(trigger::channel(), metrics.clone());
    let kube = KubeView::new(client.clone(), frontends::vocabularies());
    let triggers = slurm.triggers();
    let sources = Sources::new(kube.clone(), slurm.clone(), &[]);
    let readiness = Readiness::default();
    let machine = Arc::new(Machine {
        effects: KubeEffects::new(client.clone(), Recorder::new(client.clone(), reporter), slurm),
        sources,
        leadership: election.leadership(),
        metrics: metrics.clone(),
        readiness: readiness.clone(),
        waiting: Waiting::default(),
        now: Timestamp::now,
    });
    let tokens = Api::namespaced(client, &namespace);
    let scopes = [Some(namespace)];
    tokio::join!(
        run::<Token, _>(machine, tokens, 4, std::future::pending()),
        watches::watch(kube, triggers, metrics, Waiting::default(), &scopes, &[], readiness)
    );
}

#[tokio::test]
async fn a_token_stays_valid_when_its_secret_or_key_change() -> Result<()> {
    let scene = Scene::start("token-life").await?;
    let key = scene.put_key(1).await?;
    let token = scene.put_token("t", json!({})).await?;
    let first = scene.good("t-jwt-alice", &key, None).await?;
    assert_eq!((&*first.user, &*first.issuer), ("alice", "slurm-operator"));
    scene.ready("t", "True", "Issued").await?;
    let secret = scene.secrets().get("t-jwt-alice").await?;
    assert_eq!(secret.owner_references()[0].uid, token.uid().context("a uid")?);

    // It is deleted.
    scene.secrets().delete("t-jwt-alice", &DeleteParams::default()).await?;
    let second = scene.good("t-jwt-alice", &key, Some(&first.id)).await?;

    // It is edited.
    let rubbish = Patch::Merge(json!({"stringData": {"SLURM_JWT": "rubbish"}}));
    scene.secrets().patch("t-jwt-alice", &PatchParams::default(), &rubbish).await?;
    let third = scene.good("t-jwt-alice", &key, Some(&second.id)).await?;

    // The key is rotated.
    let key = scene.put_key(2).await?;
    scene.good("t-jwt-alice", &key, Some(&third.id)).await?;
    scene.ready("t", "True", "Issued").await?;

    // Another user: a new Secret is created and the old one deleted.
    scene.put_token("t", json!({"username": "bob"})).await?;
    assert_eq!(scene.good("t-jwt-bob", &key, None).await?.user, "bob");
    wait_for("the end of the old Secret", SOON, async || {
        ensure!(scene.secrets().get_opt("t-jwt-alice").await?.is_none(), "it is still there");
        Ok(())
    })
    .await?;
    scene.finish().await
}

#[tokio::test]
async fn problems_show_in_the_condition_and_resolve_automatically() -> Result<()> {
    let scene = Scene::start("token-trouble").await?;
    scene.put_token("t", json!({})).await?;
    let message = scene.ready("t", "False", "ReferenceMissing").await?;
    assert!(message.contains("the Secret keys"), "{message}");
    let key = scene.put_key(3).await?;
    scene.good("t-jwt-alice", &key, None).await?;
    scene.ready("t", "True", "Issued").await?;

    let taken = scene.put_secret("mine", "SLURM_JWT", "theirs").await?;
    scene.put_token("other", json!({"secretRef": {"name": "mine", "key": "SLURM_JWT"}})).await?;
    scene.ready("other", "False", "SecretTaken").await?;
    assert_eq!(scene.secrets().get("mine").await?.data, taken.data, "what others have written is not changed");
    scene.secrets().delete("mine", &DeleteParams::default()).await?;
    scene.good("mine", &key, None).await?;
    scene.ready("other", "True", "Issued").await?;
    scene.finish().await
}

#[tokio::test]
async fn tokens_share_a_secret_of_the_user() -> Result<()> {
    let scene = Scene::start("token-shared").await?;
    scene.put_key(8).await?;
    scene.put_secret("mine", "foo", "bar").await?;
    for name in ["a", "b"] {
        scene.put_token(name, json!({"secretRef": {"name": "mine", "key": name}})).await?;
        scene.ready(name, "True", "Issued").await?;
    }
    let entries = async || -> Result<Vec<String>> {
        let secret = scene.secrets().get("mine").await?;
        ensure!(secret.metadata.owner_references.is_none(), "it is owned: {:?}", secret.metadata);
        Ok(secret.data.into_iter().flatten().map(|(key, _)| key).collect())
    };
    assert_eq!(entries().await?, ["a", "b", "foo"]);
    // It is written again, and the entries of others stay.
    let before = scene.secrets().get("mine").await?;
    scene.put_token("a", json!({"secretRef": {"name": "mine", "key": "a"}, "lifetime": "2h"})).await?;
    wait_for("another token", SOON, async || {
        let now = scene.secrets().get("mine").await?;
        let of = |secret: &Secret, key: &str| secret.data.as_ref().and_then(|data| data.get(key).cloned());
        ensure!(of(&now, "a") != of(&before, "a"), "it is still the old one");
        ensure!(of(&now, "b") == of(&before, "b") && of(&now, "foo") == of(&before, "foo"), "others have changed");
        Ok(())
    })
    .await?;
    assert_eq!(entries().await?, ["a", "b", "foo"]);
    scene.finish().await
}

#[tokio::test]
async fn without_refresh_the_secret_is_immutable_and_turning_it_on_replaces_it() -> Result<()> {
    let scene = Scene::start("token-immutable").await?;
    let key = scene.put_key(4).await?;
    scene.put_token("t", json!({"refresh": false})).await?;
    let first = scene.good("t-jwt-alice", &key, None).await?;
    assert_eq!(scene.secrets().get("t-jwt-alice").await?.immutable, Some(true));
    let key = scene.put_key(5).await?;
    let message = scene.ready("t", "False", "TokenUnusable").await?;
    assert!(message.contains("delete the Secret t-jwt-alice"), "{message}");
    scene.put_token("t", json!({"refresh": true})).await?;
    scene.good("t-jwt-alice", &key, Some(&first.id)).await?;
    assert_eq!(scene.secrets().get("t-jwt-alice").await?.immutable, None);
    scene.ready("t", "True", "Issued").await?;
    scene.finish().await
}

#[tokio::test]
async fn a_secret_of_the_go_operator_changes_its_owner() -> Result<()> {
    let scene = Scene::start("token-adopt").await?;
    let key = scene.put_key(6).await?;
    let owner = scene.secrets().get("keys").await?;
    let left = Secret {
        metadata: ObjectMeta {
            name: Some("t-jwt-alice".into()),
            owner_references: Some(vec![serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Secret", "name": "keys", "uid": owner.uid(), "controller": true,
            }))?]),
            ..ObjectMeta::default()
        },
        data: Some([("SLURM_JWT".to_owned(), ByteString(b"old".to_vec()))].into()),
        ..Secret::default()
    };
    scene.secrets().create(&PostParams::default(), &left).await?;
    let token = scene.put_token("t", json!({})).await?;
    scene.good("t-jwt-alice", &key, None).await?;
    let owners = scene.secrets().get("t-jwt-alice").await?.owner_references().to_vec();
    assert_eq!(owners.len(), 1, "{owners:?}");
    assert_eq!(owners[0].uid, token.uid().context("a uid")?);
    scene.finish().await
}

#[tokio::test]
async fn a_token_is_issued_once_without_failures() -> Result<()> {
    let scene = Scene::start("token-quiet").await?;
    let key = scene.put_key(7).await?;
    scene.put_token("t", json!({})).await?;
    scene.good("t-jwt-alice", &key, None).await?;
    scene.ready("t", "True", "Issued").await?;
    let text = scene.metrics.text();
    assert!(text.contains("slurm_operator_steps_total{kind=\"token\",step=\"mint\"} 1"), "{text}");
    assert!(!text.contains("slurm_operator_failures_total{"), "{text}");
    scene.finish().await
}
