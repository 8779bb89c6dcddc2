//! The paths that the API server calls, one per kind.

use std::{collections::BTreeSet, future::Future, time::Duration};

use axum::{
    Json, Router,
    body::Bytes,
    extract::DefaultBodyLimit,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use kube::{Api, Client};
use serde_json::Value;

use super::{
    binding,
    metrics::Metrics,
    review::{Answer, Request, Review},
    validate::{complete, decode, judge},
};
use crate::{
    frontends::{self, KindVisitor},
    machine::{Kind, Reference, Referenced},
};

/// A review has the new and the old object, and the API server accepts objects of 3 MiB.
const BODY_LIMIT: usize = 8 << 20;

/// Timeout for reading one object. What cannot be read is not checked: the operator looks at it, too.
const READ: Duration = Duration::from_secs(2);

/// What handlers need. Clones share it.
#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub metrics: Metrics,
}

/// All paths, as the Go operator has them.
pub fn router(context: Context) -> Router {
    let mut routes = Routes { router: Router::new(), context: context.clone() };
    frontends::visit(&mut routes);
    let bind = post(async move |body: Bytes| {
        answered(&context.clone(), "bindings", &body, async |request| binding::admit(&context.client, request).await)
            .await
    });
    routes.router.route(binding::PATH, bind).layer(DefaultBodyLimit::max(BODY_LIMIT))
}

struct Routes {
    router: Router,
    context: Context,
}

impl KindVisitor for Routes {
    fn kind<K: Kind>(&mut self) {
        let context = self.context.clone();
        let validate = post(async move |body: Bytes| {
            answered(&context.clone(), K::NAME, &body, async |request| admit::<K>(&context.client, request).await).await
        });
        self.router = std::mem::take(&mut self.router).route(&path::<K>(), validate);
    }
}

/// `/validate-slinky-slurm-net-v1beta1-nodeset`
pub fn path<K: Kind>() -> String {
    let group = K::group(&()).replace('.', "-");
    format!("/validate-{group}-{}-{}", K::version(&()), K::kind(&()).to_lowercase())
}

async fn answered<F>(context: &Context, name: &'static str, body: &[u8], admit: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Answer>,
{
    let review: Review = match serde_json::from_slice(body) {
        Ok(review) => review,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}\n")).into_response(),
    };
    let (version, uid) = (review.api_version, review.request.uid.clone());
    let answer = admit(review.request).await;
    context.metrics.count(name, answer.result());
    if !answer.errors.is_empty() {
        tracing::info!(kind = name, reason = answer.errors.join("; "), "refused");
    }
    Json::<Value>(answer.into_review(&version, &uid)).into_response()
}

async fn admit<K: Kind>(client: &Client, request: Request) -> Answer {
    let mut object: K = match decode(&request) {
        Ok(Some(object)) => object,
        Ok(None) => return Answer::default(),
        Err(answer) => return answer,
    };
    complete(object.meta_mut(), &request);
    let mut unread = Vec::new();
    let referenced = read(client, &request.namespace, object.references(), &mut unread).await;
    let mut answer = judge(&object, &request.old_object, &referenced);
    answer.warnings.extend(unread);
    answer
}

/// Reads what the object refers to.
async fn read(client: &Client, namespace: &str, references: Vec<Reference>, unread: &mut Vec<String>) -> Referenced {
    let mut found = Referenced::default();
    for reference in references {
        let read = async {
            match &reference {
                Reference::ConfigMap(name) => {
                    let map = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(name).await?;
                    found.config_maps.insert(name.clone(), map.map(file_names));
                }
                Reference::Claim(name) => {
                    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
                    if let Some(claim) = claims.get_opt(name).await? {
                        let modes = claim.spec.and_then(|spec| spec.access_modes).unwrap_or_default();
                        found.claims.insert(name.clone(), modes);
                    }
                }
            }
            Ok(())
        };
        let result: Result<kube::Result<()>, _> = tokio::time::timeout(READ, read).await;
        let problem = match result {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no response in time".to_owned(),
        };
        unread.push(format!("the {} could not be checked: {problem}", title(&reference)));
    }
    found
}

fn title(reference: &Reference) -> String {
    match reference {
        Reference::ConfigMap(name) => format!("ConfigMap {name}"),
        Reference::Claim(name) => format!("PersistentVolumeClaim {name}"),
    }
}

fn file_names(map: ConfigMap) -> BTreeSet<String> {
    let (text, binary) = (map.data.unwrap_or_default(), map.binary_data.unwrap_or_default());
    text.into_keys().chain(binary.into_keys()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::Request as HttpRequest;
    use serde_json::json;
    use slurm_operator_api::slinky::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token};

    use super::*;
    use crate::offline_plan;

    /// Calls a path of the webhook.
    async fn called(path: &str, body: &Value) -> kube::Result<Value> {
        let client = offline_plan::client(&Arc::new(Vec::new()));
        let hook = Client::new(router(Context { client, metrics: Metrics::default() }), "default");
        let request = HttpRequest::builder().method("POST").uri(path).body(body.to_string().into_bytes());
        hook.request(request.unwrap()).await
    }

    #[tokio::test]
    async fn anything_gets_an_answer() {
        let paths = [path::<Controller>(), path::<NodeSet>(), path::<Token>(), binding::PATH.to_owned()];
        let objects = [
            json!(null),
            json!(7),
            json!([]),
            json!({"metadata": {}}),
            json!({"metadata": {"name": "a"}, "spec": null}),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": 7}}),
            json!({"metadata": {"name": "a"}, "spec": {"controllerRef": {}, "template": {"spec": {"hostname": [1]}}}}),
        ];
        for path in &paths {
            for object in &objects {
                let request = json!({"uid": "7", "namespace": "ns", "object": object, "oldObject": null});
                let review = json!({"apiVersion": "admission.k8s.io/v1", "request": request});
                let answer = called(path, &review).await.unwrap();
                assert_eq!(answer["response"]["uid"], "7", "{path} {object}");
                let is_refusal = path != binding::PATH && !object.is_null();
                assert_eq!(answer["response"]["allowed"], !is_refusal, "{path} {object}: {answer}");
            }
            for review in [json!(null), json!({}), json!({"apiVersion": "admission.k8s.io/v1", "request": {}})] {
                called(path, &review).await.unwrap_err();
            }
        }
    }

    #[test]
    fn paths_are_those_of_the_go_operator() {
        assert_eq!(path::<NodeSet>(), "/validate-slinky-slurm-net-v1beta1-nodeset");
        let all = [path::<Accounting>(), path::<Controller>(), path::<LoginSet>(), path::<RestApi>(), path::<Token>()];
        for (path, kind) in all.iter().zip(["accounting", "controller", "loginset", "restapi", "token"]) {
            assert_eq!(*path, format!("/validate-slinky-slurm-net-v1beta1-{kind}"));
        }
    }
}
