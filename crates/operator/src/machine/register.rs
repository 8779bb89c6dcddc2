//! Makes the slurmd of a worker register with slurmctld again.
//!
//! On SIGHUP, slurmd executes itself anew and registers, and keeps all steps of jobs. slurmctld then ends the steps that it
//! does not know, so a slurmd with steps is left alone.

use std::time::Duration;

use engine::{plan::RegisterWorker, podset::AttemptResult};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::failure::call;

/// A kubelet that does not respond in this time is tried again later.
const WITHIN: Duration = Duration::from_secs(10);

/// The most that is read of the output.
const MAX_OUTPUT: u64 = 4096;

/// `$1` is the name of the node, `$2` where the processes are shown.
///
/// Any slurmstepd counts as a step, except for the one that only keeps a cgroup. `scontrol listjobs` is not asked: it reports no
/// steps if it cannot read the spool directory, and the sockets of steps that were killed as steps.
///
/// Debian's binaries are called slurmd-wlm and slurmstepd-wlm, which is their name once slurmd has executed itself anew.
///
/// With `hostPID`, a slurmd of another container is not signalled. Neither are children of slurmd, which have its name until they
/// execute something else.
const SCRIPT: &str = r#"
proc=$2
root=$(readlink "$proc/self/ns/mnt")
slurmd=
for process in "$proc"/[0-9]*; do
    name=$(cat "$process/comm" 2>/dev/null)
    arguments=$(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)
    case $name in
    slurmstepd | slurmstepd-*)
        # Without arguments it has ended.
        case $arguments in '' | *" infinity ") ;; *) echo steps; exit 0 ;; esac
        ;;
    slurmd | slurmd-*)
        [ "$(readlink "$process/ns/mnt")" = "$root" ] || continue
        case $arguments in *" -N $1 "*) ;; *" -N "*) continue ;; esac
        parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$process/status")
        case $(cat "$proc/$parent/comm" 2>/dev/null) in slurmd | slurmd-*) ;; *) slurmd=${process##*/} ;; esac
        ;;
    esac
done
if [ -z "$slurmd" ]; then
    echo "there is no process slurmd for the node $1" >&2
    exit 1
fi
kill -HUP "$slurmd" && echo asked
"#;

/// Asks slurmd to register again, unless steps of jobs run there.
pub(super) async fn register(client: &Client, worker: &RegisterWorker) -> AttemptResult {
    let (namespace, name) = (worker.pod.namespace.as_deref().unwrap_or_default(), worker.pod.name.as_str());
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = AttachParams::default().container(worker.container).stdout(true).stderr(true);
    let command = ["/bin/sh", "-c", SCRIPT, "register", worker.node.as_str(), "/proc"];
    let title = || format!("Pod {namespace}/{name}");
    let output = async {
        let process = call("running a command in", title, pods.exec(name, command, &params)).await;
        Ok::<_, String>(read(process.map_err(|failure| failure.text())?).await)
    };
    match tokio::time::timeout(WITHIN, output).await {
        Ok(Ok((output, _))) if output.trim() == "asked" => AttemptResult::Asked,
        Ok(Ok((output, _))) if output.trim() == "steps" => AttemptResult::HasSteps,
        Ok(Ok((_, errors))) => AttemptResult::Failed(without_ports(errors.trim())),
        Ok(Err(failure)) => AttemptResult::Failed(without_ports(&failure)),
        Err(_) => AttemptResult::Failed("the kubelet did not respond in time".to_owned()),
    }
}

/// What the command writes: output and errors. If it could not be run, the kubelet says why.
pub(super) async fn read(mut process: AttachedProcess) -> (String, String) {
    let (stdout, stderr, status) = (process.stdout(), process.stderr(), process.take_status());
    let (output, errors) = tokio::join!(text(stdout), text(stderr));
    if !errors.is_empty() || !output.is_empty() {
        return (output, errors);
    }
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    (output, status.and_then(|status| status.message).unwrap_or_default())
}

async fn text(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was read before an error is enough for a message.
        let _ = stream.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Removes the numbers of ports: they differ in each attempt, and a status that differs is written.
pub(super) fn without_ports(text: &str) -> String {
    let mut parts = text.split(':');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        if digits < 4 { text + ":" + part } else { text + part.get(digits..).unwrap_or_default() }
    })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::symlink,
        path::PathBuf,
        process::{Child, Command},
    };

    use super::*;

    /// Processes as they are shown in `/proc`. A real process stands for slurmd.
    struct Processes {
        proc: PathBuf,
        slurmd: Child,
    }

    impl Processes {
        fn new(name: &str) -> Self {
            let proc = std::env::temp_dir().join(format!("register-{name}-{}", std::process::id()));
            fs::create_dir_all(proc.join("self/ns")).unwrap();
            symlink("mnt:[1]", proc.join("self/ns/mnt")).unwrap();
            // As from a terminal: nohup makes all programs ignore SIGHUP.
            let slurmd = Command::new("env").args(["--default-signal=HUP", "sleep", "60"]).spawn().unwrap();
            Self { proc, slurmd }
        }

        fn add(&self, id: u32, name: &str, arguments: &[&str], root: &str, parent: u32) {
            let process = self.proc.join(id.to_string());
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            fs::write(process.join("cmdline"), arguments.iter().flat_map(|word| [*word, "\0"]).collect::<String>())
                .unwrap();
            fs::write(process.join("status"), format!("Name:\t{name}\nPPid:\t{parent}\n")).unwrap();
            symlink(root, process.join("ns/mnt")).unwrap();
        }

        /// The output for the node `gpu-0`, and whether slurmd was signalled.
        fn run(mut self) -> (String, bool) {
            let output =
                Command::new("/bin/sh").args(["-c", SCRIPT, "register", "gpu-0"]).arg(&self.proc).output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            let asked = text.trim() == "asked";
            if !asked {
                self.slurmd.kill().unwrap();
            }
            let status = self.slurmd.wait().unwrap();
            fs::remove_dir_all(&self.proc).unwrap();
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            (text.trim().to_owned(), signal == Some(1))
        }
    }

    const SLURMD: [&str; 6] = ["/usr/sbin/slurmd", "-D", "-Z", "--conf", "Feature=gpu", "-N"];

    fn named(name: &str) -> Vec<&str> {
        SLURMD.into_iter().chain([name]).collect()
    }

    #[test]
    fn a_slurmd_without_steps_is_signalled() {
        let processes = Processes::new("idle");
        let id = processes.slurmd.id();
        processes.add(id, "slurmd", &named("gpu-0"), "mnt:[1]", 0);
        // A child that has not executed its program yet, one that has ended, and the one that keeps a cgroup.
        processes.add(id + 1, "slurmd", &named("gpu-0"), "mnt:[1]", id);
        processes.add(id + 2, "slurmstepd", &[], "mnt:[1]", id);
        processes.add(id + 3, "slurmstepd", &["/usr/sbin/slurmstepd", "infinity"], "mnt:[1]", id);
        // With hostPID: those of other containers.
        processes.add(id + 4, "slurmd", &named("gpu-1"), "mnt:[1]", 0);
        processes.add(id + 5, "slurmd", &["slurmd", "-D"], "mnt:[2]", 0);
        assert_eq!(processes.run(), ("asked".to_owned(), true));
    }

    #[test]
    fn a_slurmd_that_has_executed_itself_anew_is_found() {
        let processes = Processes::new("again");
        let id = processes.slurmd.id();
        processes.add(id, "slurmd-wlm", &named("gpu-0"), "mnt:[1]", 0);
        processes.add(id + 1, "slurmd-wlm", &named("gpu-0"), "mnt:[1]", id);
        assert_eq!(processes.run(), ("asked".to_owned(), true));
        let processes = Processes::new("again-busy");
        let id = processes.slurmd.id();
        processes.add(id, "slurmd-wlm", &named("gpu-0"), "mnt:[1]", 0);
        processes.add(id + 1, "slurmstepd-wlm", &["slurmstepd:", "[17.batch]"], "mnt:[1]", id);
        assert_eq!(processes.run(), ("steps".to_owned(), false));
    }

    #[test]
    fn a_slurmd_with_a_step_is_left_alone() {
        for root in ["mnt:[1]", "mnt:[7]"] {
            let processes = Processes::new("busy");
            let id = processes.slurmd.id();
            processes.add(id, "slurmd", &named("gpu-0"), "mnt:[1]", 0);
            // A step may have a file system of its own.
            processes.add(id + 1, "slurmstepd", &["slurmstepd:", "[17.batch]"], root, id);
            assert_eq!(processes.run(), ("steps".to_owned(), false));
        }
    }

    #[test]
    fn only_the_slurmd_of_the_node_is_signalled() {
        let processes = Processes::new("other");
        processes.add(processes.slurmd.id(), "slurmd", &named("gpu-00"), "mnt:[1]", 0);
        let (text, asked) = processes.run();
        assert!(!asked && text == "there is no process slurmd for the node gpu-0", "{text}");
        // Without a name, as in the pods of the Go operator.
        let processes = Processes::new("nameless");
        processes.add(processes.slurmd.id(), "slurmd", &["slurmd", "-D", "-Z"], "mnt:[1]", 0);
        assert_eq!(processes.run(), ("asked".to_owned(), true));
    }

    #[test]
    fn messages_have_no_ports() {
        let text = "read tcp 10.0.0.1:43210->10.0.0.2:10250: i/o timeout at 12:30";
        assert_eq!(without_ports(text), "read tcp 10.0.0.1->10.0.0.2: i/o timeout at 12:30");
    }
}
