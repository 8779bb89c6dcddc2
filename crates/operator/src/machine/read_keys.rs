//! Makes slurmd or sackd read new keys of auth/slurm.
//!
//! On SIGHUP both execute themselves anew, and with that read their keys. slurmd keeps all steps of jobs.

use std::time::Duration;

use engine::plan::ReadKeys;
use kube::Client;

use super::script::Script;
use crate::failure::Failure;

/// Longer than the waiting in the script. A daemon that takes longer is asked again.
const WITHIN: Duration = Duration::from_secs(20);

/// `$1` is the program, `$2` the hash of slurm.jwks, `$3` where the kubelet brings the files, `$4` where the daemon reads them, `$5`
/// where the processes are shown.
///
/// A process that has executed itself anew has another `auxv`; its id and its start are the same. It has read its keys when it handles
/// SIGHUP again, by a handler or by waiting for it. Until then the signal would end it.
///
/// Debian's binaries are called slurmd-wlm and so on, which is their name once they have executed themselves anew. With `hostPID`, a
/// daemon of another container is not signalled. Neither are children of the daemon, which have its name until they execute something
/// else.
///
/// A sackd that does neither for a minute hangs, for example in a request to a slurmctld that has gone. It is ended, because it keeps
/// nothing, and whatever starts it in the container starts it again.
const SCRIPT: &str = r#"
program=$1 hash=$2 from=$3 etc=$4 proc=$5
wait_until() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ "$tries" -lt 40 ] || return 1
        sleep 0.1
    done
}
is_there() { [ "$(sha256sum 2>/dev/null <"$from/slurm.jwks" | cut -d ' ' -f 1)" = "$hash" ]; }
wait_until is_there || { echo waiting; exit 0; }
if [ "$from" != "$etc" ]; then
    umask 077
    for file in slurm.key slurm.jwks; do
        cp "$from/$file" "$etc/.$file" && chown --reference="$etc/$file" "$etc/.$file" && mv "$etc/.$file" "$etc/$file" || exit 1
    done
fi
# As the owner of the process: root of a container that is not privileged may not look into those of others.
as_owner() {
    if [ "$(stat -c %u "$process")" = "$(id -u)" ]; then
        "$@"
    else
        setpriv --reuid="$(stat -c %u "$process")" --regid="$(stat -c %g "$process")" --clear-groups "$@"
    fi
}
root=$(readlink "$proc/self/ns/mnt")
daemon=
for process in "$proc"/[0-9]*; do
    case $(cat "$process/comm" 2>/dev/null) in "$program" | "$program"-*) ;; *) continue ;; esac
    [ "$(as_owner readlink "$process/ns/mnt")" = "$root" ] || continue
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "$process/status")
    case $(cat "$proc/$parent/comm" 2>/dev/null) in "$program" | "$program"-*) ;; *) daemon=$process ;; esac
done
if [ -z "$daemon" ]; then
    echo "there is no process $program" >&2
    exit 1
fi
process=$daemon
age() { started=$(sed 's/.*) //' "$daemon/stat" | cut -d ' ' -f 20) && echo $(($(cut -d . -f 1 "$proc/uptime") - started / 100)); }
give_up() {
    if [ "$program" = sackd ] && [ "$(age 2>/dev/null)" -ge 60 ] 2>/dev/null; then
        for child in $(cat "$daemon/task/"*/children 2>/dev/null); do kill -KILL "$child"; done
        kill -KILL "${daemon##*/}"
        set -- "$1, and was ended"
    fi
    echo "$program $1" >&2
    exit 1
}
handles() { sed -n 's/^Sig\(Cgt\|Blk\):[[:space:]]*//p' "$daemon/status" 2>/dev/null | grep -q '[13579bdf]$'; }
wait_until handles || give_up "does not handle SIGHUP"
before=$(as_owner cksum "$daemon/auxv") || exit 1
is_new() { now=$(as_owner cksum "$daemon/auxv" 2>/dev/null) && [ "$now" != "$before" ]; }
kill -HUP "${daemon##*/}" || exit 1
wait_until is_new || give_up "has not executed itself anew"
wait_until handles || give_up "has not started again"
echo read
"#;

/// Makes a daemon read its keys. Returns false if the kubelet has not brought them yet.
pub(super) async fn read_keys(client: &Client, keys: &ReadKeys) -> Result<bool, Failure> {
    let script = Script {
        pod: &keys.pod,
        container: keys.container,
        action: "changing the keys in",
        text: SCRIPT,
        arguments: &["read-keys", keys.program, &keys.hash, keys.folder, "/etc/slurm", "/proc"],
        within: WITHIN,
    };
    let output = script.run(client).await?;
    match output.text.trim() {
        "read" => Ok(true),
        "waiting" => Ok(false),
        _ => Err(script.failed(&output)),
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

    use engine::hash::hash;

    use super::*;

    const JWKS: &str = "the keys";

    /// A pod with a daemon, for which a shell stands that has a new `auxv` after SIGHUP.
    struct Place {
        root: PathBuf,
        daemon: Child,
    }

    impl Place {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("read-keys-{name}-{}", std::process::id()));
            for folder in ["proc/self/ns", "etc", "staged"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            symlink("mnt:[1]", root.join("proc/self/ns/mnt")).unwrap();
            for (file, text) in [
                ("etc/slurm.jwks", "old"),
                ("etc/slurm.key", "old"),
                ("staged/slurm.jwks", JWKS),
                ("staged/slurm.key", "key"),
            ] {
                fs::write(root.join(file), text).unwrap();
            }
            let script = "trap 'echo new >$0' HUP; : >$0.ready; while :; do sleep 0.05; done";
            let auxv = root.join("auxv");
            // A shell cannot handle a signal that it was started to ignore, as with nohup.
            let shell = ["--default-signal=HUP", "/bin/sh", "-c", script];
            let daemon = Command::new("env").args(shell).arg(&auxv).spawn().unwrap();
            let place = Self { root, daemon };
            while !place.root.join("auxv.ready").exists() {
                std::thread::yield_now();
            }
            place
        }

        fn add(&self, id: u32, name: &str, signals: &str, root: &str, parent: u32) {
            let process = self.root.join(format!("proc/{id}"));
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            fs::write(process.join("status"), format!("PPid:\t{parent}\nSigCgt:\t{signals}\n")).unwrap();
            fs::write(self.root.join("auxv"), "old").unwrap();
            symlink(self.root.join("auxv"), process.join("auxv")).unwrap();
            symlink(root, process.join("ns/mnt")).unwrap();
        }

        fn run(&self, from: &str) -> String {
            self.run_for("slurmd", from)
        }

        fn run_for(&self, program: &str, from: &str) -> String {
            let output = Command::new("/bin/sh")
                .args(["-c", SCRIPT, "read-keys", program, &hash([("", JWKS)])])
                .args([from, "etc", "proc"].map(|folder| self.root.join(folder)))
                .output()
                .unwrap();
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap().trim().to_owned()
        }

        fn is_asked(&self) -> bool {
            fs::read_to_string(self.root.join("auxv")).unwrap() == "new\n"
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
            let _ = fs::remove_dir_all(&self.root);
        }
    }

    const HANDLES: &str = "0000000000014003";

    #[test]
    fn the_daemon_executes_itself_anew_when_the_keys_are_there() {
        for name in ["slurmd", "slurmd-wlm"] {
            let place = Place::new(name);
            let id = place.daemon.id();
            place.add(id, name, HANDLES, "mnt:[1]", 0);
            place.add(id + 1, name, HANDLES, "mnt:[1]", id);
            place.add(id + 2, name, HANDLES, "mnt:[2]", 0);
            assert_eq!((place.run("etc").as_str(), place.is_asked()), ("waiting", false));
            assert_eq!((place.run("staged").as_str(), place.is_asked()), ("read", true));
            let copied =
                ["slurm.jwks", "slurm.key"].map(|file| fs::read_to_string(place.root.join("etc").join(file)).unwrap());
            assert_eq!(copied, [JWKS, "key"]);
        }
    }

    #[test]
    fn a_daemon_that_would_end_is_not_signalled() {
        let place = Place::new("starts");
        place.add(place.daemon.id(), "slurmd", "0000000000014002", "mnt:[1]", 0);
        assert_eq!((place.run("staged").as_str(), place.is_asked()), ("slurmd does not handle SIGHUP", false));
    }

    #[test]
    fn only_a_sackd_that_hangs_for_a_minute_is_ended() {
        for (program, started, is_ended) in [("sackd", 0, true), ("sackd", 5000, false), ("slurmd", 0, false)] {
            let mut place = Place::new(&format!("hangs-{program}-{started}"));
            let id = place.daemon.id();
            place.add(id, program, "0000000000014002", "mnt:[1]", 0);
            let stat = format!("{id} (a ) name) S {}{started} 0", "0 ".repeat(18));
            fs::write(place.root.join(format!("proc/{id}/stat")), stat).unwrap();
            fs::write(place.root.join("proc/uptime"), "100.00 1.00\n").unwrap();
            let suffix = if is_ended { ", and was ended" } else { "" };
            assert_eq!(place.run_for(program, "staged"), format!("{program} does not handle SIGHUP{suffix}"));
            if is_ended {
                place.daemon.wait().unwrap();
            } else {
                assert!(place.daemon.try_wait().unwrap().is_none());
            }
        }
    }

    #[test]
    fn without_a_daemon_nothing_is_signalled() {
        let place = Place::new("none");
        place.add(place.daemon.id(), "slurmstepd", HANDLES, "mnt:[1]", 0);
        assert_eq!((place.run("staged").as_str(), place.is_asked()), ("there is no process slurmd", false));
    }
}
