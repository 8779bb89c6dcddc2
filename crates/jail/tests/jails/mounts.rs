//! What needs file systems of its own: full disks, disks without extended attributes, and the view of a worker.
//!
//! Each test is a script in a mount namespace of its own, so that nothing is left on the machine. Without root, it has a user
//! namespace, too.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::support::{Temp, write};

/// What all scripts begin with. The container has what the image of a worker has.
const CONTAINER: &str = r#"
set -eu
cd "$TEMP"
mkdir -p upper work jail
mount -t tmpfs container-run /run
mkdir -p /run/munge /run/secrets/kubernetes.io
echo token >/run/secrets/kubernetes.io/token
echo socket >/run/munge/munge.socket.2
mount -t tmpfs usr work
mkdir work/up work/work
mount -t overlay overlay -o lowerdir=/usr,upperdir=work/up,workdir=work/work /usr
mkdir -p /usr/lib/slurm
echo 'srun of the image' >/usr/bin/srun
echo 'plugin of the image' >/usr/lib/slurm/auth.so
mount -t tmpfs jail jail
populate() { "$SLURM_JAIL" --jail "$TEMP/jail" populate --source "$TEMP/source"; }
complement() { "$SLURM_JAIL" --jail "$TEMP/jail" complement --upper "$TEMP/upper"; }
fail() { echo "$*" >&2; exit 1; }
has() { grep -qxF "$1" "$2" || fail "$2 has: $(cat "$2")"; }
refused() { if "$@" 2>"$TEMP/refused"; then fail "$* was not refused"; fi; cat "$TEMP/refused" >&2; }
"#;

/// Runs a script in a mount namespace; what it printed.
#[track_caller]
fn isolated(temp: &Temp, script: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let output = command
        .args(["sh", "-c", script])
        .env("TEMP", &temp.0)
        .env("SLURM_JAIL", env!("CARGO_BIN_EXE_slurm-jail"))
        .env_remove("OVERWRITE")
        .output()
        .expect("these tests need `unshare` of util-linux");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{said}{}\nThese tests need root, or a kernel that gives others a mount namespace.",
        String::from_utf8_lossy(&output.stdout)
    );
    output
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A small root file system. As that of an image, it has Slurm's commands, which workers replace by theirs.
fn source(temp: &Temp) {
    let source = temp.folder("source");
    for path in ["etc/passwd", "etc/hosts", "usr/bin/srun", "bin/sh"] {
        write(&source, path, "of the jail");
    }
    for folder in ["dev", "proc", "sys", "run", "tmp", "home", "data/deep", "var/log"] {
        fs::create_dir_all(source.join(folder)).unwrap();
    }
}

fn in_container(temp: &Temp, script: &str) -> Output {
    isolated(temp, &format!("{CONTAINER}\n{script}"))
}

#[test]
fn a_full_disk_is_named_and_the_rest_is_copied_once_it_is_larger() {
    let temp = Temp::new();
    source(&temp);
    for number in 0..16 {
        write(&temp.0, &format!("source/usr/share/{number}"), &"x".repeat(64 << 10));
    }
    let output = isolated(
        &temp,
        r#"
        set -eu
        mkdir "$TEMP/jail"
        mount -t tmpfs -o size=512k jail "$TEMP/jail"
        for attempt in 1 2; do
          if "$SLURM_JAIL" --jail "$TEMP/jail" populate --source "$TEMP/source"; then exit 1; fi
          test ! -e "$TEMP/jail/etc/soperator-jail-populated"
        done
        mount -o remount,size=4m "$TEMP/jail"
        "$SLURM_JAIL" --jail "$TEMP/jail" populate --source "$TEMP/source"
        diff -r "$TEMP/source/usr/share" "$TEMP/jail/usr/share"
        test -e "$TEMP/jail/etc/soperator-jail-populated"
        find "$TEMP/jail" -name '.slurm-jail*' >&2
        "#,
    );
    let said = said(&output);
    assert_eq!(
        said.matches("the volume of the jail is full: it has 0 MiB, of which 0 MiB are left").count(),
        2,
        "{said}"
    );
    assert!(said.ends_with("the jail is populated\n"), "{said}");
}

#[test]
fn a_file_system_without_extended_attributes_will_do() {
    let temp = Temp::on_disk();
    source(&temp);
    let file = temp.0.join("source/etc/passwd");
    rustix::fs::setxattr(&file, "user.note", b"lost", rustix::fs::XattrFlags::empty()).unwrap();
    // In a user namespace, only a tmpfs can be mounted, and without these attributes only by old kernels.
    if !rustix::process::geteuid().is_root() {
        eprintln!("not tested: only root can mount a ramfs");
        return;
    }
    let output = isolated(
        &temp,
        r#"
        set -eu
        mkdir "$TEMP/jail"
        mount -t ramfs jail "$TEMP/jail"
        "$SLURM_JAIL" --jail "$TEMP/jail" populate --source "$TEMP/source"
        diff "$TEMP/source/etc/passwd" "$TEMP/jail/etc/passwd"
        "#,
    );
    let lost = "1 extended attributes could not be copied, the first one was user.note of etc/passwd: ";
    assert!(said(&output).contains(lost), "{}", said(&output));
}

#[test]
fn a_worker_shows_what_jobs_need() {
    let temp = Temp::new();
    source(&temp);
    in_container(
        &temp,
        r#"
        populate
        mkdir -p upper/home upper/data/deep
        mount -t tmpfs home upper/home
        mount -t tmpfs deep upper/data/deep
        echo 'of a volume' >upper/home/file
        echo 'of another volume' >upper/data/deep/file
        # For the machine, only the volume has changed.
        cp -a jail before
        complement
        test -r jail/proc/self/status || fail "no /proc"
        test -d jail/sys/kernel || fail "no /sys"
        test -c jail/dev/null || fail "no /dev"
        has socket jail/run/munge/munge.socket.2
        test ! -e jail/run/secrets || fail "the token of the pod is there"
        has 'srun of the image' jail/run/slurm-jail/bin/srun
        has 'plugin of the image' jail/run/slurm-jail/lib/auth.so
        cmp /etc/hosts jail/run/slurm-jail/etc/hosts
        has 'of a volume' jail/home/file
        has 'of another volume' jail/data/deep/file
        test "$(readlink jail/usr/bin/srun)" = /run/slurm-jail/bin/srun || fail "no link"
        test "$(readlink jail/etc/hosts)" = /run/slurm-jail/etc/hosts || fail "no link"
        test "$(stat -c %a jail/run/lock)" = 1777 || fail "no /run/lock"
        # Jobs of root cannot spoil what is the image's.
        for file in bin/srun lib/auth.so lib/new etc/hosts; do
          if (echo spoilt >jail/run/slurm-jail/$file) 2>/dev/null; then fail "$file was written"; fi
        done
        # What was mounted is not on the volume, where all workers would see it.
        mkdir bare
        mount --bind jail bare
        diff --no-dereference -r before bare
        "#,
    );
}

#[test]
fn a_worker_that_starts_again_changes_nothing() {
    let temp = Temp::new();
    source(&temp);
    in_container(
        &temp,
        r"
        populate
        mkdir upper/home
        mount -t tmpfs home upper/home
        complement
        cut -d' ' -f5- /proc/self/mountinfo >first
        complement
        cut -d' ' -f5- /proc/self/mountinfo >second
        diff first second
        ",
    );
}

#[test]
fn a_jail_of_soperator_is_covered() {
    let temp = Temp::new();
    let output = in_container(
        &temp,
        r#"
        cd jail
        mkdir -p etc usr/bin usr/lib dev run
        echo 'placeholder' | tee etc/hosts usr/bin/srun >/dev/null
        ln -s /elsewhere etc/resolv.conf
        echo >etc/soperator-jail-populated
        cd ..
        complement
        has 'srun of the image' jail/usr/bin/srun
        cmp /etc/hosts jail/etc/hosts
        test "$(readlink jail/usr/lib/slurm)" = /run/slurm-jail/lib || fail "no link"
        test "$(readlink jail/etc/resolv.conf)" = /elsewhere || fail "changed"
        mkdir bare
        mount --bind jail bare
        has placeholder bare/usr/bin/srun
        "#,
    );
    assert!(said(&output).contains("etc/resolv.conf leads to /elsewhere and is left alone"), "{}", said(&output));
}

#[test]
fn a_jail_that_is_not_ready_is_refused() {
    let temp = Temp::new();
    source(&temp);
    let output = in_container(
        &temp,
        r#"
        refused complement
        test -z "$(ls jail)" || fail "something was made"
        populate
        rm -r /run/munge
        refused complement
        mkdir /run/munge
        complement
        umount --recursive jail
        refused complement
        "#,
    );
    let said = said(&output);
    for message in [
        "is not populated: wait for that with `slurm-jail wait`",
        "the jail needs /run/munge of the container, which is not there",
        "is no mount point: the volume of the jail must be mounted there",
    ] {
        assert!(said.contains(message), "{said}");
    }
}

#[test]
fn nothing_is_mounted_where_links_lead() {
    for path in ["tmp", "run", "proc", "home", "var"] {
        let temp = Temp::new();
        source(&temp);
        let output = in_container(
            &temp,
            &format!(
                r#"
                populate
                mkdir -p upper/home outside /var/log
                mount -t tmpfs home upper/home
                rm -rf jail/{path}
                ln -s "$TEMP/outside" jail/{path}
                refused complement
                if grep outside /proc/self/mountinfo; then fail "mounted outside"; fi
                test -z "$(ls outside)" || fail "made outside"
                "#
            ),
        );
        assert!(said(&output).contains("error: "), "{path}: {}", said(&output));
    }
}

#[test]
fn a_volume_that_is_a_file_is_shown() {
    let temp = Temp::new();
    source(&temp);
    in_container(
        &temp,
        r"
        populate
        mkdir -p upper/etc
        echo 'of a volume' >upper/etc/settings
        mount --bind upper/etc/settings upper/etc/settings
        complement
        has 'of a volume' jail/etc/settings
        ",
    );
}

#[test]
fn waiting_ends_with_the_sentinel_and_the_node() {
    let temp = Temp::new();
    let jail = temp.folder("jail");
    fs::create_dir(jail.join("etc")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_slurm-jail"))
        .args(["--jail", jail.to_str().unwrap(), "wait", "--node", "gpu-3"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().starts_with("waiting for the jail "));
    write(&jail, "etc/slurm/slurm.conf", "include base\nNodeName=cpu-[0-9]\n");
    write(&jail, "etc/soperator-jail-populated", "");
    assert!(next().starts_with("waiting for a line NodeName of gpu-3 in "));
    write(&jail, "etc/slurm/base", "# NodeName=gpu-3\nNodeName=gpu-[0-7] State=CLOUD\n");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_link_is_no_sentinel() {
    let temp = Temp::new();
    let jail = temp.folder("jail");
    fs::create_dir(jail.join("etc")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", jail.join("etc/soperator-jail-populated")).unwrap();
    assert!(!jail::wait::is_populated(&jail::tree::Tree::open(&jail).unwrap()).unwrap());
}

#[test]
fn waiting_ends_when_the_pod_does() {
    let temp = Temp::new();
    let jail = temp.folder("jail");
    let mut child = Command::new(env!("CARGO_BIN_EXE_slurm-jail"))
        .args(["--jail", jail.to_str().unwrap(), "wait"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    assert!(lines.next().unwrap().unwrap().starts_with("waiting for the jail "));
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(lines.next().unwrap().unwrap(), "error: interrupted");
    assert!(!Path::new(&jail).join("etc").exists());
}
