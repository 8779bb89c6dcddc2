//! Jails are filled whole, also after any interruption, and nothing outside is touched.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crate::support::{Found, Temp, files, inode, options, write};
use anyhow::{Result, bail};
use jail::{
    layout,
    populate::{self, Options, Outcome, Outside},
    tree::{self, Tree},
};
use rustix::fs::XattrFlags;

const SENTINEL: &str = layout::SENTINEL;

fn run(options: &Options) -> Result<Outcome> {
    populate::run(options, &Outside { stop: &|| Ok(()), say: &|_| {} })
}

/// Runs until a number of steps is done.
fn run_steps(options: &Options, steps: usize) -> Result<Outcome> {
    let left = AtomicUsize::new(steps);
    let stop = || match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
        Ok(_) => Ok(()),
        Err(_) => bail!("interrupted"),
    };
    populate::run(options, &Outside { stop: &stop, say: &|_| {} })
}

/// A name as long as a file system takes it.
fn longest_name() -> String {
    "n".repeat(255)
}

/// A root file system with everything that is hard to copy.
fn source(temp: &Temp) -> PathBuf {
    let root = temp.folder("source");
    for path in ["etc/passwd", "usr/bin/tool", "usr/bin/srun", "usr/lib/x86_64-linux-gnu/slurm-wlm/a.so", "etc/hosts"] {
        write(&root, path, path);
    }
    for folder in ["empty", "tmp", "dev", "home/user"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let mode = |path: &str, mode| fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
    mode("usr/bin/tool", 0o6755);
    mode("etc/passwd", 0o444);
    mode("tmp", 0o1777);
    mode("empty", 0o500);
    // Only root may give files away.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(root.join("home/user"), Some(1234), Some(4321)).unwrap();
        std::os::unix::fs::lchown(root.join("usr/bin/srun"), Some(1), Some(1)).unwrap();
        mode("usr/bin/tool", 0o6755);
    }
    // A file with several names, of which one comes before the first folder that is copied.
    fs::hard_link(root.join("usr/bin/tool"), root.join("another-tool")).unwrap();
    fs::hard_link(root.join("usr/bin/tool"), root.join("usr/bin/a-tool")).unwrap();
    for (target, link) in
        [("/etc/passwd", "absolute"), ("../../../..", "usr/up"), ("nowhere", "dangling"), ("usr/bin", "bin")]
    {
        symlink(target, root.join(link)).unwrap();
    }
    // Far longer than the disk.
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    drop(sparse);
    write(&root, &format!("names/{}", longest_name()), "long");
    for name in [&b"new\nline"[..], b"\xff\xfe", b" ", b"-rf", b".slurm-jail-0.part-not"] {
        fs::write(root.join("names").join(OsStr::from_bytes(name)), "odd").unwrap();
    }
    // A path that the kernel does not take at once.
    let deep: PathBuf = (0..20).map(|_| longest_name()).collect();
    let tree = Tree::open(&root).unwrap();
    tree.make_dir(&Path::new("deep").join(&deep)).unwrap();
    tree.write(&Path::new("deep").join(&deep).join("file"), b"at the end", 0o640).unwrap();
    // A jail may be the copy of another one.
    for path in [SENTINEL, ".populated", ".slurm-jail/journal"] {
        write(&root, path, "of the source");
    }
    root
}

/// What a copy does not have, or has in another form.
fn not_compared() -> Vec<PathBuf> {
    let links = layout::links("x86_64").into_iter().map(|link| link.at);
    let ours = [SENTINEL, ".populated", ".slurm-jail", "sparse"].map(PathBuf::from);
    // Folders in which links were made have another time.
    links.chain(ours).collect()
}

/// Without the times of folders in which links are made.
fn comparable(root: &Path) -> BTreeMap<PathBuf, Found> {
    let mut found = files(root, &not_compared());
    let mut touched: Vec<PathBuf> = layout::links("x86_64").into_iter().map(|link| link.at).collect();
    touched.push(SENTINEL.into());
    for path in touched {
        for folder in path.ancestors().skip(1) {
            if let Some(found) = found.get_mut(folder) {
                found.modified = (0, 0);
            }
        }
    }
    found
}

#[track_caller]
fn assert_is_copy(source: &Path, jail: &Path) {
    let (mut expected, found) = (comparable(source), comparable(jail));
    // Made for links, if the source has not got them.
    for path in found.keys().filter(|path| !expected.contains_key(*path)) {
        assert!(layout::links("x86_64").iter().any(|link| link.at.starts_with(path)), "{} is too much", path.display());
    }
    expected.retain(|path, expected| found.get(path) != Some(expected));
    assert_eq!(expected, BTreeMap::new());
    for link in layout::links("x86_64") {
        assert_eq!(fs::read_link(jail.join(&link.at)).unwrap(), link.to);
    }
    let sentinel = fs::read_to_string(jail.join(SENTINEL)).unwrap();
    assert!(sentinel.starts_with("populated by slurm-jail"), "{sentinel}");
    for gone in [".populated", ".slurm-jail"] {
        assert!(fs::symlink_metadata(jail.join(gone)).is_err(), "{gone} is still there");
    }
    let top = fs::metadata(jail).unwrap();
    assert_eq!(top.mode() & 0o7777, 0o755);
}

#[test]
fn everything_is_copied() {
    // Not all file systems in memory have extended attributes.
    let temp = Temp::on_disk();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    fs::set_permissions(&jail, fs::Permissions::from_mode(0o777)).unwrap();
    rustix::fs::setxattr(source.join("etc/passwd"), "user.note", b"kept", XattrFlags::empty()).unwrap();
    assert_eq!(run(&options(&source, &jail)).unwrap(), Outcome::Populated);
    assert_is_copy(&source, &jail);
    let tool = inode(&jail.join("usr/bin/tool"));
    assert_eq!([inode(&jail.join("another-tool")), inode(&jail.join("usr/bin/a-tool"))], [tool, tool]);
    let sparse = fs::metadata(jail.join("sparse")).unwrap();
    assert_eq!(sparse.len(), 1 << 40);
    assert!(sparse.blocks() < 1000, "{} blocks", sparse.blocks());
    let mut value = [0; 16];
    let length = rustix::fs::getxattr(jail.join("etc/passwd"), "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"kept");
}

#[test]
fn a_populated_jail_stays_as_it_is() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    run(&options(&source, &jail)).unwrap();
    write(&jail, "etc/passwd-of-users", "theirs");
    fs::remove_file(jail.join("etc/passwd")).unwrap();
    write(&jail, "etc/passwd", "theirs");
    // Also if its source is gone.
    fs::rename(&source, temp.0.join("elsewhere")).unwrap();
    assert_eq!(run(&options(&source, &jail)).unwrap(), Outcome::Already);
    assert_eq!(fs::read_to_string(jail.join("etc/passwd")).unwrap(), "theirs");
}

#[test]
fn other_files_of_the_volume_stay() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    write(&jail, "home/user/data", "theirs");
    write(&jail, "lost+found/1", "");
    run(&options(&source, &jail)).unwrap();
    assert_eq!(fs::read_to_string(jail.join("home/user/data")).unwrap(), "theirs");
    assert!(jail.join("lost+found/1").exists());
}

/// How many steps a run has.
fn count_steps(options: &Options) -> usize {
    let steps = AtomicUsize::new(0);
    let count = || {
        steps.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    populate::run(options, &Outside { stop: &count, say: &|_| {} }).unwrap();
    steps.into_inner()
}

/// Interrupts runs after 0, 1, 2… steps, each in a fresh jail, and lets the next run end.
#[test]
fn an_interrupted_run_is_continued() {
    let temp = Temp::new();
    let source = source(&temp);
    let all = count_steps(&options(&source, &temp.folder("whole")));
    assert!(all > 120, "only {all} steps");
    // All at the beginning and the end, where the order matters most; of the others some.
    for steps in (0..all).filter(|steps| *steps < 50 || all - *steps < 50 || steps % 5 == 0) {
        let jail = temp.folder("jail");
        let options = options(&source, &jail);
        run_steps(&options, steps).unwrap_err();
        for sentinel in [SENTINEL, ".populated"] {
            assert!(!jail.join(sentinel).exists(), "{sentinel} after {steps} of {all} steps");
        }
        assert_eq!(run(&options).unwrap(), Outcome::Populated, "after {steps} of {all} steps");
        assert_is_copy(&source, &jail);
        remove_all(&temp, "jail");
    }
}

fn remove_all(temp: &Temp, name: &str) {
    tree::remove_all(Tree::open(&temp.0).unwrap().root(), OsStr::new(name)).unwrap();
}

#[test]
fn a_run_that_is_interrupted_again_and_again_ends() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    // Looking at the source takes steps, too: one per folder. The largest folder is done in the rest.
    let folders =
        files(&source, &["sparse".into()]).values().filter(|found| found.mode & 0o170_000 == 0o040_000).count() + 1;
    let mut runs = 0;
    while run_steps(&options(&source, &jail), 2 * folders + 30).is_err() {
        runs += 1;
        assert!(runs < 100, "there is no progress");
    }
    assert!(runs > 1, "it was not interrupted");
    assert_is_copy(&source, &jail);
}

#[test]
fn what_is_done_is_not_copied_again() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    // The last question is that before the sentinel.
    let steps = count_steps(&options(&source, &temp.folder("whole")));
    run_steps(&options(&source, &jail), steps - 1).unwrap_err();
    let before = inode(&jail.join("etc/passwd"));
    let said = Mutex::new(String::new());
    let say = |text: &str| said.lock().unwrap().push_str(text);
    populate::run(&options(&source, &jail), &Outside { stop: &|| Ok(()), say: &say }).unwrap();
    assert_eq!(inode(&jail.join("etc/passwd")), before);
    assert!(said.into_inner().unwrap().contains("going on: "));
}

#[test]
fn a_changed_source_is_copied_from_the_start() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    run_steps(&options(&source, &jail), 80).unwrap_err();
    write(&source, "etc/new", "new");
    run(&options(&source, &jail)).unwrap();
    assert_is_copy(&source, &jail);
}

/// A process that is killed writes no more, but what it has begun stays there half done.
#[test]
fn a_killed_run_is_continued() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    for folder in 0..40 {
        for file in 0..20 {
            write(&source, &format!("many/{folder}/{file}"), &"content ".repeat(folder * file));
        }
    }
    let mut killed = 0;
    for wait in 0.. {
        let mut child = Command::new(env!("CARGO_BIN_EXE_slurm-jail"))
            .args(["--jail".as_ref(), jail.as_os_str(), "populate".as_ref(), "--source".as_ref(), source.as_os_str()])
            .env_remove("OVERWRITE")
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(wait));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            break;
        }
        killed += 1;
    }
    assert!(killed > 0);
    assert_is_copy(&source, &jail);
}

#[test]
fn sources_and_jails_that_are_none_are_named() {
    let temp = Temp::new();
    let (source, jail) = (temp.folder("source"), temp.folder("jail"));
    let error = |source: &Path, jail: &Path| format!("{:#}", run(&options(source, jail)).unwrap_err());
    let none = temp.0.join("none");
    assert!(error(&none, &jail).starts_with("the source of the jail is missing: there is no folder "));
    assert!(error(&source, &none).starts_with("there is no folder "));
    assert!(error(&source, &jail).ends_with("holds no root file system: it has no folder etc"));
    write(&source, "etc", "a file");
    assert!(error(&source, &jail).ends_with("holds no root file system: it has no folder etc"));
    assert!(error(&source.join("etc"), &jail).contains("Not a directory"));
    assert_eq!(fs::read_dir(&jail).unwrap().count(), 0, "nothing may be written");
}

#[test]
fn a_folder_is_not_replaced_by_a_file() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    write(&jail, "etc/passwd/theirs", "");
    let error = format!("{:#}", run(&options(&source, &jail)).unwrap_err());
    assert!(error.contains("etc/passwd: there is a folder of this name"), "{error}");
    assert!(jail.join("etc/passwd/theirs").exists());
    fs::remove_dir_all(jail.join("etc/passwd")).unwrap();
    run(&options(&source, &jail)).unwrap();
    assert_is_copy(&source, &jail);
}

#[test]
fn a_jail_of_soperator_is_adopted() {
    for (folders, file) in [(&["dev", "usr"][..], None), (&[], Some(".populated"))] {
        let temp = Temp::new();
        let (source, jail) = (source(&temp), temp.folder("jail"));
        for folder in folders.iter().chain(&["etc"]) {
            fs::create_dir(jail.join(folder)).unwrap();
        }
        if let Some(file) = file {
            write(&jail, file, "");
        }
        assert_eq!(run(&options(&source, &jail)).unwrap(), Outcome::Adopted);
        assert!(jail.join(SENTINEL).exists());
        assert!(!jail.join("etc/passwd").exists());
        assert!(!jail.join(".slurm-jail").exists());
    }
}

#[test]
fn overwriting_makes_both_equal_once() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    run(&options(&source, &jail)).unwrap();
    let spoil = || {
        write(&jail, "etc/of-users", "theirs");
        write(&jail, "home/user/deep/data", "theirs");
        write(&jail, "lost+found/1", "");
        fs::remove_file(jail.join("usr/bin/tool")).unwrap();
        // Everything of another kind than in the source.
        write(&jail, "usr/bin/tool/file", "a folder now");
        fs::remove_dir_all(jail.join("empty")).unwrap();
        write(&jail, "empty", "a file now");
    };
    spoil();
    let options = Options { overwrite: true, request: "job 1".to_owned(), ..options(&source, &jail) };
    assert_eq!(run(&options).unwrap(), Outcome::Populated);
    assert!(jail.join("lost+found/1").exists());
    fs::remove_dir_all(jail.join("lost+found")).unwrap();
    assert_is_copy(&source, &jail);
    // The pod of the request runs once more: users are at work by now.
    write(&jail, "etc/of-users", "theirs");
    assert_eq!(run(&options).unwrap(), Outcome::Already);
    assert!(jail.join("etc/of-users").exists());
    // Another request; and it is interrupted.
    fs::remove_file(jail.join("usr/bin/tool")).unwrap();
    spoil_again(&jail);
    let options = Options { request: "job 2".to_owned(), ..options };
    for steps in [5, 40, 60, 80] {
        run_steps(&options, steps).unwrap_err();
        assert!(steps < 40 || !jail.join(SENTINEL).exists(), "after {steps} steps");
    }
    assert_eq!(run(&options).unwrap(), Outcome::Populated);
    assert_is_copy(&source, &jail);
}

fn spoil_again(jail: &Path) {
    write(jail, "usr/bin/tool", "theirs");
    write(jail, "etc/of-users-too", "theirs");
}

#[test]
fn two_runs_at_the_same_time_do_not_disturb_each_other() {
    let temp = Temp::new();
    let (source, jail) = (source(&temp), temp.folder("jail"));
    let outcomes: Vec<_> = thread::scope(|scope| {
        let runs: Vec<_> = (0..4).map(|_| scope.spawn(|| run(&options(&source, &jail)).unwrap())).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == Outcome::Populated).count(), 1, "{outcomes:?}");
    assert_is_copy(&source, &jail);
}

/// A folder outside of the jail, which must stay empty.
fn outside(temp: &Temp) -> PathBuf {
    temp.folder("outside")
}

#[test]
fn links_in_the_jail_lead_nowhere() {
    for (target, link) in [
        ("../outside", "etc"),
        ("../../outside", "usr/bin"),
        ("../outside", ".slurm-jail"),
        ("../outside", "lost+found"),
        ("../outside/file", "another-tool"),
        ("../../outside/file", "etc/passwd"),
        ("../../../outside/file", "usr/bin/tool"),
        ("../../outside/file", "etc/soperator-jail-populated"),
        ("../../outside/file", ".slurm-jail/journal"),
        ("../outside", "names"),
    ] {
        for overwrite in [false, true] {
            let temp = Temp::new();
            let (source, jail, outside) = (source(&temp), temp.folder("jail"), outside(&temp));
            fs::create_dir_all(jail.join(link).parent().unwrap()).unwrap();
            symlink(target, jail.join(link)).unwrap();
            let options = Options { overwrite, ..options(&source, &jail) };
            assert_eq!(run(&options).unwrap(), Outcome::Populated, "{link}");
            if link == "lost+found" {
                fs::remove_file(jail.join(link)).unwrap();
            }
            assert_is_copy(&source, &jail);
            assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{link}");
        }
    }
}

#[test]
fn links_that_come_and_go_lead_nowhere() {
    let temp = Temp::new();
    let (source, jail, outside) = (source(&temp), temp.folder("jail"), outside(&temp));
    run(&options(&source, &jail)).unwrap();
    let options = Options { overwrite: true, ..options(&source, &jail) };
    let ended = AtomicBool::new(false);
    let swaps = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (real, aside, link) = (jail.join("usr/bin"), jail.join("usr/aside"), jail.join("usr/link"));
            while !ended.load(Ordering::Relaxed) {
                let _ = symlink(&outside, &link);
                let swapped = fs::rename(&real, &aside).and_then(|()| fs::rename(&link, &real));
                let _ = fs::remove_file(&real).and_then(|()| fs::rename(&aside, &real));
                swaps.fetch_add(usize::from(swapped.is_ok()), Ordering::Relaxed);
            }
        });
        for _ in 0..30 {
            // It may fail: what was opened is gone.
            let _ = run(&options);
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(swaps.into_inner() > 0, "nothing was swapped");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    // A folder that was away is noticed by the run that needs it, and made by the next one.
    if run(&options).is_err() {
        run(&options).unwrap();
    }
    assert_is_copy(&source, &jail);
}
