//! Reads what a viewer of a namespace may read. A kind that cannot be read is a fact.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as CoreEvent, Node, Pod as CorePod};
use kube::{
    Client, Config, Resource,
    api::{ApiResource, DynamicObject, ListParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;

use super::model::{Event, Facts, Object, Pod, Unread, kube_node};
use crate::{
    failure::{Failure, FailureSource, call},
    frontends::{self, KindVisitor},
    machine::Kind,
};

/// The number of objects in one answer.
const PAGE: u32 = 500;

/// Which Kubernetes cluster, and which namespace of it.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Namespace; defaults to that of the kubeconfig
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Kubeconfig; defaults to KUBECONFIG, `~/.kube/config` or the pod's own access
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "CONTEXT")]
    pub context: Option<String>,
}

impl ConnectArgs {
    /// Connects, and decides the namespace.
    pub async fn connect(&self) -> Result<Reader> {
        let config = self.config().await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("cannot create the Kubernetes client")?;
        Ok(Reader { client, namespace: (!self.all_namespaces).then_some(namespace), is_cached: false })
    }

    async fn config(&self) -> Result<Config> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let hint = "no access to a Kubernetes cluster: set KUBECONFIG or --kubeconfig, as for kubectl";
        match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .with_context(|| format!("cannot read the kubeconfig {}", path.display()))?;
                Config::from_custom_kubeconfig(file, &options).await.context(hint)
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await.context(hint),
            None => Config::infer().await.context(hint),
        }
    }
}

/// Reads objects of one namespace, or of all.
pub struct Reader {
    pub client: Client,
    /// `None` for all.
    pub namespace: Option<String>,
    /// Whether a list from the API server's cache will do, which costs it less.
    pub is_cached: bool,
}

/// The kinds of our custom resources.
pub fn kinds() -> Vec<ApiResource> {
    struct Kinds(Vec<ApiResource>);
    impl KindVisitor for Kinds {
        fn kind<K: Kind>(&mut self) {
            self.0.push(ApiResource::erase::<K>(&()));
        }
    }
    let mut kinds = Kinds(Vec::new());
    frontends::visit(&mut kinds);
    kinds.0
}

/// A kind of Kubernetes.
pub fn of<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

impl Reader {
    /// All objects of a kind, in pages, so that no answer is too large.
    pub async fn list(&self, resource: &ApiResource, labels: &str) -> Result<Vec<Value>, Failure> {
        let is_namespaced = resource.kind != "Node";
        let namespace = self.namespace.as_deref().filter(|_| is_namespaced);
        let url = DynamicObject::url_path(resource, namespace);
        let title = || match namespace {
            Some(namespace) => format!("{} in {namespace}", resource.plural),
            None => resource.plural.clone(),
        };
        let (mut found, mut next) = (Vec::new(), None::<String>);
        loop {
            let mut params = ListParams { label_selector: Some(labels.to_owned()), ..ListParams::default() };
            params = if self.is_cached { params.match_any() } else { params.limit(PAGE) };
            params.continue_token = next;
            let request = kube::core::Request::new(&url).list(&params);
            let mut page: Value = call("listing", title, async {
                self.client.request(request.map_err(kube::Error::BuildRequest)?).await
            })
            .await?;
            if let Some(Value::Array(items)) = page.get_mut("items").map(Value::take) {
                found.extend(items);
            }
            next = page
                .pointer("/metadata/continue")
                .and_then(Value::as_str)
                .filter(|token| !token.is_empty())
                .map(str::to_owned);
            if next.is_none() {
                return Ok(found);
            }
        }
    }

    /// Everything that the tree is made from. Fails only if nothing of ours could be read.
    pub async fn read(&self, now: Timestamp) -> Result<Facts> {
        let mut facts = Facts::default();
        let kinds = kinds();
        let (objects, pods, events, nodes) = futures::join!(
            join_all(kinds.iter().map(|kind| self.list(kind, ""))),
            self.list_pods(),
            async { self.list(&of::<CoreEvent>(), "").await },
            async { self.list(&of::<Node>(), "").await },
        );
        let mut failures = Vec::new();
        for (kind, found) in kinds.iter().zip(objects) {
            match found {
                Ok(found) => facts.objects.extend(found.into_iter().map(|value| Object::new(&kind.kind, value))),
                Err(failure) => {
                    facts.unread.push(unread(&kind.plural, &failure));
                    failures.push(failure);
                }
            }
        }
        if failures.len() == kinds.len() {
            let all_unknown = failures.iter().all(is_unknown);
            let Some(first) = failures.into_iter().next() else { return Ok(facts) };
            if all_unknown {
                bail!(
                    "this Kubernetes cluster does not have the kinds of the operator: install its CRDs (docs/getting-started.md)"
                );
            }
            bail!("{}", first.text());
        }
        let vocabularies = frontends::vocabularies();
        let mut keep = |what: &str, found: Result<Vec<Value>, Failure>| {
            found.unwrap_or_else(|failure| {
                facts.unread.push(unread(what, &failure));
                Vec::new()
            })
        };
        let (pods, events, nodes) = (keep("pods", pods), keep("events", events), keep("nodes", nodes));
        facts.pods = pods.iter().filter_map(|value| Pod::new(value, vocabularies, now)).collect();
        facts.events = events.iter().filter_map(Event::new).collect();
        let nodes = nodes.iter().filter_map(|value| kube_node(value, vocabularies));
        facts.nodes = nodes.map(|node| (node.name.clone(), Arc::new(node))).collect::<BTreeMap<_, _>>();
        facts.objects.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        facts.pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(facts)
    }

    /// The pods of all daemons, which have one label key and a few values.
    async fn list_pods(&self) -> Result<Vec<Value>, Failure> {
        let mut programs: Vec<&str> = Vec::new();
        let mut key = "";
        for vocabulary in frontends::vocabularies() {
            key = vocabulary.pod_label.0;
            programs.extend(vocabulary.pod_label.1);
        }
        self.list(&of::<CorePod>(), &format!("{key} in ({})", programs.join(","))).await
    }
}

/// A kind that could not be read.
pub fn unread(what: &str, failure: &Failure) -> Unread {
    let why = if is_unknown(failure) {
        "the API server does not know the kind".to_owned()
    } else {
        failure.source.to_string()
    };
    Unread { what: what.to_owned(), why }
}

/// Whether the kind does not exist.
fn is_unknown(failure: &Failure) -> bool {
    matches!(&failure.source, FailureSource::Kube(error) if matches!(&**error, kube::Error::Api(status) if status.code == 404))
}
