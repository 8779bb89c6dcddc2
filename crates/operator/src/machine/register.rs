//! Makes the slurmd of a worker register with slurmctld again.
//!
//! On SIGHUP, slurmd executes itself anew and registers, and keeps all steps of jobs. slurmctld then ends the steps that it
//! does not know, so a slurmd with steps is left alone.

use std::time::Duration;

use engine::{plan::RegisterWorker, podset::AttemptResult};
use kube::Client;

use super::script::{Script, without_ports};

const WITHIN: Duration = Duration::from_secs(10);

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
    let script = Script {
        pod: &worker.pod,
        container: worker.container,
        action: "registering again",
        text: SCRIPT,
        arguments: &["register", &worker.node, "/proc"],
        within: WITHIN,
    };
    match script.run(client).await {
        Ok(output) if output.text.trim() == "asked" => AttemptResult::Asked,
        Ok(output) if output.text.trim() == "steps" => AttemptResult::HasSteps,
        Ok(output) => AttemptResult::Failed(output.errors()),
        Err(failure) => AttemptResult::Failed(without_ports(&failure.text())),
    }
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
}
