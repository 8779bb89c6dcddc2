//! A real API server for tests: a client to it, a namespace of one's own, objects applied to it.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::GroupVersionKind;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::Condition;
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wait_for;

/// On every namespace that tests make, with the name of the test: what a crashed run left can be found by it.
pub const TEST_LABEL: &str = "slurm-operator/test";

/// The field manager of everything that tests apply.
const FIELD_MANAGER: &str = "testkit";

/// How long an API server may take to serve a new kind.
const ESTABLISH: Duration = Duration::from_secs(30);

/// A client to the API server that `KUBECONFIG` names. The default kubeconfig of a user is never touched.
pub async fn client() -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::from_env().context("cannot read the file that KUBECONFIG names")?;
    let kubeconfig = kubeconfig
        .context("KUBECONFIG is not set: run `cargo xtask test --api`, which starts an API server for these tests")?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A namespace for one test. A test that fails leaves it behind for a look.
#[must_use = "delete it at the end of the test"]
pub struct TestNamespace {
    client: Client,
    name: String,
}

impl TestNamespace {
    /// Makes a namespace whose name the server makes unique. `test` must fit into a label.
    pub async fn create(client: &Client, test: &str) -> anyhow::Result<Self> {
        let namespace = Namespace {
            metadata: ObjectMeta {
                generate_name: Some(format!("{test}-")),
                labels: Some([(TEST_LABEL.to_owned(), test.to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let created = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await;
        let name = created.with_context(|| format!("cannot create a namespace for the test {test}"))?.name_any();
        Ok(Self { client: client.clone(), name })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The objects of a kind in it.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType: Default>,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// The objects in it of a kind without a Rust type, or of one that must be sent exactly as written.
    #[must_use]
    pub fn dynamic_api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.name, resource)
    }

    /// Asks the server to delete it with all that is in it, and does not wait until all is gone.
    pub async fn delete(self) -> anyhow::Result<()> {
        let namespaces = Api::<Namespace>::all(self.client);
        let deleted = namespaces.delete(&self.name, &kube::api::DeleteParams::background()).await;
        deleted.with_context(|| format!("cannot delete the namespace {}", self.name))?;
        Ok(())
    }
}

/// Server-side apply, taking over fields of others. The error is kube's own, so that tests can look into a refusal.
pub async fn apply<K>(api: &Api<K>, object: &K) -> kube::Result<K>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    api.patch(&object.name_any(), &PatchParams::apply(FIELD_MANAGER).force(), &Patch::Apply(object)).await
}

/// Applies definitions and waits until the server serves their kinds.
pub async fn establish(client: &Client, crds: &[CustomResourceDefinition]) -> anyhow::Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds {
        apply(&api, crd).await.with_context(|| format!("cannot apply the definition {}", crd.name_any()))?;
    }
    for crd in crds {
        let name = crd.name_any();
        wait_for(&format!("the definition {name} to be served"), ESTABLISH, async || {
            let crd = api.get(&name).await?;
            ensure!(is_crd_established().matches_object(Some(&crd)), "conditions {:?}", crd.status);
            // Established comes a moment before the first request is answered.
            for resource in resources(&crd) {
                Api::<DynamicObject>::all_with(client.clone(), &resource).list(&ListParams::default().limit(1)).await?;
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// The kind of a definition, once for each version that is served.
fn resources(crd: &CustomResourceDefinition) -> Vec<ApiResource> {
    let served = crd.spec.versions.iter().filter(|version| version.served);
    let resource = |version: &str| {
        let kind = GroupVersionKind::gvk(&crd.spec.group, version, &crd.spec.names.kind);
        ApiResource::from_gvk_with_plural(&kind, &crd.spec.names.plural)
    };
    served.map(|version| resource(&version.name)).collect()
}
