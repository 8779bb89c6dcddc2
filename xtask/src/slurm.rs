//! The Slurm cluster of `cargo xtask up`: the chart `slurm` on the local nodes, and its first jobs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{
    image::{self, SlurmRelease},
    install::{self, kubectl},
    shell,
};

/// The Helm release, whose name is also that of the objects.
const NAME: &str = "slurm";

const NAMESPACE: &str = "slurm";

const SLURMCTLD: &str = "slurm-controller-0";

/// A busy machine takes long to start pods.
const LIMIT: Duration = Duration::from_mins(5);

/// The daemons that it consists of.
const DAEMONS: &[&str] = &["slurmctld", "slurmd", "slurmrestd"];

/// Builds the images of the version that the user asked for. Without a choice it is the newest one, or the stable one if that
/// cannot be built.
pub fn build_images(wanted: &str) -> Result<(SlurmRelease, Vec<PathBuf>)> {
    let build = |release: SlurmRelease| {
        let archives = release.build(DAEMONS)?;
        Ok((release, archives))
    };
    let stable = SlurmRelease::stable();
    match SlurmRelease::named(wanted).and_then(build) {
        Err(error) if wanted == image::NEWEST && shell::check_interrupt().is_ok() => {
            shell::say(&format!(
                "warning: the images of the newest Slurm cannot be built, so this cluster will run Slurm {}: {error:#}",
                stable.version
            ));
            build(stable)
        }
        result => result,
    }
}

/// Installs a cluster with this many workers, waits until it is ready, and runs jobs on it.
pub fn up(kubeconfig: &Path, version: &str, workers: u8) -> Result<()> {
    let start = Instant::now();
    refuse_downgrade(kubeconfig, version)?;
    install::helm(kubeconfig, NAME, NAMESPACE, &values(version, workers))?;
    wait_ready(kubeconfig)?;
    eprintln!("✓ a Slurm {version} cluster is ready ({})", shell::human(start.elapsed()));
    first_jobs(kubeconfig, workers)
}

fn values(version: &str, workers: u8) -> Value {
    let container = |daemon: &str| {
        json!({
            "image": {"repository": format!("localhost/slurm-operator/{daemon}"), "tag": version},
            "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        })
    };
    json!({
        "controller": {"slurmctld": container("slurmctld"), "persistence": {"resources": {"requests": {"storage": "1Gi"}}}},
        "restapi": {"slurmrestd": container("slurmrestd")},
        "nodesetDefaults": {"slurmd": container("slurmd")},
        "nodesets": {"cpu": {"replicas": workers}},
        "partitions": {"all": {"enabled": true}},
    })
}

/// slurmctld cannot read the state of a newer one.
fn refuse_downgrade(kubeconfig: &Path, version: &str) -> Result<()> {
    let image = ["get", "controller", NAME, "--namespace", NAMESPACE, "--output=jsonpath={.spec.slurmctld.image}"];
    let Ok(running) = kubectl(kubeconfig, &image)?.text() else { return Ok(()) };
    match running.rsplit_once(':') {
        // Year and month have two digits each, so their texts have their order.
        Some((_, newer)) if newer > version => {
            bail!("Slurm {newer} runs here and its state cannot go back to {version}: run `cargo xtask down` first")
        }
        _ => Ok(()),
    }
}

/// Waits until every object is ready, and prints what each one waits for whenever that changes.
fn wait_ready(kubeconfig: &Path) -> Result<()> {
    let mut told = BTreeMap::new();
    let waited = shell::wait_until("the Slurm cluster", LIMIT, || {
        let list = ["get", "controllers,restapis,nodesets", "--namespace", NAMESPACE, "--output=json"];
        let list: Value = serde_json::from_str(&kubectl(kubeconfig, &list)?.text()?)?;
        let objects: Vec<_> = list.get("items").and_then(Value::as_array).into_iter().flatten().map(wait_of).collect();
        for (object, wait) in &objects {
            if told.get(object) != Some(wait) {
                eprintln!("  {object}: {}", wait.as_deref().unwrap_or("ready"));
                told.insert(object.clone(), wait.clone());
            }
        }
        Ok(!objects.is_empty() && objects.iter().all(|(_, wait)| wait.is_none()))
    });
    waited.with_context(|| {
        let waiting: Vec<_> =
            told.iter().filter_map(|(object, wait)| Some(format!("  {object}: {}", wait.as_ref()?))).collect();
        format!(
            "these objects are not ready:\n{}\nLook further with\n  \
             cargo xtask cluster kubectl --namespace {NAMESPACE} get pods,events\n  \
             cargo xtask cluster kubectl --namespace slurm-operator logs deployment/slurm-operator",
            waiting.join("\n")
        )
    })
}

/// An object, and what it waits for if it is not ready.
fn wait_of(object: &Value) -> (String, Option<String>) {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let name = format!("{} {}", text("/kind"), text("/metadata/name"));
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition.get("type") == Some(&json!("Ready")));
    let Some(ready) = ready else { return (name, Some("waits for the operator".to_owned())) };
    let is_true = ready.get("status") == Some(&json!("True"));
    // The status may still be that of an older spec.
    let is_current =
        ready.get("observedGeneration").is_none_or(|seen| Some(seen) == object.pointer("/metadata/generation"));
    let wait = match (is_true, is_current) {
        (true, true) => None,
        (true, false) => Some("waits for the operator to see its new spec".to_owned()),
        (false, _) => Some(ready.get("message").and_then(Value::as_str).unwrap_or("not ready").to_owned()),
    };
    (name, wait)
}

/// Shows that jobs run: on every worker at once, and from the queue.
fn first_jobs(kubeconfig: &Path, workers: u8) -> Result<()> {
    let srun = format!("srun --nodes={workers} hostname");
    println!("\n$ {srun}\n{}", in_pod(kubeconfig, SLURMCTLD, &format!("cd /tmp; {srun}"))?.trim_end());

    // The output is on the node where the job ran: these nodes have no shared folder.
    let job = "echo \"job $SLURM_JOB_ID says hello from $(hostname)\"";
    let sbatch = format!("sbatch --wait --parsable --output=/tmp/job-%j.out --wrap='{job}'");
    let id = in_pod(kubeconfig, SLURMCTLD, &format!("cd /tmp; {sbatch}"))?;
    let id = id.trim();
    let host = in_pod(kubeconfig, SLURMCTLD, &format!("squeue --job={id} --states=all --noheader --format=%B"))?;
    let label = format!("nodeset.slinky.slurm.net/pod-hostname={}", host.trim());
    let pods = ["get", "pods", "--namespace", NAMESPACE, "--selector", &label, "--output=name"];
    let pod = kubectl(kubeconfig, &pods)?.text()?;
    let output = in_pod(kubeconfig, pod.trim(), &format!("cat /tmp/job-{id}.out"))?;
    println!("\n$ {sbatch}\n{id}\n$ cat /tmp/job-{id}.out    # on {}\n{}", host.trim(), output.trim_end());
    Ok(())
}

/// Runs a script in the main container of a pod; what it printed.
fn in_pod(kubeconfig: &Path, pod: &str, script: &str) -> Result<String> {
    kubectl(kubeconfig, &["exec", "--namespace", NAMESPACE, pod, "--", "sh", "-ec", script])?.text()
}

/// The newest REST version in what `slurmrestd -d list` prints.
fn newest_rest_version(plugins: &str) -> Option<&str> {
    let words = plugins.split(|c: char| c.is_whitespace() || c == '/' || c == ',');
    words.filter(|word| word.starts_with("v0.0.")).max()
}

/// Prints what to try next.
pub fn what_next(kubeconfig: &Path) -> Result<()> {
    let list =
        ["exec", "deployment/slurm-restapi", "--namespace", NAMESPACE, "--", "sh", "-c", "slurmrestd -d list 2>&1"];
    let plugins = kubectl(kubeconfig, &list)?.text()?;
    let rest = newest_rest_version(&plugins).context("slurmrestd lists no REST version")?;
    let service = ["get", "service", "slurm-restapi", "--namespace", NAMESPACE, "--output=jsonpath={.spec.clusterIP}"];
    let address = kubectl(kubeconfig, &service)?.text()?;
    println!(
        r#"
What to try next:

  alias k='cargo xtask cluster kubectl --namespace {NAMESPACE}'     # or: export KUBECONFIG={}
  k get controllers,restapis,nodesets,pods
  k exec {SLURMCTLD} -- sinfo

  # a third worker; then take it away again, even while a job runs there
  k scale nodeset slurm-worker-cpu --replicas=3
  k get nodeset slurm-worker-cpu --output=wide --watch

  # Slurm's REST API, with a token that the operator keeps fresh
  k apply --filename docs/examples/token.yaml && k wait --for=condition=Ready token/me
  curl --header "X-SLURM-USER-TOKEN: $(k get secret me-jwt-slurm --output='jsonpath={{.data.SLURM_JWT}}' | base64 -d)" \
    http://{address}:6820/slurm/{rest}/nodes/

  cargo xtask down                # stops the cluster and removes its data"#,
        kubeconfig.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(generation: u8, conditions: &Value) -> Value {
        json!({
            "kind": "NodeSet",
            "metadata": {"name": "slurm-worker-cpu", "generation": generation},
            "status": {"conditions": conditions},
        })
    }

    #[test]
    fn finds_the_newest_rest_version() {
        let plugins = "Possible data_parser plugins:\n data_parser/v0.0.45\n data_parser/v0.0.43\n";
        assert_eq!(newest_rest_version(plugins), Some("v0.0.45"));
        assert_eq!(newest_rest_version(""), None);
    }

    #[test]
    fn says_what_an_object_waits_for() {
        let ready =
            |status: &str| json!([{"type": "Ready", "status": status, "message": "1 of 2", "observedGeneration": 2}]);
        for (object, expected) in [
            (object(2, &ready("True")), None),
            (object(2, &ready("False")), Some("1 of 2")),
            (object(3, &ready("True")), Some("waits for the operator to see its new spec")),
            (object(2, &json!([])), Some("waits for the operator")),
        ] {
            assert_eq!(wait_of(&object), ("NodeSet slurm-worker-cpu".to_owned(), expected.map(str::to_owned)));
        }
    }
}
