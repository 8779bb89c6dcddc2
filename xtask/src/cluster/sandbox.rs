//! Linux namespaces of the cluster. All its processes run in them, so that killing their first process stops everything: the
//! kernel then ends the other processes and removes mounts, links and packet filter rules.
//!
//! The cluster has network, mount and process namespaces of its own; each node has mount and process namespaces of its
//! own inside these, so that a node can be powered off without effect on the others.

use std::{
    ffi::OsStr,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::{
    paths,
    shell::{self, Cmd},
    tools,
};

/// A process that was started here. The start time tells it from a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pid: i32,
    started: u64,
}

impl Process {
    pub fn of(pid: i32) -> Option<Self> {
        Some(Self { pid, started: stat(pid)?.started })
    }

    pub fn is_alive(self) -> bool {
        stat(self.pid).is_some_and(|stat| stat.started == self.started && !stat.is_zombie)
    }

    pub fn signal(self, signal: Signal) {
        if let (true, Some(pid)) = (self.is_alive(), Pid::from_raw(self.pid)) {
            let _ = kill_process(pid, signal);
        }
    }

    pub fn wait_end(self, limit: Duration) -> bool {
        let start = Instant::now();
        while self.is_alive() {
            if start.elapsed() > limit {
                return false;
            }
            thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// Asks it to end, waits, and kills it.
    pub fn end(self, patience: Duration) -> Result<()> {
        self.signal(Signal::TERM);
        if !self.wait_end(patience) {
            self.signal(Signal::KILL);
            if !self.wait_end(Duration::from_secs(30)) {
                bail!("process {} does not end, even when killed", self.pid);
            }
        }
        Ok(())
    }

    /// The last of a line of single children: what `nsenter` and `unshare` finally run.
    fn innermost(self) -> Self {
        let mut current = self;
        while let Some(child) =
            all_processes().find(|(_, stat)| stat.parent == current.pid).and_then(|(pid, _)| Self::of(pid))
        {
            current = child;
        }
        current
    }
}

struct Stat {
    parent: i32,
    started: u64,
    is_zombie: bool,
}

fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain any character; what follows it has a fixed format.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let started = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, started, is_zombie })
}

fn all_processes() -> impl Iterator<Item = (i32, Stat)> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, stat(pid)?)))
}

fn is_running(pid: i32, program: &Path) -> bool {
    fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
}

/// A set of namespaces, known by their first process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    pub init: Process,
}

impl Sandbox {
    /// Network, mount and process namespaces, apart from the host's.
    pub fn new(log: &Path) -> Result<Self> {
        Self::start(Cmd::new("unshare").arg("--net"), log)
    }

    /// Namespaces for a node inside the cluster's: mounts, processes.
    pub fn node(self, log: &Path) -> Result<Self> {
        Self::start(self.enter("unshare"), log)
    }

    fn start(unshare: Cmd, log: &Path) -> Result<Self> {
        let pause = tools::pause()?.join("pause");
        let child = unshare
            .args(["--mount", "--pid", "--fork", "--mount-proc", "--propagation", "slave"])
            .arg(&pause)
            .daemon(log)?;
        let outer = i32::try_from(child.id()).ok().and_then(Process::of).context("the sandbox ended at once")?;
        let mut init = outer;
        shell::wait_until("the sandbox", Duration::from_secs(10), || {
            init = outer.innermost();
            if !outer.is_alive() {
                bail!("cannot make namespaces:\n{}", shell::tail(log, 0, shell::LAST));
            }
            Ok(is_running(init.pid, &pause))
        })?;
        let sandbox = Self { init };
        // Mounts of kubelet must reach containers, but not the host.
        sandbox.enter("mount").args(["--make-rshared", "/"]).text()?;
        Ok(sandbox)
    }

    pub fn pid(self) -> String {
        self.init.pid.to_string()
    }

    /// A command that runs inside.
    pub fn enter(self, program: impl AsRef<OsStr>) -> Cmd {
        Cmd::new("nsenter").args(["--target", &self.pid(), "--net", "--mount", "--pid", "--"]).arg(program)
    }

    /// Starts a program inside, for good: a child of the first process, which reaps it when it ends.
    pub fn daemon<A: AsRef<OsStr>>(
        self,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> Result<Process> {
        let offset = shell::size(log);
        let launcher = self.enter("sh").args(["-c", "\"$0\" \"$@\" </dev/null &"]).arg(program).args(args);
        launcher.daemon(log)?.wait()?;
        let mut found = None;
        let limit = Duration::from_secs(10);
        shell::wait_until(&format!("start of {}", program.display()), limit, || {
            let mut children = all_processes().filter(|(_, stat)| stat.parent == self.init.pid);
            found = children.find(|(pid, _)| is_running(*pid, program)).and_then(|(pid, _)| Process::of(pid));
            Ok(found.is_some())
        })
        .with_context(|| format!("{} said:\n{}", program.display(), shell::tail(log, offset, shell::LAST)))?;
        found.context("it is there")
    }

    /// Ends everything inside, at once.
    pub fn kill(self) -> Result<()> {
        self.init.signal(Signal::KILL);
        if !self.init.wait_end(Duration::from_secs(30)) {
            bail!("the first process of the sandbox ({}) does not end, even when killed", self.init.pid);
        }
        Ok(())
    }
}

/// Ends every sandbox of this machine. They are found by the program of their first process, which nothing else runs from that
/// path; so even those are found that a killed run did not record.
pub fn kill_all() -> Result<()> {
    let pauses = paths::cache().join("pause-");
    let prefix = pauses.to_string_lossy();
    let inits = all_processes().filter_map(|(pid, _)| {
        let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        program.to_string_lossy().starts_with(&*prefix).then(|| Process::of(pid)).flatten()
    });
    inits.map(|init| Sandbox { init }).try_for_each(Sandbox::kill)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_known_by_its_start_not_by_its_number_alone() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(process.is_alive());
        let later = Process { started: process.started + 1, ..process };
        assert!(!later.is_alive(), "another process with the same number");
        later.signal(Signal::KILL);
        assert!(process.is_alive(), "a signal for the other one does not reach it");
        process.end(Duration::from_secs(5)).unwrap();
        assert!(!process.is_alive(), "a zombie is not alive");
        child.wait().unwrap();
    }
}
