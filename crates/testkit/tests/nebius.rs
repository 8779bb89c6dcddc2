//! The custom resources of `slurm.nebius.ai` on a real API server. The CRDs stay there; everything else is deleted.

use anyhow::{Context, ensure};
use kube::{
    Api, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use slurm_operator_api::nebius::{
    ActiveCheck, JailedConfig, NodeConfigurator, NodeSet, NodeSetPowerState, SlurmCluster, crds,
};
use testkit::api_server::{TestNamespace, apply, client, establish};

/// Objects of one kind, written as JSON.
struct Objects {
    resource: ApiResource,
    api: Api<DynamicObject>,
}

impl Objects {
    fn of<K: Resource<DynamicType = ()>>(namespace: &TestNamespace) -> Self {
        let resource = ApiResource::erase::<K>(&());
        Self { api: namespace.dynamic_api(&resource), resource }
    }

    /// Creates an object, and then applies the same, as some tools do the one and some the other.
    async fn accepts(&self, name: &str, spec: &Value) -> anyhow::Result<Value> {
        let mut object = DynamicObject::new(name, &self.resource);
        if !spec.is_null() {
            object = object.data(json!({ "spec": spec }));
        }
        let created = self.api.create(&PostParams::default(), &object).await;
        let created = created.with_context(|| format!("{name} was refused"))?;
        apply(&self.api, &object).await.with_context(|| format!("{name} could not be applied"))?;
        created.data.get("spec").cloned().with_context(|| format!("{name} has no spec"))
    }

    async fn refuses(&self, name: &str, spec: &Value, words: &str) -> anyhow::Result<()> {
        let object = DynamicObject::new(name, &self.resource).data(json!({ "spec": spec }));
        let error = self.api.create(&PostParams::default(), &object).await.err();
        let kube::Error::Api(status) = error.with_context(|| format!("{name} was accepted"))? else {
            anyhow::bail!("{name}: no answer")
        };
        ensure!(status.is_invalid() && status.message.contains(words), "{name}: {status:?}");
        Ok(())
    }

    async fn delete(self) -> anyhow::Result<()> {
        self.api.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        Ok(())
    }
}

async fn start(test: &str) -> anyhow::Result<TestNamespace> {
    let client = client().await?;
    establish(&client, &crds()).await?;
    TestNamespace::create(&client, test).await
}

fn container() -> Value {
    json!({"image": "registry.example.com/slurm:1.23.3", "resources": {"cpu": 1, "memory": "1Gi"}, "livenessProbe": null})
}

fn cluster() -> Value {
    let volume = json!({"volumeSourceName": "jail"});
    json!({
        "crVersion": "1.23.3",
        "k8sNodeFilters": [{"name": "cpu", "nodeSelector": {"pool": "cpu"}, "affinity": null, "tolerations": null}],
        "volumeSources": [{"name": "jail", "persistentVolumeClaim": {"claimName": "jail", "fromTheFuture": 1}}],
        "populateJail": {"image": "jail", "k8sNodeFilterName": "cpu", "jailSnapshotVolume": null, "imagePullPolicy": null},
        "secrets": {},
        "slurmNodes": {
            "controller": {
                "k8sNodeFilterName": "cpu", "slurmctld": container(), "munge": container(), "sssd": null,
                "volumes": {"spool": volume, "jail": volume, "customMounts": null},
            },
            "worker": null,
            "login": {
                "k8sNodeFilterName": "cpu", "sshd": container(), "munge": container(), "sshRootPublicKeys": [],
                "sshdServiceType": "NodePort", "sshdServiceNodePort": null, "volumes": {"jail": volume},
            },
            "accounting": {"k8sNodeFilterName": "cpu", "externalDB": null, "slurmConfig": {"priorityWeightTRES": null}},
            "rest": {"k8sNodeFilterName": "cpu"},
            "exporter": {"k8sNodeFilterName": "cpu", "podMonitorConfig": null},
        },
        "partitionConfiguration": null,
        "workerFeatures": null,
        "customSlurmConfig": null,
        "slurmConfig": null,
        "topology": null,
        "sConfigController": {"node": {"k8sNodeFilterName": "cpu"}, "container": container(), "runAsUid": null},
    })
}

fn worker() -> Value {
    let volume = json!({"volumeSourceName": "jail"});
    json!({
        "k8sNodeFilterName": "cpu", "size": 3, "slurmd": container(), "munge": container(),
        "volumes": {"spool": volume, "jail": volume},
    })
}

fn workers() -> Value {
    let image = json!({"repository": "registry.example.com/slurmd", "tag": null});
    let resources = json!({"cpu": "2", "nvidia.com/gpu": 8});
    json!({
        "maxUnavailable": null,
        "slurmd": {
            "image": image, "resources": resources,
            "volumes": {"spool": {"emptyDir": {}}, "jail": {"persistentVolumeClaim": {"claimName": "jail"}}},
        },
        "munge": {"image": image, "resources": resources},
    })
}

#[tokio::test]
async fn a_cluster_with_nulls_is_stored_with_its_defaults() -> anyhow::Result<()> {
    let namespace = start("nebius-cluster").await?;
    let clusters = Objects::of::<SlurmCluster>(&namespace);
    let spec = clusters.accepts("nulls", &cluster()).await?;
    ensure!(spec["slurmConfig"]["maxJobCount"] == 20_000 && spec["slurmConfig"].get("minJobAge").is_none(), "{spec}");
    ensure!(spec["plugStackConfig"]["ncclInspectorPreConf"]["enabled"] == false, "{spec}");
    ensure!(spec["slurmNodes"]["login"]["sshdServiceNodePort"] == 0, "{spec}");
    ensure!(spec["slurmNodes"]["exporter"]["podMonitorConfig"]["scrapeTimeout"] == "20s", "{spec}");
    ensure!(spec["volumeSources"][0]["persistentVolumeClaim"]["fromTheFuture"] == 1, "{spec}");
    let typed: SlurmCluster = namespace.api().get("nulls").await.context("cannot be decoded")?;
    ensure!(typed.spec.slurm_nodes.worker.is_none() && typed.spec.slurm_config.message_timeout == 60);

    let mut both = cluster();
    both["slurmNodes"]["worker"] = worker();
    clusters.accepts("own-workers", &both).await?;
    both["partitionConfiguration"] = json!({"configType": "structured", "partitions": [{"name": "a", "nodeSetRefs": null}, {"name": "b", "nodeSetRefs": ["b"]}]});
    clusters.refuses("both", &both, "slurmNodes.worker.size must be 0").await?;
    both["slurmNodes"]["worker"]["size"] = Value::Null;
    clusters.accepts("node-sets", &both).await?;

    let mut empty = cluster();
    empty["partitionConfiguration"] = json!({"configType": "structured", "partitions": null});
    clusters.refuses("no-partition", &empty, "partitions must not be empty").await?;
    let mut waits = cluster();
    waits["sConfigController"]["reconfigureWaitTimeout"] = json!("20s");
    clusters.refuses("waits", &waits, "reconfigureWaitTimeout must be longer").await?;
    let mut isolation = cluster();
    isolation["slurmNodes"]["login"]["userIsolation"] = json!({"memoryHigh": "2Gi", "memoryMax": 2_000_000});
    clusters.refuses("isolation", &isolation, "memoryHigh must not be more than memoryMax").await?;
    isolation["slurmNodes"]["login"]["userIsolation"]["memoryMax"] = Value::Null;
    clusters.accepts("isolation", &isolation).await?;
    let mut lookback = cluster();
    lookback["slurmNodes"]["exporter"]["accountingJobsLookback"] = json!("0h");
    clusters.refuses("lookback", &lookback, "accountingJobsLookback must be more than zero").await?;
    lookback["slurmNodes"]["exporter"]["accountingJobsLookback"] = json!("an hour");
    clusters.refuses("pattern", &lookback, "should match").await?;
    clusters.delete().await?;
    namespace.delete().await
}

#[tokio::test]
async fn workers_scale_and_updates_are_bounded() -> anyhow::Result<()> {
    let namespace = start("nebius-workers").await?;
    let sets = Objects::of::<NodeSet>(&namespace);
    let spec = sets.accepts("gpu", &workers()).await?;
    ensure!((&spec["replicas"], &spec["updateStrategy"]) == (&json!(1), &json!("rollingUpdate")), "{spec}");
    let with = |value: Value| {
        let mut set = workers();
        set["maxUnavailable"] = value;
        set
    };
    for (name, value) in [("most", json!(500)), ("fifth", json!("20%"))] {
        sets.accepts(name, &with(value)).await?;
    }
    for (name, value) in [("none", json!(0)), ("too-many", json!(501)), ("all", json!("all")), ("nothing", json!("0%"))]
    {
        sets.refuses(name, &with(value), "maxUnavailable must be").await?;
    }

    let manager = PatchParams::default();
    let status = json!({"replicas": 2, "labelSelector": "app.kubernetes.io/instance=it", "phase": null});
    sets.api.patch_status("gpu", &manager, &Patch::Merge(json!({ "status": status }))).await?;
    let scale = sets.api.patch_scale("gpu", &manager, &Patch::Merge(json!({"spec": {"replicas": 3}}))).await?;
    let said = scale.status.context("the scale has no status")?;
    ensure!((said.replicas, said.selector.as_deref()) == (2, Some("app.kubernetes.io/instance=it")), "{said:?}");
    let set: NodeSet = namespace.api().get("gpu").await?;
    ensure!(set.spec.replicas == 3 && set.status.is_some_and(|status| status.phase == "Pending"));
    sets.delete().await?;
    namespace.delete().await
}

#[tokio::test]
async fn other_kinds_need_little() -> anyhow::Result<()> {
    let namespace = start("nebius-others").await?;
    let configurators = Objects::of::<NodeConfigurator>(&namespace);
    let spec = configurators.accepts("nothing", &Value::Null).await?;
    ensure!(spec["rebooter"]["enabled"] == true && spec["hostNetwork"] == true, "{spec}");
    let rebooter = json!({"rebooter": {"enabled": false, "resources": null, "image": null, "logFormat": null}});
    configurators.accepts("off", &rebooter).await?;

    let checks = Objects::of::<ActiveCheck>(&namespace);
    let check = json!({
        "name": "ssh", "slurmClusterRefName": "alps", "suspend": null, "dependsOn": null,
        "k8sJobSpec": {"jobContainer": {"workingDir": null, "volumes": [{"name": "a", "emptyDir": {}}]}},
    });
    let spec = checks.accepts("ssh", &check).await?;
    ensure!(
        spec["suspend"] == true && spec["k8sJobSpec"]["jobContainer"]["volumes"][0]["emptyDir"] == json!({}),
        "{spec}"
    );

    let states = Objects::of::<NodeSetPowerState>(&namespace);
    states.accepts("gpu", &json!({"nodeSetRef": "gpu", "activeNodes": [0, 2]})).await?;
    states.refuses("twice", &json!({"nodeSetRef": "gpu", "activeNodes": [2, 2]}), "Duplicate value").await?;
    states.refuses("no-set", &json!({"nodeSetRef": ""}), "at least 1").await?;

    let configs = Objects::of::<JailedConfig>(&namespace);
    let config = json!({
        "configMap": {"name": "motd"}, "defaultMode": null, "updateActions": null,
        "items": [{"key": "motd", "path": "/etc/motd", "mode": null}],
    });
    configs.accepts("motd", &config).await?;
    configs.refuses("nowhere", &json!({}), "configMap").await?;

    configurators.delete().await?;
    checks.delete().await?;
    states.delete().await?;
    configs.delete().await?;
    namespace.delete().await
}
