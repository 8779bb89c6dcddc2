//! The operator as a plain process, with its CPU time and memory from `/proc`.

use std::{
    fs::{self, File},
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::timeout,
};

/// `USER_HZ`: Linux reports CPU time in hundredths of a second on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// The time for a clean exit before the operator is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// A running operator. It is killed when dropped.
pub struct Operator {
    child: Child,
    pid: i32,
}

impl Operator {
    /// Starts a shell command; its output goes to the log.
    pub fn start(command: &str, environment: &[(&str, &str)], log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new("sh")
            // exec: otherwise the shell would be measured.
            .args(["-c", &format!("exec {command}")])
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start `{command}`"))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).context("the operator exited at once")?;
        Ok(Self { child, pid })
    }

    /// Fails if the operator has exited.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the operator exited ({status})");
        }
        Ok(())
    }

    /// CPU time since the start, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        cpu_seconds(&stat).context("the kernel does not report the CPU time of the operator")
    }

    /// Present and peak memory. Both come from one read: values of a growing process from two reads contradict each other.
    pub fn memory(&self) -> Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        Memory::parse(&status).context("the kernel does not report the memory of the operator")
    }

    /// Sets the peak to the present memory.
    pub fn reset_peak(&self) -> Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").context("cannot reset the peak of memory")
    }

    /// Sends SIGTERM, and SIGKILL after a timeout.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            self.child.kill().await.context("cannot kill the operator")?;
        }
        Ok(())
    }
}

/// Resident memory of the operator, in MB.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Now.
    pub rss_mb: f64,
    /// The maximum since the last [`Operator::reset_peak`].
    pub peak_rss_mb: f64,
}

impl Memory {
    fn parse(status: &str) -> Option<Self> {
        Some(Self { rss_mb: megabytes(status, "VmRSS:")?, peak_rss_mb: megabytes(status, "VmHWM:")? })
    }
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name in brackets may contain any character, also spaces and brackets.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some((f64::from(ticks()?) + f64::from(ticks()?)) / TICKS_PER_SECOND)
}

fn megabytes(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u32 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(f64::from(kibibytes) * 1024.0 / 1_000_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_proc_files() {
        let stat =
            "4242 (a) b) S 1 4242 4242 0 -1 4194560 3000 0 10 0 150 25 0 0 20 0 9 0 1000 100 200 18446744073709551615";
        assert_eq!(cpu_seconds(stat), Some(1.75));
        assert_eq!(cpu_seconds("4242 (short) S 1"), None);
        let status = "Name:\ta\nVmHWM:\t   61440 kB\nVmRSS:\t   1000 kB\n";
        assert_eq!(Memory::parse(status), Some(Memory { rss_mb: 1.024, peak_rss_mb: 62.914_56 }));
        assert_eq!(Memory::parse("Name:\ta\nVmRSS:\t   1000 kB\n"), None);
    }

    #[tokio::test]
    async fn measures_a_process_and_stops_it() {
        let log = std::env::temp_dir().join(format!("bench-operator-{}", std::process::id()));
        let mut operator = Operator::start("sleep 60", &[], &log).unwrap();
        operator.check().unwrap();
        assert!(operator.cpu_seconds().unwrap() < 5.0);
        operator.reset_peak().unwrap();
        let memory = operator.memory().unwrap();
        assert!(memory.peak_rss_mb >= memory.rss_mb, "{memory:?}");
        let pid = operator.pid;
        operator.stop().await.unwrap();
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        fs::remove_file(log).unwrap();
    }
}
