//! Makes slurmctld reread its configuration.
//!
//! slurmctld answers a reconfigure before it executes itself anew, so the answer proves nothing: it has reread its files when it
//! reports a new start. It then sends them to every slurmd.

use std::time::Duration;

use engine::plan::RereadFiles;
use kube::Client;

use super::script::Script;
use crate::failure::Failure;

/// Longer than the waiting in the script. A slurmctld with many jobs is asked again later.
const WITHIN: Duration = Duration::from_secs(25);

/// `$1` is the hash of the files, `$2` the name of the change, `$3` where the files are, and `$4` where a note is left.
///
/// The note has when slurmctld had started before it was asked: a slurmctld that takes long is not asked again and again.
const SCRIPT: &str = r#"
export LC_ALL=C SLURM_TIME_FORMAT=%s
note=$4/slurm-config-asked
# The kubelet replaces this folder as a whole. Keys are not configuration.
sums() {
    cd "$etc/..data/" || return
    for file in *; do
        case $file in jwks.json | jwt.key | ring | slurm.jwks | slurm.key) ;; *) sha256sum "$file" ;; esac
    done
}
started() { timeout 10 scontrol show config | sed -n 's/^BOOT_TIME *= *//p'; }
are_there() { [ "$(sums | sha256sum | cut -d ' ' -f 1)" = "$1" ]; }
etc=$3
tries=0
until are_there "$1"; do
    tries=$((tries + 1))
    [ "$tries" -lt 20 ] || { echo waiting; exit 0; }
    sleep 0.1
done
if [ "$(sed -n 1p "$note" 2>/dev/null)" = "$2" ]; then
    before=$(sed -n 2p "$note")
else
    before=$(started)
    [ -n "$before" ] || exit 1
    # It counts in seconds.
    while [ "$before" = "$(date +%s)" ]; do sleep 0.1; done
    are_there "$1" || { echo waiting; exit 0; }
    timeout 10 scontrol reconfigure || exit 1
    printf '%s\n' "$2" "$before" >"$note"
fi
tries=0
while [ "$tries" -lt 40 ]; do
    now=$(started 2>/dev/null)
    [ -n "$now" ] && [ "$now" != "$before" ] && { echo reread; exit 0; }
    tries=$((tries + 1))
    sleep 0.2
done
echo "slurmctld was asked to reread its configuration, and has not done so yet" >&2
# It answers, and does nothing.
[ -z "$now" ] || find "$note" -mmin +1 -exec rm {} +
exit 1
"#;

/// Makes slurmctld reread its files. Returns false if they are not in its pod yet.
pub(super) async fn reread(client: &Client, files: &RereadFiles) -> Result<bool, Failure> {
    let script = Script {
        pod: &files.pod,
        container: files.container,
        action: "rereading the configuration in",
        text: SCRIPT,
        arguments: &["reread", &files.hash, &files.change, "/etc/slurm", "/run"],
        within: WITHIN,
    };
    let output = script.run(client).await?;
    match output.text.trim() {
        "reread" => Ok(true),
        "waiting" => Ok(false),
        _ => Err(script.failed(&output)),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, process::Command};

    use engine::hash::hash_of_sums;

    use super::*;

    const CONFIG: [(&str, &[u8]); 3] = [("slurm.conf", b"A=1\n"), ("a b", b""), ("Z.sh", b"#!/bin/sh\n")];

    /// A pod of slurmctld.
    struct Place(PathBuf);

    impl Place {
        /// `scontrol` is a script that has the folder in `$here`.
        fn new(name: &str, scontrol: &str) -> Self {
            let root = std::env::temp_dir().join(format!("reread-{name}-{}", std::process::id()));
            let files = root.join("..data");
            fs::create_dir_all(&files).unwrap();
            for (name, content) in CONFIG.into_iter().chain([("slurm.key", &b"secret"[..]), ("jwks.json", b"{}")]) {
                fs::write(files.join(name), content).unwrap();
            }
            let program = root.join("scontrol");
            fs::write(&program, format!("#!/bin/sh\nhere={}\necho \"$*\" >>$here/calls\n{scontrol}", root.display()))
                .unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            Self(root)
        }

        fn run(&self, hash: &str, change: &str) -> String {
            let path = format!("{}:{}", self.0.display(), std::env::var("PATH").unwrap());
            let output = Command::new("/bin/sh")
                .args(["-c", SCRIPT, "reread", hash, change])
                .args([&self.0, &self.0])
                .env("PATH", path)
                .output()
                .unwrap();
            String::from_utf8([output.stdout, output.stderr].concat()).unwrap().trim().to_owned()
        }

        /// How often slurmctld was asked to reread its files.
        fn asked(&self) -> usize {
            let calls = fs::read_to_string(self.0.join("calls")).unwrap_or_default();
            calls.lines().filter(|line| *line == "reconfigure").count()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Starts anew when it is asked to.
    const OBEDIENT: &str = "case $1 in
        show) cat \"$here/started\" 2>/dev/null || echo 'BOOT_TIME               = 100' ;;
        *) echo 'BOOT_TIME = 200' >\"$here/started\" ;;
        esac";

    #[test]
    fn slurmctld_is_asked_once_when_the_files_are_there() {
        let place = Place::new("once", OBEDIENT);
        let hash = hash_of_sums(CONFIG);
        assert_eq!(
            (place.run(&hash_of_sums([("slurm.conf", &b"A=2\n"[..])]), "1").as_str(), place.asked()),
            ("waiting", 0)
        );
        assert_eq!((place.run(&hash, "1").as_str(), place.asked()), ("reread", 1));
        // The answer was lost.
        assert_eq!((place.run(&hash, "1").as_str(), place.asked()), ("reread", 1));
        fs::write(place.0.join("started"), "BOOT_TIME = 100\n").unwrap();
        assert_eq!((place.run(&hash, "2").as_str(), place.asked()), ("reread", 2), "another change");
    }

    #[test]
    fn a_slurmctld_that_does_not_answer_is_not_asked() {
        let place = Place::new("away", "echo 'Unable to contact slurm controller' >&2; exit 1");
        assert_eq!(place.run(&hash_of_sums(CONFIG), "1"), "Unable to contact slurm controller");
        assert_eq!(place.asked(), 0);
    }
}
