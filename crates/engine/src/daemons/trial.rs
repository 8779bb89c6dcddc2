//! The trial of a configuration: a pod with a slurmctld and one slurmd of each kind that read it before those of the cluster do.
//!
//! In the foreground, as in every pod, Slurm has no way back: a daemon that cannot read its files ends, and slurmd with its jobs. The
//! trial has keys of its own, so that every real daemon refuses it, and no name resolution.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt;
use serde_json::{Value, json};
use slurm::version::SlurmVersion;
use slurm_operator_api::common::{
    port,
    template::{Overlay, PodTemplate},
};

use super::{
    pods::pod_problem,
    shared::{Daemon, ETC, Parent, SLURM_ID, SLURMCTLD, SLURMD, desired, memory_volume, not_root},
    slurmctld::file_fields,
};
use crate::{
    config::{TRIAL_FOLDER, TRIAL_HOST, TrialFiles},
    overlay::{self, Fields, OverlayError},
    plan::Desired,
};

/// The labels of trials. No Service, disruption budget or store selects them.
pub const TRIAL: Daemon = Daemon { program: "slurm-trial", component: "trial" };

/// How long a trial may take, with pulling its images, in seconds.
const DEADLINE: u32 = 600;

/// A pod that has not started after this time needs help. Large images take long.
const STARTED_WITHIN: SignedDuration = SignedDuration::from_mins(3);

/// The port of the first slurmd.
const FIRST_PORT: usize = 26818;

/// The daemon ended.
const FAILED: i32 = 1;

/// slurmctld did not answer in time, or slurmd did not register.
const LATE: i32 = 2;

/// Another daemon failed.
const OTHER: i32 = 3;

/// What the place of the trial lacks, in the words of Slurm. Real workers may have it.
const PLACE: &[&str] = &[
    "can't stat gres.conf file",
    "nvml",
    "rsmi",
    "oneapi",
    "no space left on device",
    "cannot allocate memory",
    "cgroup filesystem not mounted",
];

/// How much of Slurm's last words is shown.
const MAX_WORDS: usize = 400;

/// The trial of a configuration.
#[derive(Clone, Debug)]
pub struct Trial<'a> {
    pub parent: Parent,
    /// Names the trial: a hash of the files and the images.
    pub hash: &'a str,
    pub files: &'a TrialFiles,
    /// slurmctld.
    pub slurmctld: Program<'a>,
    /// slurmd of each set of workers.
    pub slurmd: Vec<Program<'a>>,
}

/// A daemon as users have described it.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    pub image: &'a str,
    pub container: &'a Overlay,
    pub template: &'a PodTemplate,
}

/// The name of the pod and the `ConfigMap`.
pub fn name(parent: &Parent, hash: &str) -> String {
    let hash: String = hash.chars().take(10).collect();
    format!("{}-trial-{hash}", (parent.vocabulary.name.slurmctld)(&parent.name))
}

/// The files of the trial.
pub fn config_map(trial: &Trial) -> Desired {
    let metadata = trial.parent.metadata(name(&trial.parent, trial.hash), TRIAL, &[]);
    desired::<ConfigMap>(metadata, file_fields(&trial.files.files))
}

/// Starts slurmctld, and succeeds when all nodes in `$@` have registered. Its last words are the message of the container.
const SLURMCTLD_SCRIPT: &str = r#"umask 077
cd /trial || exit 9
trap ': >done' EXIT
mkdir -p state /run/slurmctld && cp -L /candidate/* /etc/slurm/ || exit 9
head -c 1024 /dev/urandom >/etc/slurm/slurm.key
head -c 1024 /dev/urandom >/etc/slurm/jwt.key
cp /etc/slurm/slurm.key slurm.key
slurmctld -D >slurmctld.log 2>&1 &
pid=$!
left=300
words() { sed -n 's/^\[[^]]*\] //; s/^slurm[^ ]*: //; /\(fatal\|error\): /p' slurmctld.log | grep -v MailProg | tail -n 4 >/dev/termination-log; }
while kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
    if [ ! -e up ]; then
        scontrol ping >/dev/null 2>&1 && : >up
        left=$((left - 1))
        [ "$left" -gt 0 ] || { words; exit 2; }
        continue
    fi
    for node in "$@"; do
        [ ! -e "$node.failed" ] || exit 3
    done
    for node in "$@"; do
        scontrol show node "$node" 2>/dev/null | grep -q Version= || continue 2
    done
    for node in "$@"; do
        scontrol show node "$node" | sed -n 's/.*Version=\([^ ]*\).*/\1/p'
    done >/dev/termination-log
    exit 0
done
words
exit 1
"#;

/// Starts slurmd, and ends with it. `$1` is the name of the node, `$2` its port, `$3` that of slurmctld; the others are devices.
const SLURMD_SCRIPT: &str = r#"cd /trial || exit 9
node=$1 port=$2 server=$3
shift 3
while [ ! -e up ]; do
    [ ! -e done ] || exit 0
    sleep 0.1
done
cp slurm.key /etc/slurm/slurm.key && chmod 600 /etc/slurm/slurm.key || exit 9
for device in "$@"; do
    [ -e "$device" ] || { mkdir -p "${device%/*}" && : >"$device"; }
done
mkdir -p "$node" /run/slurm
slurmd -D -Z -N "$node" --conf "Port=$port" --conf-server "127.0.0.1:$server" >"$node.log" 2>&1 &
pid=$!
left=600
while kill -0 "$pid" 2>/dev/null; do
    [ ! -e done ] || exit 0
    left=$((left - 1))
    [ "$left" -gt 0 ] || break
    sleep 0.1
done
sed -n 's/^\[[^]]*\] //; s/^slurm[^ ]*: //; /\(fatal\|error\): /p' "$node.log" | grep -v 'GPU detection\|Cannot find slurmd' | tail -n 4 >/dev/termination-log
: >"$node.failed"
[ "$left" -gt 0 ] && exit 1
exit 2
"#;

/// The pod.
pub fn pod(trial: &Trial) -> Result<Desired, OverlayError> {
    let parent = &trial.parent;
    let name = name(parent, trial.hash);
    let mut volumes = vec![
        json!({"name": "candidate", "configMap": {"name": name, "defaultMode": 0o755}}),
        json!({"name": "slurm-etc", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "trial", "emptyDir": {}}),
        memory_volume("run"),
    ];
    let mut slurmd: Vec<Value> = Vec::new();
    let mut programs = vec![trial.slurmctld];
    let mut kinds = Vec::new();
    for program in &trial.slurmd {
        let kind = slurmd_container(trial, program, 0)?;
        if kinds.contains(&kind) {
            continue;
        }
        kinds.push(kind);
        let (container, own_volumes) = slurmd_container(trial, program, slurmd.len())?;
        volumes.extend(own_volumes);
        slurmd.push(container);
        programs.push(*program);
    }
    let nodes = (0..slurmd.len()).map(node_name);
    let (slurmctld, own_volumes) = slurmctld_container(trial, nodes)?;
    volumes.extend(own_volumes);
    let containers: Vec<Value> = std::iter::once(slurmctld).chain(slurmd).collect();
    let spec = json!({
        "activeDeadlineSeconds": DEADLINE,
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [near_workers(parent)]}},
        "automountServiceAccountToken": false,
        "containers": containers,
        // It knows only itself, so that it reaches nothing by name.
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "dnsPolicy": "None",
        "enableServiceLinks": false,
        "hostname": TRIAL_HOST,
        "imagePullSecrets": listed(&programs, "imagePullSecrets"),
        "restartPolicy": "Never",
        "securityContext": {"fsGroup": SLURM_ID},
        "terminationGracePeriodSeconds": 1,
        "tolerations": tolerations(parent, &programs),
        "volumes": volumes,
    });
    Ok(desired::<Pod>(parent.metadata(name, TRIAL, &[]), json!({ "spec": spec })))
}

fn node_name(number: usize) -> String {
    format!("{}-{number}", SLURMD.program)
}

fn slurmctld_container(
    trial: &Trial,
    nodes: impl Iterator<Item = String>,
) -> Result<(Value, Vec<Value>), OverlayError> {
    let base = json!({
        "name": SLURMCTLD.program,
        "command": ["sh", "-c", SLURMCTLD_SCRIPT, SLURMCTLD.program],
        "args": nodes.collect::<Vec<_>>(),
        "resources": resources(),
        "securityContext": not_root(SLURM_ID),
        "volumeMounts": [
            {"name": "candidate", "mountPath": "/candidate", "readOnly": true},
            {"name": "slurm-etc", "mountPath": ETC, "subPath": SLURMCTLD.program},
            {"name": "trial", "mountPath": TRIAL_FOLDER},
            {"name": "run", "mountPath": "/run"},
        ],
    });
    described(base, &trial.slurmctld, SLURMCTLD, "user", "spec.slurmctld")
}

/// The slurmd of a set of workers.
fn slurmd_container(trial: &Trial, program: &Program, number: usize) -> Result<(Value, Vec<Value>), OverlayError> {
    let node = node_name(number);
    let mut args = vec![node.clone(), (FIRST_PORT + number).to_string(), port::SLURMCTLD.to_string()];
    args.extend(trial.files.devices.iter().cloned());
    let base = json!({
        "name": node,
        "command": ["sh", "-c", SLURMD_SCRIPT, SLURMD.program],
        "args": args,
        "resources": resources(),
        "securityContext": {
            "privileged": true,
            "capabilities": {"add": ["BPF", "NET_ADMIN", "SYS_ADMIN", "SYS_NICE"]},
        },
        "volumeMounts": [
            {"name": "slurm-etc", "mountPath": ETC, "subPath": node},
            {"name": "trial", "mountPath": TRIAL_FOLDER},
        ],
    });
    described(base, program, SLURMD, &format!("user-{number}"), "spec.slurmd")
}

/// Small: they run for seconds.
fn resources() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "64Mi"}})
}

/// What a trial takes of the user's description of a container.
const DESCRIBED: &[&str] = &["env", "envFrom", "image", "imagePullPolicy", "securityContext"];

/// Merges what users say about a container into that of the trial. Returns it with the user's volumes that it mounts.
fn described(
    mut base: Value,
    program: &Program,
    daemon: Daemon,
    prefix: &str,
    path: &str,
) -> Result<(Value, Vec<Value>), OverlayError> {
    for fields in descriptions(program, daemon) {
        let taken = fields.iter().filter(|(key, _)| DESCRIBED.contains(&key.as_str()));
        let taken: Fields = taken.map(|(key, value)| (key.clone(), value.clone())).collect();
        base = overlay::container(base, &taken, path)?;
    }
    let (mounts, volumes) = user_volumes(program, daemon, prefix);
    if let Some(all) = base.get_mut("volumeMounts").and_then(Value::as_array_mut) {
        all.extend(mounts);
    }
    Ok((base, volumes))
}

/// Where users describe a container: in its own field, and in the template of the pod.
fn descriptions<'a>(program: &Program<'a>, daemon: Daemon) -> impl Iterator<Item = &'a Fields> {
    let in_template = program.template.spec.fields().get("containers").and_then(Value::as_array).into_iter().flatten();
    let in_template = in_template.filter(move |container| container["name"] == daemon.program);
    std::iter::once(program.container.fields()).chain(in_template.filter_map(Value::as_object))
}

/// The user's mounts in a daemon, such as plugins of Slurm, and their volumes. Nothing can be changed through them.
fn user_volumes(program: &Program, daemon: Daemon, prefix: &str) -> (Vec<Value>, Vec<Value>) {
    let (mut mounts, mut volumes): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    let defined = program.template.spec.fields().get("volumes").and_then(Value::as_array);
    let wanted = descriptions(program, daemon).filter_map(|fields| fields.get("volumeMounts")?.as_array()).flatten();
    for mount in wanted {
        // The claims of `volumeClaimTemplates` belong to one worker, and so does an ephemeral one.
        let is_it = |volume: &&Value| volume["name"] == mount["name"] && volume.get("ephemeral").is_none();
        let Some(volume) = defined.into_iter().flatten().find(is_it) else { continue };
        let path = mount["mountPath"].as_str().unwrap_or_default();
        if [TRIAL_FOLDER, ETC, "/run"].contains(&path.trim_end_matches('/')) {
            continue;
        }
        let name = format!("{prefix}-{}", mount["name"].as_str().unwrap_or_default());
        let (mut mount, mut volume) = (mount.clone(), volume.clone());
        if let (Some(mount), Some(volume)) = (mount.as_object_mut(), volume.as_object_mut()) {
            mount.insert("name".to_owned(), json!(name));
            mount.remove("mountPropagation");
            if !volume.contains_key("emptyDir") {
                mount.insert("readOnly".to_owned(), json!(true));
            }
            volume.insert("name".to_owned(), json!(name));
        }
        mounts.push(mount);
        if !volumes.contains(&volume) {
            volumes.push(volume);
        }
    }
    (mounts, volumes)
}

/// Where workers run are their images, and what they mount.
fn near_workers(parent: &Parent) -> Value {
    let (worker, value) = parent.vocabulary.worker_label;
    let labels = json!({worker: value, parent.vocabulary.label.cluster: parent.name});
    let term = json!({"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"});
    json!({"weight": 100, "podAffinityTerm": term})
}

fn tolerations(parent: &Parent, programs: &[Program]) -> Vec<Value> {
    let mut all = vec![json!({"key": parent.vocabulary.worker_taint, "operator": "Exists", "effect": "NoExecute"})];
    all.extend(listed(programs, "tolerations"));
    all
}

/// The items of a list in all templates, each once.
fn listed(programs: &[Program], field: &str) -> Vec<Value> {
    let mut found: Vec<Value> = Vec::new();
    for program in programs {
        for item in program.template.spec.fields().get(field).and_then(Value::as_array).into_iter().flatten() {
            if !found.contains(item) {
                found.push(item.clone());
            }
        }
    }
    found
}

/// How far a trial is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not known yet.
    Trying,
    /// Slurm has read the files. `slurmd` are the releases of slurmd that have.
    Passed { slurmd: BTreeSet<SlurmVersion> },
    /// Slurm refuses the files; the text has its words.
    Refused(String),
    /// The trial cannot be made there, which says nothing about the files.
    Impossible(String),
}

/// What came of a trial.
pub fn verdict(pod: &Pod, now: Timestamp) -> Verdict {
    let status = pod.status.clone().unwrap_or_default();
    let containers = status.container_statuses.unwrap_or_default();
    let ended = |container: &ContainerStatus| container.state.as_ref()?.terminated.clone();
    let slurmctld = containers.iter().find(|container| container.name == SLURMCTLD.program);
    if let Some(ended) = slurmctld.and_then(ended).filter(|ended| ended.exit_code == 0) {
        let versions = ended.message.as_deref().unwrap_or_default().lines().filter_map(|line| line.trim().parse().ok());
        let slurmd = versions.map(|version: SlurmVersion| SlurmVersion { micro: None, ..version }).collect();
        return Verdict::Passed { slurmd };
    }
    for container in &containers {
        let Some(ended) = ended(container) else { continue };
        match ended.exit_code {
            0 | OTHER => {}
            FAILED => return refused(container, &ended),
            LATE => return Verdict::Impossible(format!("{} did not start in time{}", at(container), words(&ended))),
            // Kubernetes has stopped it, or its program was not found.
            code => {
                let why = status.reason.unwrap_or_else(|| format!("exit code {code}"));
                return Verdict::Impossible(format!("{} has ended: {why}{}", at(container), words(&ended)));
            }
        }
    }
    let reason = status.reason.unwrap_or_default();
    let stuck = pod_problem(pod, now).filter(|problem| problem.is_stuck);
    let is_old = pod.creation_timestamp().is_some_and(|created| now > created.0 + STARTED_WITHIN);
    match status.phase.as_deref() {
        Some("Failed") => Verdict::Impossible(format!("{reason}: {}", status.message.unwrap_or_default())),
        // The words of the others are about to come.
        _ if containers.iter().any(|container| ended(container).is_some()) => Verdict::Trying,
        _ if stuck.is_some() => Verdict::Impossible(stuck.map(|problem| problem.text).unwrap_or_default()),
        // Its node may be gone.
        Some("Pending") if is_old => Verdict::Impossible(format!("the pod {} has not started yet", pod.name_any())),
        _ => Verdict::Trying,
    }
}

/// When a trial ended.
pub fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ended = containers.iter().filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    ended.filter_map(|ended| ended.finished_at.as_ref().map(|time| time.0)).min()
}

fn refused(container: &ContainerStatus, ended: &ContainerStateTerminated) -> Verdict {
    let text = words(ended);
    if text.is_empty() {
        return Verdict::Impossible(format!("{} ended without a word", at(container)));
    }
    let lower = text.to_lowercase();
    let message = format!("{} does not start with it{text}", at(container));
    if PLACE.iter().any(|place| lower.contains(place)) {
        Verdict::Impossible(message)
    } else {
        Verdict::Refused(message)
    }
}

/// A daemon of the trial, for messages.
fn at(container: &ContainerStatus) -> String {
    let program = if container.name == SLURMCTLD.program { SLURMCTLD.program } else { SLURMD.program };
    format!("{program} of {}", container.image)
}

/// The last words of a daemon.
fn words(ended: &ContainerStateTerminated) -> String {
    let message = ended.message.as_deref().unwrap_or_default();
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!(": {}", lines.join("; ").chars().take(MAX_WORDS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use slurm_operator_api::slinky::{Controller, VOCABULARY};

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn overlay(value: &Value) -> Overlay {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn parent() -> Parent {
        let object: Controller = serde_json::from_value(json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Controller",
            "metadata": {"name": "lab", "namespace": "slurm", "uid": "u"}, "spec": {},
        }))
        .unwrap();
        Parent::of(&object, &VOCABULARY)
    }

    /// The pod of a trial of slurmctld and these slurmd, each with its pod spec.
    fn made(slurmctld: &Value, slurmd: &[(Value, Value)]) -> Value {
        let template = |spec: &Value| serde_json::from_value::<PodTemplate>(json!({ "spec": spec })).unwrap();
        let all: Vec<(Overlay, PodTemplate)> =
            slurmd.iter().map(|(container, spec)| (overlay(container), template(spec))).collect();
        let (container, none) = (overlay(slurmctld), PodTemplate::default());
        let program =
            |(container, template): &'static (Overlay, PodTemplate)| Program { image: "", container, template };
        let files = TrialFiles { devices: ["/dev/nvidia0".to_owned()].into(), ..TrialFiles::default() };
        let slurmd: &'static [(Overlay, PodTemplate)] = Box::leak(all.into_boxed_slice());
        let trial = Trial {
            parent: parent(),
            hash: "0123456789abcdef",
            files: &files,
            slurmctld: Program { image: "", container: &container, template: &none },
            slurmd: slurmd.iter().map(program).collect(),
        };
        serde_json::to_value(pod(&trial).unwrap().object).unwrap()
    }

    fn item<'a>(list: &'a Value, name: &str) -> &'a Value {
        list.as_array().unwrap().iter().find(|item| item["name"] == name).unwrap_or(&Value::Null)
    }

    #[test]
    fn nothing_selects_the_pod_and_it_reaches_nothing() {
        let pod = made(&json!({"image": "slurmctld:26.05"}), &[(json!({"image": "slurmd:26.05"}), json!({}))]);
        assert_eq!(pod["metadata"]["name"], "lab-controller-trial-0123456789");
        let labels = &pod["metadata"]["labels"];
        for daemon in [SLURMCTLD, SLURMD] {
            assert_ne!(labels["app.kubernetes.io/name"], daemon.program);
        }
        assert_eq!(labels.get(VOCABULARY.label.cluster), None);
        assert_eq!(labels.get(VOCABULARY.label.pod_protect), None);
        let spec = &pod["spec"];
        assert_eq!((&spec["dnsPolicy"], &spec["hostname"]), (&json!("None"), &json!("trial")));
        assert_eq!((&spec["restartPolicy"], &spec["automountServiceAccountToken"]), (&json!("Never"), &json!(false)));
        assert!(!spec.to_string().contains("secret"), "it has keys of its own: {spec}");
        let slurmctld = item(&spec["containers"], "slurmctld");
        assert_eq!((&slurmctld["args"], &slurmctld["image"]), (&json!(["slurmd-0"]), &json!("slurmctld:26.05")));
        assert_eq!(slurmctld["securityContext"]["runAsUser"], 401);
        let slurmd = item(&spec["containers"], "slurmd-0");
        assert_eq!(slurmd["args"], json!(["slurmd-0", "26818", "6817", "/dev/nvidia0"]));
        assert_eq!(slurmd["securityContext"]["privileged"], true);
    }

    #[test]
    fn each_kind_of_slurmd_is_tried_once_with_what_it_mounts() {
        let mounts = json!([
            {"name": "plugins", "mountPath": "/opt/spank", "mountPropagation": "Bidirectional"},
            {"name": "home", "mountPath": "/home"}, {"name": "own", "mountPath": "/etc/slurm/"},
        ]);
        let container = json!({
            "image": "a", "volumeMounts": mounts, "env": [{"name": "A", "value": "1"}], "args": ["-vvv"],
            "resources": {"limits": {"nvidia.com/gpu": 8}}, "lifecycle": {"preStop": {}},
        });
        let spec = json!({
            "volumes": [
                {"name": "plugins", "hostPath": {"path": "/opt/spank"}}, {"name": "own", "emptyDir": {}},
                {"name": "home", "persistentVolumeClaim": {"claimName": "home"}},
            ],
            "tolerations": [{"key": "gpu"}], "imagePullSecrets": [{"name": "s"}], "hostNetwork": true,
            "containers": [{"name": "slurmd", "securityContext": {"privileged": false}}],
        });
        let other = json!({"image": "b"});
        let pod =
            made(&json!({"image": "c"}), &[(container.clone(), spec.clone()), (other, json!({})), (container, spec)]);
        let spec = &pod["spec"];
        let containers = spec["containers"].as_array().unwrap();
        assert_eq!(containers.iter().map(|container| &container["image"]).collect::<Vec<_>>(), ["c", "a", "b"]);
        assert_eq!(containers[0]["args"], json!(["slurmd-0", "slurmd-1"]));
        assert_eq!(containers[2]["args"][1], "26819");
        let first = &containers[1];
        assert_eq!(item(&first["env"], "A")["value"], "1");
        assert_eq!((&first["securityContext"]["privileged"], &first["lifecycle"]), (&json!(false), &Value::Null));
        assert!(!pod.to_string().contains("nvidia.com"), "it holds no GPU");
        assert_eq!(
            item(&first["volumeMounts"], "user-0-plugins"),
            &json!({"name": "user-0-plugins", "mountPath": "/opt/spank", "readOnly": true})
        );
        assert_eq!(item(&first["volumeMounts"], "user-0-home")["readOnly"], true);
        assert_eq!(first["volumeMounts"].as_array().unwrap().len(), 4, "{first}");
        assert_eq!(item(&spec["volumes"], "user-0-plugins")["hostPath"]["path"], "/opt/spank");
        assert_eq!(spec["volumes"].as_array().unwrap().len(), 6);
        assert_eq!(spec["imagePullSecrets"], json!([{"name": "s"}]));
        assert_eq!((spec.get("hostNetwork"), spec["tolerations"][1]["key"].as_str()), (None, Some("gpu")));
    }

    /// What came of a trial with this status, seconds after it was created.
    fn came(status: &Value, seconds: i64) -> Verdict {
        let pod = json!({
            "metadata": {"name": "t", "creationTimestamp": (NOW - SignedDuration::from_secs(seconds)).to_string()},
            "status": status,
        });
        verdict(&serde_json::from_value(pod).unwrap(), NOW)
    }

    fn container(name: &str, state: &Value) -> Value {
        json!({"name": name, "image": "i:1", "imageID": "", "ready": false, "restartCount": 0, "state": state})
    }

    fn ended(name: &str, code: i32, message: &str) -> Value {
        container(name, &json!({"terminated": {"exitCode": code, "message": message}}))
    }

    #[test]
    fn errors_of_the_file_are_told_from_errors_of_the_place() {
        let of = |containers: &[Value]| came(&json!({"phase": "Running", "containerStatuses": containers}), 60);
        let slurmd = BTreeSet::from([SlurmVersion::new(26, 5)]);
        assert_eq!(
            of(&[ended("slurmctld", 0, "26.05.5\n26.05.3\n"), ended("slurmd-0", 137, "")]),
            Verdict::Passed { slurmd }
        );
        let words = "error: \"maybe\" is not a valid option\nfatal: Could not parse cgroup.conf\n";
        assert_eq!(
            of(&[ended("slurmctld", 1, words), container("slurmd-0", &json!({"running": {}}))]),
            Verdict::Refused(
                "slurmctld of i:1 does not start with it: error: \"maybe\" is not a valid option; fatal: Could not parse cgroup.conf"
                    .to_owned()
            )
        );
        // slurmctld has seen it, and the words of slurmd are not here yet.
        let running = container("slurmd-0", &json!({"running": {}}));
        assert_eq!(of(&[ended("slurmctld", 3, ""), running.clone()]), Verdict::Trying);
        let of_place = [
            ended("slurmd-0", 1, "fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory"),
            ended("slurmd-0", 1, ""),
            ended("slurmd-0", 2, "error: x"),
            container("slurmd-0", &json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}})),
        ];
        for slurmd in of_place {
            let verdict = of(&[container("slurmctld", &json!({"running": {}})), slurmd.clone()]);
            assert!(matches!(verdict, Verdict::Impossible(_)), "{slurmd}: {verdict:?}");
        }
        assert_eq!(of(&[running]), Verdict::Trying);
    }

    #[test]
    fn a_pod_that_cannot_run_says_nothing_about_the_files() {
        let unscheduled = json!({"type": "PodScheduled", "status": "False", "message": "no room"});
        let pending = json!({"phase": "Pending", "conditions": [unscheduled]});
        assert_eq!(came(&pending, 5), Verdict::Trying);
        assert!(matches!(came(&pending, 60), Verdict::Impossible(why) if why.contains("no room")));
        assert_eq!(came(&json!({"phase": "Pending"}), 60), Verdict::Trying);
        assert!(matches!(came(&json!({"phase": "Pending"}), 200), Verdict::Impossible(why) if why.contains("pod t")));
        let evicted = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long"});
        assert_eq!(came(&evicted, 60), Verdict::Impossible("DeadlineExceeded: too long".to_owned()));
        let lost =
            json!({"phase": "Failed", "containerStatuses": [ended("slurmctld", 127, "sh: slurmctld: not found")]});
        assert!(matches!(came(&lost, 60), Verdict::Impossible(why) if why.contains("127")));
    }
}
