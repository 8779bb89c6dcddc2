//! What goes wrong in a cluster is found with the commands of docs/troubleshooting.md, and a report has what is needed and no secret.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use e2e::{
    SOON, Scene,
    chart::{self, NODE_SET, RELEASE},
    kubectl,
    managed::{self, Job, ManagedSlurm, STARTED},
    node_names, operator,
    pages::{self, Shell},
};
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{Secret, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use slurm_operator_api::common::conditions::SLURM_REACHABLE;
use testkit::wait_for;

/// In places where users put what should be secret.
const PLANTED: [&str; 4] =
    ["planted-in-a-variable", "planted-in-a-file", "planted-in-a-reason", "planted-in-a-setting"];

struct Reader<'a> {
    scene: &'a Scene,
    shell: Shell,
}

impl Reader<'_> {
    /// Runs the commands of a section.
    async fn run(&self, section: &str) -> Result<String> {
        let name = self.scene.namespace.name();
        let commands = pages::commands("troubleshooting", section)?
            .replace("--namespace slurm ", &format!("--namespace {name} "))
            .replace("--namespace slurm\n", &format!("--namespace {name}\n"))
            .replace("\"namespace\":\"slurm\"", &format!("\"namespace\":\"{name}\""));
        self.shell.run(&commands).await.with_context(|| format!("docs/troubleshooting.md, {section}"))
    }

    /// Runs the commands of a section, until their output has all of these words.
    async fn finds(&self, section: &str, words: &[&str]) -> Result<String> {
        wait_for(&format!("the commands of `{section}` to show {words:?}"), SOON, async || {
            let output = self.run(section).await?;
            ensure!(words.iter().all(|word| output.contains(word)), "{output}");
            Ok(output)
        })
        .await
    }

    /// Waits until `explain` says something about the workers.
    async fn explains(&self, words: &str) -> Result<()> {
        let explain = format!("kubectl slurm explain --namespace {} nodesets", self.scene.namespace.name());
        wait_for(&format!("the explanation {words}"), STARTED, async || {
            let output = self.shell.run(&explain).await?;
            ensure!(output.contains(words), "{output}");
            Ok(())
        })
        .await
    }
}

#[tokio::test]
async fn problems_are_found_with_the_commands_of_the_documentation() -> Result<()> {
    let scene = Scene::start("troubleshooting").await?;
    let reader = Reader { scene: &scene, shell: Shell::new(scene.namespace.name())? };
    install(&scene).await?;
    let cluster = ManagedSlurm::of(&scene);
    usable(&cluster, &["cpu-0", "cpu-1"]).await?;
    reader.finds("Where to begin", &["cpu-[0-1]", "2 workers in service"]).await?;
    for section in ["A worker does not register", "slurmctld does not start", "The operator does nothing"] {
        reader.run(section).await?;
    }
    let held = cluster.run("sbatch --hold --parsable --output=/dev/null --wrap=true").await?;
    reader.finds("A job stays pending", &[held.trim(), "JobHeld"]).await?;

    let reason = format!("bad disk, token={}", PLANTED[2]);
    cluster.run(&format!("scontrol update nodename=cpu-1 state=drain reason='{reason}'")).await?;
    reader.explains("drained by an admin, who must resume it: bad disk").await?;
    report(&reader).await?;
    report_of_a_viewer(&reader).await?;
    let output = reader.run("A worker is down or drained").await?;
    ensure!(output.contains("bad disk"), "{output}");
    usable(&cluster, &["cpu-0", "cpu-1"]).await?;

    drain_waits(&reader, &cluster).await?;
    pending_pod(&reader, &cluster).await?;
    stuck_update(&reader, &cluster).await?;
    refused(&reader).await?;
    missing_key(&reader).await?;
    unreachable(&reader).await?;
    scene.finish().await
}

async fn install(scene: &Scene) -> Result<()> {
    let soon = json!({"terminationGracePeriodSeconds": 5});
    let more = json!({
        "controller": {"podSpec": soon},
        "configFiles": {"plugstack.conf": format!("# password: {}\n", PLANTED[1])},
        "nodesets": {"cpu": {"slurmd": {"env": [{"name": "DB_PASSWORD", "value": PLANTED[0]}]}}},
    });
    let workers = json!({
        "replicas": 2, "podSpec": soon, "metadata": {"annotations": {"example.com/api-token": PLANTED[3]}},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
    });
    chart::install_with(scene, workers, &more).await?;
    for (kind, name) in [("Controller", RELEASE), ("RestApi", RELEASE), ("NodeSet", NODE_SET)] {
        managed::ready(scene, kind, name).await?;
    }
    Ok(())
}

/// Waits until Slurm has these nodes, and all of them are idle.
async fn usable(cluster: &ManagedSlurm<'_>, nodes: &[&str]) -> Result<()> {
    wait_for(&format!("{nodes:?} to be idle"), STARTED, async || {
        let found = cluster.nodes().await?;
        let all_idle = found.values().all(|state| state == "idle");
        ensure!(found.keys().eq(nodes.iter()) && all_idle, "{found:?}");
        Ok(())
    })
    .await
}

async fn scale(scene: &Scene, replicas: usize) -> Result<()> {
    managed::change(scene, "NodeSet", NODE_SET, json!({"replicas": replicas})).await
}

/// All files of an archive, by their paths below its folder.
async fn unpacked(reader: &Reader<'_>, archive: &str) -> Result<BTreeMap<String, String>> {
    let unpack = format!(
        "mkdir {archive}.d && tar --extract --gzip --strip-components=1 --file {archive} --directory {archive}.d"
    );
    reader.shell.run(&unpack).await?;
    let root = reader.shell.folder().join(format!("{archive}.d"));
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap_or(Path::new("")).display().to_string();
                found.insert(name, fs::read_to_string(&path)?);
            }
        }
    }
    for (path, text) in &found {
        for secret in PLANTED {
            ensure!(!text.contains(secret), "{secret} is in {path}: {text}");
        }
    }
    Ok(found)
}

fn has(files: &BTreeMap<String, String>, path: &str, part: &str) -> Result<()> {
    let text = files.get(path).with_context(|| format!("no {path} in {:?}", files.keys()))?;
    ensure!(text.contains(part), "no {part} in {path}: {text}");
    Ok(())
}

/// With all rights, everything is in it but secrets.
async fn report(reader: &Reader<'_>) -> Result<()> {
    let listed = reader.run("A report").await?;
    ensure!(listed.contains("README.txt"), "{listed}");
    let files = unpacked(reader, "report.tar.gz").await?;
    let not_read = files.get("not-read.txt");
    ensure!(not_read.is_none(), "{not_read:?}");
    let name = reader.scene.namespace.name();
    for (path, part) in [
        ("status.txt".to_owned(), "bad disk"),
        ("explain.txt".to_owned(), "drained by an admin"),
        (format!("{name}/nodeset.yaml"), "maxUnavailable: 1"),
        (format!("{name}/pod.yaml"), "DB_PASSWORD"),
        (format!("{name}/configmap.yaml"), "SlurmctldHost="),
        (format!("{name}/secret.yaml"), "bytes"),
        (format!("{name}/events.txt"), "NodeSet"),
        (format!("{name}/logs/slurm-controller-0/slurmctld.log"), "bad disk"),
        (format!("{name}/logs/slurm-worker-cpu-1/slurmd.log"), "slurmd"),
        (format!("{name}/slurm/slurm/nodes.txt"), "bad disk"),
        (format!("{name}/slurm/slurm/jobs.txt"), "JobHeld"),
        (format!("{name}/slurm/slurm/cluster.txt"), "primary: responds"),
        ("node.yaml".to_owned(), "kubeletVersion"),
    ] {
        has(&files, &path, part)?;
    }
    let of_operator = |end: &str| files.keys().any(|path| path.starts_with(operator::NAMESPACE) && path.ends_with(end));
    ensure!(
        of_operator("vars.json") && of_operator("metrics.txt") && of_operator("slurm-operator.log"),
        "{:?}",
        files.keys()
    );

    // What the operator has made up itself.
    let secrets = reader.scene.namespace.api::<Secret>();
    for secret in ["slurm-auth-slurm", "slurm-auth-jwt", "slurm-auth-slurm-ring"] {
        for (entry, ByteString(content)) in secrets.get(secret).await?.data.unwrap_or_default() {
            let encoded = json!(ByteString(content.clone()));
            let encoded = encoded.as_str().context("no text")?;
            let plain = String::from_utf8(content).unwrap_or_else(|_| encoded.to_owned());
            for (path, text) in &files {
                ensure!(
                    !text.contains(encoded) && !text.contains(plain.trim()),
                    "entry {entry} of {secret} is in {path}"
                );
            }
        }
    }
    Ok(())
}

/// With the rights of a viewer of the namespace, it says what is missing.
async fn report_of_a_viewer(reader: &Reader<'_>) -> Result<()> {
    let scene = reader.scene;
    let name = scene.namespace.name();
    let create = PostParams::default();
    scene
        .namespace
        .api::<ServiceAccount>()
        .create(&create, &serde_json::from_value(json!({"metadata": {"name": "viewer"}}))?)
        .await?;
    let rules = json!([{"apiGroups": ["slinky.slurm.net"], "resources": ["*"], "verbs": ["get", "list", "watch"]}]);
    let role = json!({"metadata": {"name": "viewer"}, "rules": rules});
    scene.namespace.api::<Role>().create(&create, &serde_json::from_value(role)?).await?;
    for (binding, kind, role) in [("viewer", "Role", "viewer"), ("view", "ClusterRole", "view")] {
        let binding = json!({
            "metadata": {"name": binding},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": name}],
        });
        scene.namespace.api::<RoleBinding>().create(&create, &serde_json::from_value(binding)?).await?;
    }
    let token = kubectl(&["create", "token", "viewer", "--namespace", name]).await?;
    let mut config: Value = serde_json::from_str(
        &kubectl(&["config", "view", "--raw", "--minify", "--flatten", "--output", "json"]).await?,
    )?;
    *config.pointer_mut("/users/0/user").context("no user")? = json!({"token": token.trim()});
    reader.shell.write("viewer.json", &config.to_string())?;
    let viewed = format!("kubectl slurm report --kubeconfig viewer.json --namespace {name} --output viewer.tar.gz");
    // A new role takes a moment.
    wait_for("the report of a viewer", SOON, async || reader.shell.run(&viewed).await).await?;
    let files = unpacked(reader, "viewer.tar.gz").await?;
    has(&files, "status.txt", "bad disk")?;
    has(&files, &format!("{name}/logs/slurm-controller-0/slurmctld.log"), "bad disk")?;
    for part in
        ["secrets", "nodes", "pods in slurm-operator", "Slurm of Controller", "the operator: no pod of it is known"]
    {
        has(&files, "not-read.txt", part)?;
    }
    ensure!(!files.values().any(|text| text.contains(token.trim())), "the token of the viewer is in the report");
    Ok(())
}

async fn drain_waits(reader: &Reader<'_>, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let job = cluster.run("sbatch --parsable --nodes=2 --output=/dev/null --wrap='sleep 600'").await?;
    let job = Job { id: job.trim().to_owned(), node: "cpu-1".to_owned() };
    cluster.job_is(&job, "RUNNING").await?;
    scale(reader.scene, 1).await?;
    reader.finds("A drain waits", &["cpu-1", "to be removed (scale-in)", "blocked by", &job.id]).await?;
    cluster.run(&format!("scancel {}", job.id)).await?;
    usable(cluster, &["cpu-0"]).await?;
    let words = ["create Pod", "is scaling in", "delete Pod slurm-worker-cpu-1", "delete the node cpu-1"];
    reader.finds("One worker through its life", &words).await.map(drop)
}

async fn pending_pod(reader: &Reader<'_>, cluster: &ManagedSlurm<'_>) -> Result<()> {
    scale(reader.scene, node_names(&reader.scene.client).await?.len() + 1).await?;
    reader.finds("A pod is Pending", &["FailedScheduling", "anti-affinity"]).await?;
    // The pending one goes first, which may be cpu-1.
    scale(reader.scene, 1).await?;
    usable(cluster, &["cpu-0"]).await?;
    scale(reader.scene, 2).await?;
    usable(cluster, &["cpu-0", "cpu-1"]).await
}

async fn stuck_update(reader: &Reader<'_>, cluster: &ManagedSlurm<'_>) -> Result<()> {
    let scene = reader.scene;
    let node_set = managed::resources(scene, "NodeSet").get(NODE_SET).await?;
    let image = node_set.data.pointer("/spec/slurmd/image").context("no image")?;
    let wrong = json!({"slurmd": {"image": "localhost/slurm-operator/slurmd:nowhere"}});
    managed::change(scene, "NodeSet", NODE_SET, wrong).await?;
    reader.finds("An update is stuck", &["Image", "waits for its turn, as at most 1 may be out of service"]).await?;
    managed::change(scene, "NodeSet", NODE_SET, json!({"slurmd": {"image": image}})).await?;
    managed::ready(scene, "NodeSet", NODE_SET).await?;
    usable(cluster, &["cpu-0", "cpu-1"]).await
}

async fn refused(reader: &Reader<'_>) -> Result<()> {
    let controllers = managed::resources(reader.scene, "Controller");
    let controller = controllers.get(RELEASE).await?;
    let conf = controller.data.pointer("/spec/extraConf").and_then(Value::as_str).unwrap_or_default();
    let wrong = format!("{conf}\nSchedulerParamters=defer");
    managed::change(reader.scene, "Controller", RELEASE, json!({"extraConf": wrong})).await?;
    reader.finds("The configuration is refused", &["did you mean SchedulerParameters?", "ClusterName="]).await?;
    managed::change(reader.scene, "Controller", RELEASE, json!({"extraConf": conf})).await?;
    managed::ready(reader.scene, "Controller", RELEASE).await
}

async fn missing_key(reader: &Reader<'_>) -> Result<()> {
    let secrets = reader.scene.namespace.api::<Secret>();
    let key = secrets.get("slurm-auth-jwt").await?.data;
    secrets.delete("slurm-auth-jwt", &DeleteParams::default()).await?;
    reader.finds("A key is missing", &["the Secret slurm-auth-jwt"]).await?;
    let restored = json!({"metadata": {"name": "slurm-auth-jwt"}, "data": key});
    secrets.create(&PostParams::default(), &serde_json::from_value(restored)?).await?;
    managed::ready(reader.scene, "Controller", RELEASE).await
}

async fn unreachable(reader: &Reader<'_>) -> Result<()> {
    managed::change(reader.scene, "RestApi", RELEASE, json!({"replicas": 0})).await?;
    wait_for("the operator not to reach Slurm", STARTED, async || {
        let found = managed::condition(reader.scene, "Controller", RELEASE, SLURM_REACHABLE).await?;
        ensure!(found.status == "False", "{found:?}");
        Ok(())
    })
    .await?;
    let message = managed::condition(reader.scene, "Controller", RELEASE, SLURM_REACHABLE).await?.message;
    reader.finds("Slurm is unreachable", &[&message, "is UP", reader.scene.namespace.name()]).await?;
    managed::change(reader.scene, "RestApi", RELEASE, json!({"replicas": 1})).await?;
    managed::ready(reader.scene, "RestApi", RELEASE).await?;
    managed::ready(reader.scene, "Controller", RELEASE).await
}
