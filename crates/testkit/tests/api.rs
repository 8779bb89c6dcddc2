//! Our kinds on a real API server. The definitions stay there; everything else goes.

use anyhow::{Context, ensure};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use serde_json::{Value, json};
use slurm_operator_api::{Token, crds};
use testkit::api_server::{TestNamespace, apply, client, establish};

/// Objects are written as JSON: the typed ones would fill in defaults before the server does.
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

    /// What the server says when it refuses a spec.
    async fn refusal(&self, name: &str, spec: Value) -> anyhow::Result<String> {
        let error = self.apply(name, spec).await.err().with_context(|| format!("{name} was accepted"))?;
        let kube::Error::Api(status) = error else { return Err(error.into()) };
        ensure!(status.is_invalid(), "{status:?}");
        Ok(status.message)
    }

    /// An API server without the controllers of Kubernetes does not empty a namespace: the test does.
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

/// What kubectl asks for when it prints.
async fn table(tokens: &Tokens) -> anyhow::Result<Value> {
    let path = Token::url_path(&(), Some(tokens.namespace.name()));
    let mut request = Request::new(path).list(&ListParams::default())?;
    request.headers_mut().insert("accept", "application/json;as=Table;v=v1;g=meta.k8s.io".parse()?);
    Ok(tokens.client.request(request).await?)
}

fn names(columns: &Value) -> Vec<&str> {
    columns.as_array().into_iter().flatten().filter_map(|column| column["name"].as_str()).collect()
}
