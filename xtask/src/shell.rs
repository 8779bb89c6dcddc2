//! Running other programs: with their output in a log, with retries, in parallel, and with an end when the user asks for it.

use std::{
    cell::RefCell,
    ffi::OsStr,
    fmt::Write as _,
    fs::{self, File},
    io::{BufRead, BufReader, IsTerminal, Write as _},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Set by Ctrl-C and other signals; long work checks it and stops cleanly.
static INTERRUPTED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

thread_local! {
    /// Set when a branch of the [`parallel`] that this thread belongs to failed, so that the others stop.
    static CANCELLED: RefCell<Arc<AtomicBool>> = RefCell::default();
}

/// Turns the signals that ask us to stop into a flag. A second one ends the process as usual.
pub fn catch_signals() -> Result<()> {
    use signal_hook::{consts, flag};
    for signal in [consts::SIGINT, consts::SIGTERM, consts::SIGHUP] {
        flag::register_conditional_default(signal, INTERRUPTED.clone()).context("cannot watch for signals")?;
        flag::register(signal, INTERRUPTED.clone()).context("cannot watch for signals")?;
    }
    Ok(())
}

/// An error once the user asked us to stop, or a branch that runs in parallel failed.
pub fn check_interrupt() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    if CANCELLED.with_borrow(|cancelled| cancelled.load(Ordering::Relaxed)) {
        bail!("stopped, because another step failed");
    }
    Ok(())
}

/// Cleaning up after an interrupt must itself not be interrupted by the same flag.
pub fn forget_interrupt() {
    INTERRUPTED.store(false, Ordering::Relaxed);
}

/// Waits until `ready` returns true; the error of a timeout says what was waited for.
pub fn wait_until(what: &str, limit: Duration, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !ready()? {
        check_interrupt()?;
        if start.elapsed() > limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Branches of work that run in parallel.
pub struct Group<'scope, 'env> {
    scope: &'scope thread::Scope<'scope, 'env>,
    failure: Arc<Failure>,
}

/// The error of the branch that failed first; those of the others follow from it.
#[derive(Default)]
struct Failure {
    first: Mutex<Option<anyhow::Error>>,
    cancelled: Arc<AtomicBool>,
}

/// A branch that was started.
pub struct Branch<'scope, T>(thread::ScopedJoinHandle<'scope, Option<T>>);

impl<'scope> Group<'scope, '_> {
    pub fn start<T: Send + 'scope>(&self, work: impl FnOnce() -> Result<T> + Send + 'scope) -> Branch<'scope, T> {
        let failure = self.failure.clone();
        Branch(self.scope.spawn(move || failure.watch(work)))
    }
}

impl<T> Branch<'_, T> {
    pub fn join(self) -> Result<T> {
        self.0.join().unwrap_or(None).context("stopped, because another step failed")
    }
}

impl Failure {
    fn watch<T>(&self, work: impl FnOnce() -> Result<T>) -> Option<T> {
        let outer = CANCELLED.replace(self.cancelled.clone());
        let result = work();
        CANCELLED.set(outer);
        result.map_err(|error| self.keep(error)).ok()
    }

    fn keep(&self, error: anyhow::Error) {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

/// Runs `body`, which may start branches that run in parallel to it. All of them have ended when this returns; as soon as one
/// fails, the programs of the others are ended, and its error is the result.
pub fn parallel<'env, T>(body: impl for<'scope> FnOnce(&Group<'scope, 'env>) -> Result<T>) -> Result<T> {
    let failure = Arc::new(Failure::default());
    let result = thread::scope(|scope| failure.watch(|| body(&Group { scope, failure: failure.clone() })));
    let first = failure.first.lock().unwrap_or_else(PoisonError::into_inner).take();
    first.map_or_else(|| result.context("a thread ended early"), Err)
}

/// Steps that are under way, for the line at the bottom of a terminal.
static STEPS: Mutex<Steps> = Mutex::new(Steps { running: Vec::new(), drawn: None });

struct Steps {
    running: Vec<(String, Instant)>,
    drawn: Option<Instant>,
}

fn steps() -> MutexGuard<'static, Steps> {
    STEPS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Steps {
    /// What is running and for how long, in as many columns as there are.
    fn line(&self, columns: usize) -> String {
        let parts: Vec<_> =
            self.running.iter().map(|(what, start)| format!("{what} … {}", human(start.elapsed()))).collect();
        let line = format!("• {}", parts.join(" · "));
        if line.chars().count() < columns {
            return line;
        }
        line.chars().take(columns.saturating_sub(2)).chain(['…']).collect()
    }

    fn draw(&mut self) {
        let columns = rustix::termios::tcgetwinsize(std::io::stderr()).map_or(80, |size| usize::from(size.ws_col));
        eprint!("\r{}\x1b[K", self.line(columns));
        let _ = std::io::stderr().flush();
        self.drawn = Some(Instant::now());
    }
}

/// Prints a line, above the one that shows what is running.
pub fn say(line: &str) {
    let steps = steps();
    if std::io::stderr().is_terminal() && !steps.running.is_empty() {
        eprint!("\r\x1b[K");
    }
    eprintln!("{line}");
}

/// A step that is under way: one line when it starts and one with its time when it ends, or a line at the bottom of a terminal
/// for all of them.
pub struct Progress {
    what: String,
    start: Instant,
    said: Duration,
    tty: bool,
    is_done: bool,
}

impl Progress {
    pub fn new(what: impl Into<String>) -> Self {
        let what = what.into();
        let tty = std::io::stderr().is_terminal();
        let start = Instant::now();
        if !tty {
            eprintln!("• {what} …");
        }
        let mut steps = steps();
        steps.running.push((what.clone(), start));
        if tty {
            steps.draw();
        }
        Self { what, start, said: Duration::ZERO, tty, is_done: false }
    }

    /// Says again what is running: every second on a terminal, every minute in a log.
    fn tick(&mut self) {
        let elapsed = self.start.elapsed();
        if self.tty {
            let mut steps = steps();
            if steps.drawn.is_none_or(|drawn| drawn.elapsed() >= Duration::from_secs(1)) {
                steps.draw();
            }
        } else if elapsed >= self.said + Duration::from_mins(1) {
            self.said = elapsed;
            eprintln!("  still: {} ({})", self.what, human(elapsed));
        }
    }

    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        steps().running.retain(|(what, start)| (what, start) != (&self.what, &self.start));
        let sign = if self.is_done { '✓' } else { '✗' };
        let clear = if self.tty { "\r\x1b[K" } else { "" };
        eprintln!("{clear}{sign} {} ({})", self.what, human(self.start.elapsed()));
    }
}

/// `75 s` is `1m15s`.
pub fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds < 60 {
        format!("{}.{} s", seconds, duration.subsec_millis() / 100)
    } else {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    }
}

/// One call of a program.
pub struct Cmd {
    command: Command,
    shown: String,
    log: Option<PathBuf>,
}

impl Cmd {
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let shown = Path::new(program.as_ref())
            .file_name()
            .map_or_else(|| program.as_ref().to_string_lossy(), |name| name.to_string_lossy())
            .into_owned();
        Self { command: Command::new(program), shown, log: None }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        let _ = write!(self.shown, " {}", arg.as_ref().to_string_lossy());
        self.command.arg(arg);
        self
    }

    pub fn args<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    pub fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Output goes to the end of this file instead of the terminal; a failure shows its last lines.
    pub fn log(mut self, log: &Path) -> Self {
        self.log = Some(log.to_owned());
        self
    }

    fn start_failed(&self, error: &std::io::Error) -> anyhow::Error {
        let program = self.command.get_program().to_string_lossy().into_owned();
        if error.kind() == std::io::ErrorKind::NotFound {
            anyhow::anyhow!("`{program}` is not installed or not in PATH")
        } else {
            anyhow::anyhow!("cannot start `{program}`: {error}")
        }
    }

    /// Runs to the end; anything but success is an error.
    pub fn run(mut self) -> Result<()> {
        let mut offset = 0;
        if let Some(log) = &self.log {
            let file = append(log)?;
            offset = file.metadata()?.len();
            self.command.stdout(file.try_clone()?).stderr(file).stdin(Stdio::null());
        }
        let child = self.command.spawn().map_err(|e| self.start_failed(&e))?;
        let status = supervise(child, None)?;
        if status.success() {
            return Ok(());
        }
        match &self.log {
            Some(log) => bail!("`{}` failed ({status}):\n{}", self.shown, tail(log, offset, LAST)),
            None => bail!("`{}` failed ({status})", self.shown),
        }
    }

    /// Like `run`, with a line of progress that counts the time.
    pub fn run_showing(self, what: &str, log: &Path) -> Result<()> {
        self.supervised(what, log, LAST, false).map(drop)
    }

    /// The same for a compiler: a failure shows all that it said.
    pub fn compile(self, what: &str, log: &Path) -> Result<()> {
        self.supervised(what, log, usize::MAX, false).map(drop)
    }

    /// The same, with what it printed to standard output; the log has the rest.
    pub fn compile_with_output(self, what: &str, log: &Path) -> Result<String> {
        self.supervised(what, log, usize::MAX, true)
    }

    fn supervised(mut self, what: &str, log: &Path, lines: usize, takes_output: bool) -> Result<String> {
        let file = append(log)?;
        let offset = file.metadata()?.len();
        let stdout = if takes_output { Stdio::piped() } else { file.try_clone()?.into() };
        self.command.stdout(stdout).stderr(file).stdin(Stdio::null());
        let mut progress = Progress::new(what);
        let mut child = self.command.spawn().map_err(|e| self.start_failed(&e))?;
        let reader = child.stdout.take().map(|stdout| thread::spawn(move || std::io::read_to_string(stdout)));
        let status = supervise(child, Some(&mut progress))?;
        let output = reader.map(|reader| reader.join().unwrap_or_else(|_| Ok(String::new()))).transpose()?;
        if !status.success() {
            bail!("{what} failed ({status}); the log is {}:\n{}", log.display(), tail(log, offset, lines));
        }
        progress.done();
        Ok(output.unwrap_or_default())
    }

    /// Runs to the end, shows each line of its standard output behind a prefix and hands it on; whether it succeeded.
    pub fn watch(mut self, prefix: &str, mut each: impl FnMut(&str)) -> Result<bool> {
        let prefix = prefix.to_owned();
        let mut child = self.command.stdout(Stdio::piped()).spawn().map_err(|e| self.start_failed(&e))?;
        let stdout = child.stdout.take().context("a pipe was asked for")?;
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                println!("{prefix}{line}");
                let _ = sender.send(line);
            }
        });
        let status = supervise(child, None)?;
        let _ = reader.join();
        for line in lines.try_iter() {
            each(&line);
        }
        Ok(status.success())
    }

    /// Runs to the end in silence; what it printed to standard output.
    pub fn text(mut self) -> Result<String> {
        let output =
            self.command.stdin(Stdio::null()).stderr(Stdio::piped()).output().map_err(|e| self.start_failed(&e))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`{}` failed ({}): {}", self.shown, output.status, stderr.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Feeds `input` to the program, in silence, and returns its output.
    pub fn feed(mut self, input: &str) -> Result<String> {
        let mut child = self
            .command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| self.start_failed(&e))?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).with_context(|| format!("`{}` does not read", self.shown))?;
        }
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`{}` failed ({}): {}", self.shown, output.status, stderr.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether it succeeds, in silence.
    pub fn ok(mut self) -> bool {
        self.command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    /// Starts it in the background, in a process group of its own, so that it does not get the terminal's signals.
    pub fn daemon(mut self, log: &Path) -> Result<Child> {
        let file = append(log)?;
        self.command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        self.command.spawn().map_err(|e| self.start_failed(&e))
    }

    /// Replaces this process by the program; returns only if that fails.
    pub fn exec(mut self) -> anyhow::Error {
        let error = self.command.exec();
        self.start_failed(&error)
    }
}

/// Waits for a child; ends it when the user asks us to stop.
fn supervise(mut child: Child, mut progress: Option<&mut Progress>) -> Result<std::process::ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            // A child that the terminal's Ctrl-C ended as well is not a failure of its own.
            check_interrupt()?;
            return Ok(status);
        }
        if let Err(interrupted) = check_interrupt() {
            terminate(&mut child);
            return Err(interrupted);
        }
        if let Some(progress) = progress.as_deref_mut() {
            progress.tick();
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn terminate(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn append(log: &Path) -> Result<File> {
    if let Some(parent) = log.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    File::options().create(true).append(true).open(log).with_context(|| format!("cannot write {}", log.display()))
}

/// So many lines of a log usually say what went wrong.
pub const LAST: usize = 15;

/// The size of a log, as the offset of what follows.
pub fn size(log: &Path) -> u64 {
    fs::metadata(log).map_or(0, |meta| meta.len())
}

/// The last lines of a log, from an offset on.
pub fn tail(log: &Path, offset: u64, count: usize) -> String {
    let bytes = fs::read(log).unwrap_or_default();
    let new = bytes.get(usize::try_from(offset).unwrap_or(0)..).unwrap_or_default();
    let text = String::from_utf8_lossy(new);
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(count)).map(|line| ["    ", line, "\n"].concat()).collect()
}

/// What the clients of registries say when another attempt may help.
const TEMPORARY: &[&str] = &[
    "429",
    "connection refused",
    "connection reset",
    "could not resolve",
    "failed to fetch",
    "i/o timeout",
    "name resolution",
    "network is unreachable",
    "temporary failure",
    "no such host",
    "timed out",
    "tls handshake",
    "too many requests",
    "unexpected eof",
];

fn is_temporary(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}").to_lowercase();
    TEMPORARY.iter().any(|sign| text.contains(sign))
}

/// Tries again after a pause if the network was at fault: registries limit request rates, and connections break.
pub fn with_retries<T>(what: &str, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    for pause in [10, 30, 60] {
        let error = match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        check_interrupt()?;
        if !is_temporary(&error) {
            return Err(error);
        }
        say(&format!("  {what}: the network failed, trying again in {pause} s"));
        let until = Instant::now() + Duration::from_secs(pause);
        while Instant::now() < until {
            check_interrupt()?;
            thread::sleep(Duration::from_millis(100));
        }
    }
    attempt().context("the package registries do not answer: check the network and run again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_network_is_worth_another_try() {
        for (text, temporary) in [
            ("dial udp 127.0.0.1:53: connect: network is unreachable", true),
            ("E: Failed to fetch InRelease  Temporary failure resolving", true),
            ("reading module: 429 Too Many Requests", true),
            ("./main.go:7:2: undefined: x", false),
            ("this base carries Slurm 26.11.0, not 26.05", false),
        ] {
            assert_eq!(is_temporary(&anyhow::anyhow!(text).context("building")), temporary, "{text}");
        }
    }

    #[test]
    fn a_branch_that_fails_ends_the_others() {
        let start = Instant::now();
        let result = parallel(|group| {
            let long = group.start(|| Cmd::new("sleep").arg("600").run());
            let bad = group.start(|| Cmd::new("false").run());
            bad.join().and(long.join())
        });
        assert!(format!("{:#}", result.unwrap_err()).contains("`false` failed"));
        assert!(start.elapsed() < Duration::from_mins(5));
        check_interrupt().unwrap();
        let sum = parallel(|group| {
            let one = group.start(|| Ok(1));
            Ok(one.join()? + 1)
        });
        assert_eq!(sum.unwrap(), 2);
    }

    #[test]
    fn the_line_of_steps_fits_into_the_terminal() {
        let step = |what: &str| (what.to_owned(), Instant::now());
        let steps = Steps { running: vec![step("compiling"), step("fetching")], drawn: None };
        assert!(steps.line(80).contains("compiling … 0.0 s · fetching"), "{}", steps.line(80));
        assert!(steps.line(20).chars().count() < 20);
    }
}
