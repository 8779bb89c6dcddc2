//! The operator as a plain process, and what the kernel says of it.

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

/// Linux counts processor time in hundredths of a second, whatever its own clock does.
const TICKS: f64 = 100.0;

/// How long an operator may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// An operator that runs. It ends when it is dropped.
pub struct Operator {
    child: Child,
    pid: i32,
}

impl Operator {
    /// Starts it as a shell would; what it says goes to the log.
    pub fn start(command: &str, environment: &[(&str, &str)], log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = Command::new("sh")
            // The shell becomes the operator, so that what is measured is not a shell that waits.
            .args(["-c", &format!("exec {command}")])
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start `{command}`"))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).context("the operator ended at once")?;
        Ok(Self { child, pid })
    }

    /// An error once it has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the operator ended ({status})");
        }
        Ok(())
    }

    /// Processor time so far, in seconds.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        cpu_seconds(&stat).context("the kernel says nothing of the operator's processor time")
    }

    /// Memory now and at its peak. Both come from one read of the kernel's file: two reads of a process that grows contradict each
    /// other.
    pub fn memory(&self) -> Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        Memory::parse(&status).context("the kernel does not report the memory of the operator")
    }

    /// Sets the peak to the present memory.
    pub fn reset_peak(&self) -> Result<()> {
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").context("cannot reset the peak of memory")
    }

    /// Asks it to end, waits, insists.
    pub async fn stop(mut self) -> Result<()> {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, Signal::TERM);
        }
        if timeout(PATIENCE, self.child.wait()).await.is_err() {
            self.child.kill().await.context("the operator does not end")?;
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
    // The name in brackets may hold anything; what follows it is regular.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some((f64::from(ticks()?) + f64::from(ticks()?)) / TICKS)
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
    fn reads_what_the_kernel_says() {
        let stat =
            "4242 (a) b) S 1 4242 4242 0 -1 4194560 3000 0 10 0 150 25 0 0 20 0 9 0 1000 100 200 18446744073709551615";
        assert_eq!(cpu_seconds(stat), Some(1.75));
        assert_eq!(cpu_seconds("4242 (short) S 1"), None);
        let status = "Name:\ta\nVmHWM:\t   61440 kB\nVmRSS:\t   1000 kB\n";
        assert_eq!(Memory::parse(status), Some(Memory { rss_mb: 1.024, peak_rss_mb: 62.914_56 }));
        assert_eq!(Memory::parse("Name:\ta\nVmRSS:\t   1000 kB\n"), None);
    }

    #[tokio::test]
    async fn measures_a_process_and_ends_it() {
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
