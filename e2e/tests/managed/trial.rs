//! Configurations that Slurm does not start with: they reach no daemon, and no job is lost.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    managed::{self, CLUSTER, ManagedSlurm, STARTED, containers},
};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use slurm_operator_api::common::conditions::{CONFIGURATION_IN_EFFECT, CONFIGURATION_VALID};
use testkit::wait_for;

const CONF: &str = "PartitionName=all Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP\nGresTypes=gpu\n";

/// A wrong configuration: lines for slurm.conf, a file, and what the condition says.
struct Wrong {
    conf: &'static str,
    file: Option<(&'static str, &'static str)>,
    words: &'static [&'static str],
}

const fn conf(conf: &'static str, words: &'static [&'static str]) -> Wrong {
    Wrong { conf, file: None, words }
}

const fn file(name: &'static str, text: &'static str, words: &'static [&'static str]) -> Wrong {
    Wrong { conf: "", file: Some((name, text)), words }
}

const WRONG: [Wrong; 12] = [
    conf("SchedulerParamters=defer", &["SchedulerParamters is not known"]),
    conf("SchedulerType=sched/nope", &["slurmctld of", "sched/nope"]),
    conf("TaskPlugin=task/nope", &["slurmd of", "task/nope"]),
    conf("Prolog=nope.sh", &["nope.sh"]),
    conf("PartitionName=b Nodes=ALL\nPartitionName=b Nodes=ALL", &["partition b is defined already"]),
    conf("PartitionName=b Nodes=ALL State=SIDEWAYS", &["SIDEWAYS"]),
    conf("AccountingStorageTRES=gres/gpu", &["slurmdbd"]),
    file("gres.conf", "Name=gpu File=/dev/null Count=9\n", &["slurmd of", "count does not match"]),
    file("cgroup.conf", "CgroupPlugin=cgroup/v9\n", &["slurmd of", "cgroup/v9"]),
    file("plugstack.conf", "required nope.so\n", &["slurmd of", "plugstack.conf:1", "nope.so"]),
    Wrong {
        conf: "TopologyPlugin=topology/tree",
        file: Some(("topology.conf", "SwitchName=a Switches=b\nSwitchName=b Switches=a\n")),
        words: &["topology.conf"],
    },
    Wrong {
        conf: "JobSubmitPlugins=lua",
        file: Some(("job_submit.lua", "function (\n")),
        words: &["slurmctld of", "job_submit.lua"],
    },
];

#[tokio::test]
async fn a_configuration_that_slurm_does_not_start_with_harms_nothing() -> Result<()> {
    let scene = Scene::start("trial").await?;
    let maps = scene.namespace.api::<ConfigMap>();
    let none: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "files"}}))?;
    maps.create(&PostParams::default(), &none).await?;
    let mut controller = managed::controller()?;
    controller["extraConf"] = json!(CONF);
    controller["configFileRefs"] = json!([{"name": "files"}]);
    let cluster = ManagedSlurm::start_with(&scene, controller, managed::node_set(1)?).await?;
    let job = cluster.count("workers-0").await?;
    let (before, started) = (containers(&scene).await?, slurmd_started(&cluster).await?);

    for Wrong { conf, file, words } in WRONG {
        let counted = cluster.counted(&job).await?;
        write(&scene, conf, file).await?;
        says(&scene, "False", &[words, &["The last good configuration is kept"]].concat()).await?;
        assert_eq!(containers(&scene).await?, before, "a daemon has restarted because of {conf} {file:?}");
        assert_eq!(slurmd_started(&cluster).await?, started, "slurmd was told of {conf} {file:?}");
        cluster.goes_on(&job, counted).await?;
    }

    // What Slurm can read takes effect, also in files that only slurmd reads, and restarts nothing.
    // Nobody answers there.
    let nodes = "NodeName=static[1-2] NodeAddr=192.0.2.[1-2] CPUs=1\nNodeName=later CPUs=1 State=FUTURE";
    let good = [
        (nodes, None),
        ("", Some(("gres.conf", "Name=gpu Count=2\n"))),
        ("MaxJobCount=7777", Some(("plugstack.conf", "optional nope.so\n"))),
    ];
    for (conf, file) in good {
        let told = slurmd_started(&cluster).await?;
        write(&scene, conf, file).await?;
        wait_for(&format!("slurmd to reread {conf} {file:?}"), STARTED, async || {
            ensure!(slurmd_started(&cluster).await? != told, "not yet");
            let in_effect = managed::condition(&scene, "Controller", CLUSTER, CONFIGURATION_IN_EFFECT).await?;
            ensure!(in_effect.status == "True", "{in_effect:?}");
            Ok(())
        })
        .await?;
        says(&scene, "True", &[]).await?;
    }
    ensure!(cluster.run("scontrol show config").await?.contains("7777"), "slurmctld has another configuration");
    assert_eq!(containers(&scene).await?, before, "a daemon has restarted");
    cluster.job_is(&job, "RUNNING").await?;
    wait_for("the trials to be gone", SOON, async || {
        let trials = ListParams::default().labels("app.kubernetes.io/name=slurm-trial");
        let pods = scene.namespace.api::<Pod>().list(&trials).await?.items.len();
        let maps = maps.list(&trials).await?.items.len();
        ensure!((pods, maps) == (0, 0), "{pods} pods and {maps} ConfigMaps");
        Ok(())
    })
    .await?;
    cluster.release(&job).await?;
    scene.finish().await
}

/// Sets the lines of slurm.conf and the only file beside it.
async fn write(scene: &Scene, conf: &str, file: Option<(&str, &str)>) -> Result<()> {
    let files: BTreeMap<&str, &str> = file.into_iter().collect();
    let maps = scene.namespace.api::<ConfigMap>();
    // A merge keeps the other files.
    let replace = Patch::Json::<()>(serde_json::from_value(json!([{"op": "add", "path": "/data", "value": files}]))?);
    maps.patch("files", &PatchParams::default(), &replace).await?;
    managed::change(scene, "Controller", CLUSTER, json!({"extraConf": format!("{CONF}{conf}")})).await
}

async fn says(scene: &Scene, status: &str, words: &[&str]) -> Result<()> {
    wait_for(&format!("ConfigurationValid to be {status} with {words:?}"), SOON, async || {
        let valid = managed::condition(scene, "Controller", CLUSTER, CONFIGURATION_VALID).await?;
        ensure!(valid.status == status && words.iter().all(|word| valid.message.contains(word)), "{valid:?}");
        Ok(())
    })
    .await
}

/// When slurmd of the worker started.
async fn slurmd_started(cluster: &ManagedSlurm<'_>) -> Result<String> {
    let node = cluster.run("scontrol show node workers-0").await?;
    let start = node.split_whitespace().find(|word| word.starts_with("SlurmdStartTime="));
    start.map(str::to_owned).with_context(|| format!("no start in {node}"))
}
