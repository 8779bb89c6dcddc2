//! How the first slurmctld takes over again from a backup.
//!
//! A first slurmctld that starts asks the active backup to step down. From Slurm 25.05 on it then reads the state while the
//! backup still writes it, may find no job state, and without slurmdbd starts with no jobs at all. So its pod waits until no
//! backup writes the state any more, and the operator stops the backups. While the operator is down, the backup stays in
//! charge.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::shared::{SLURM_ID, etc_mount, not_root};
use crate::{
    config::state_folder,
    plan::{ObjectVersion, Step},
};

/// The init container that waits.
const CONTAINER: &str = "failback";

/// A pod that has waited for this long waits for an active backup. Without one it only looks for a heartbeat for some seconds.
const WAITED: SignedDuration = SignedDuration::from_secs(15);

/// The active slurmctld writes the time and its number into the file heartbeat, four times in `SlurmctldTimeout` and at least
/// every 30 seconds.
const SCRIPT: &str = r#"case $POD_NAME in *-0) ;; *) exit 0 ;; esac
trap 'exit 1' TERM
heartbeat=$STATE/heartbeat
by_backup() { [ "$(tail -c 8 "$heartbeat" 2>/dev/null | tr -d '\000' | wc -c)" -gt 0 ]; }
timeout=$(sed -n 's/^[[:space:]]*SlurmctldTimeout[[:space:]]*=[[:space:]]*\([0-9]*\).*/\1/Ip' /etc/slurm/slurm.conf | tail -n 1)
beat=$((${timeout:-120} / 4 + 2))
[ "$beat" -gt 32 ] && beat=32
silent=0 last=
while by_backup && [ "$silent" -lt "$beat" ]; do
  sleep 1 & wait $!
  now=$(cksum <"$heartbeat")
  if [ "$now" = "$last" ]; then silent=$((silent + 1)); else silent=0 last=$now; fi
  [ "$silent" = 0 ] && echo "a backup is in charge: waiting until it has stopped"
done
exit 0
"#;

/// The init container of slurmctld pods with backups. It needs sh and coreutils and sed in the image.
pub(super) fn container(image: &str, cluster: &str) -> Value {
    let state = state_folder(cluster);
    json!({
        "name": CONTAINER,
        "image": image,
        "command": ["sh", "-c", SCRIPT],
        "env": [
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "STATE", "value": state},
        ],
        "securityContext": not_root(SLURM_ID),
        "volumeMounts": [etc_mount(), {"name": "statesave", "mountPath": state, "readOnly": true}],
    })
}

/// Stops the backups for a first slurmctld that waits for them. `active` is the name of the slurmctld in charge, if it is known.
pub fn steps(pods: &[Pod], active: Option<&str>, now: Timestamp) -> Vec<Step> {
    let is_first = |pod: &Pod| pod.name_any().ends_with("-0");
    let Some(first) = pods.iter().find(|pod| is_first(pod)) else { return Vec::new() };
    let status = first.status.clone().unwrap_or_default();
    let delete = |pod: &Pod, why| Step::Delete(Box::new(ObjectVersion::of::<Pod>(pod)), why);
    if has_waited(&status, now) {
        let backups = pods.iter().filter(|pod| !is_first(pod));
        return backups.map(|pod| delete(pod, "the first slurmctld is back and takes over again")).collect();
    }
    // A container that is started again does not pass the init containers; only a new pod does.
    if active.is_some_and(|active| active != first.name_any()) && is_crashing(&status) {
        return vec![delete(first, "a backup is in charge, and slurmctld must not start beside it")];
    }
    Vec::new()
}

fn has_waited(status: &PodStatus, now: Timestamp) -> bool {
    let container = find(status.init_container_statuses.as_deref(), CONTAINER);
    let since = container.and_then(|container| container.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    since.is_some_and(|since| since.0 + WAITED <= now)
}

fn is_crashing(status: &PodStatus) -> bool {
    let container = find(status.container_statuses.as_deref(), "slurmctld");
    let waiting = container.and_then(|container| container.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    waiting == Some("CrashLoopBackOff")
}

fn find<'a>(statuses: Option<&'a [ContainerStatus]>, name: &str) -> Option<&'a ContainerStatus> {
    statuses?.iter().find(|container| container.name == name)
}
