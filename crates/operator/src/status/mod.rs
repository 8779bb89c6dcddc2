//! `slurm-operator status`: clusters, daemons and workers as a tree, with the rights of a viewer and without the operator.
//!
//! It is made from what objects show: conditions, the labels, annotations and conditions of pods, and events. Secrets, Slurm and the
//! operator are never asked.

pub mod model;
pub mod plan_tree;
pub mod plan_workers;
pub mod read;
pub mod render;
#[cfg(test)]
pub(crate) mod tests;

use std::{
    io::{ErrorKind, IsTerminal, Write},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use jiff::Timestamp;

use crate::process::signals;
use model::Tree;
use plan_tree::{Scope, tree};
use read::{ConnectArgs, Reader};
use render::Size;

/// How often `--watch` reads everything.
const EVERY: Duration = Duration::from_secs(1);

/// Reading takes at most this share of the time.
const SHARE: u32 = 5;

/// Flags of `slurm-operator status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The cluster.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// Show it again whenever something changes, until Ctrl-C
    #[arg(short, long)]
    pub watch: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// The number of events
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub events: usize,
}

/// Output formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A tree, with colours on a terminal.
    #[default]
    Text,
    /// One object; with --watch one per line.
    Json,
}

/// Where the output goes.
pub struct Screen<'a> {
    out: &'a mut dyn Write,
    is_terminal: bool,
    colours: bool,
}

impl<'a> Screen<'a> {
    /// Colours are only for terminals, and not if `NO_COLOR` is set (<https://no-color.org>).
    pub fn new(out: &'a mut dyn Write) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self { out, is_terminal, colours: is_terminal && !is_plain }
    }

    pub fn colours(&self) -> bool {
        self.colours
    }

    /// A closed pipe (`| head`) is not an error.
    pub fn write(&mut self, text: &str) -> Result<Flow> {
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Ok(()) => Ok(Flow::Goes),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Flow::Closed),
            Err(error) => Err(error).context("cannot write the output"),
        }
    }
}

/// Whether somebody still reads the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Goes,
    Closed,
}

/// Runs a future of a command that people call.
pub fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(work)
}

/// Prints the tree once, or until a signal.
pub fn run(args: &StatusArgs, out: &mut dyn Write) -> Result<()> {
    let screen = Screen::new(out);
    block_on(async {
        let reader = args.connect.connect().await?;
        if !args.watch {
            return once(&reader, args, screen).await;
        }
        tokio::select! {
            result = watch(reader, args, screen) => result,
            signalled = signals() => signalled,
        }
    })
}

fn scope(reader: &Reader, args: &StatusArgs) -> Scope {
    Scope { namespace: reader.namespace.clone(), events: args.events }
}

async fn once(reader: &Reader, args: &StatusArgs, mut screen: Screen<'_>) -> Result<()> {
    let now = Timestamp::now();
    let facts = reader.read(now).await?;
    let tree = tree(&facts, &scope(reader, args), now);
    let text = match args.output {
        Format::Json => serde_json::to_string_pretty(&tree)? + "\n",
        Format::Text => render::print(&render::lines(&tree, now), screen.colours, None),
    };
    screen.write(&text).map(drop)
}

async fn watch(mut reader: Reader, args: &StatusArgs, mut screen: Screen<'_>) -> Result<()> {
    // What cannot be read at first is an error. Later it is shown, and tried again.
    let mut facts = reader.read(Timestamp::now()).await?;
    reader.is_cached = true;
    let scope = scope(&reader, args);
    let mut view = View::default();
    loop {
        let now = Timestamp::now();
        let tree = tree(&facts, &scope, now);
        if let Some(text) = view.next(tree, args.output, now, &Output::of(&screen))?
            && screen.write(&text)? == Flow::Closed
        {
            return Ok(());
        }
        let started = Instant::now();
        let read = reader.read(Timestamp::now()).await;
        let took = started.elapsed();
        match read {
            Ok(found) => facts = found,
            Err(error) => facts.unread = vec![lost(&error)],
        }
        tokio::time::sleep(EVERY.max(took * SHARE)).await;
    }
}

/// Nothing could be read: the last tree stays, and says so.
fn lost(error: &anyhow::Error) -> model::Unread {
    model::Unread { what: "everything".to_owned(), why: format!("{error:#}; what is shown was read before") }
}

/// How the text is shown.
struct Output {
    size: Option<Size>,
    is_terminal: bool,
    colours: bool,
}

impl Output {
    fn of(screen: &Screen<'_>) -> Self {
        let Screen { is_terminal, colours, .. } = *screen;
        let size = || {
            let found = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
            let size = Size { width: found.ws_col.into(), height: found.ws_row.into() };
            (size.width > 0 && size.height > 0).then_some(size)
        };
        Self { size: is_terminal.then(size).flatten(), is_terminal, colours }
    }
}

/// What was shown last.
#[derive(Default)]
struct View {
    tree: Option<Tree>,
    text: String,
}

impl View {
    /// What to write next; `None` if nothing has changed. A terminal is drawn again, and other output gets another block.
    fn next(&mut self, tree: Tree, format: Format, now: Timestamp, output: &Output) -> Result<Option<String>> {
        let is_same = self.tree.as_ref() == Some(&tree);
        if is_same && (format == Format::Json || !output.is_terminal) {
            return Ok(None);
        }
        if format == Format::Json {
            let line = serde_json::to_string(&tree)? + "\n";
            self.tree = Some(tree);
            return Ok(Some(line));
        }
        let text = render::print(&render::lines(&tree, now), output.colours, output.size);
        self.tree = Some(tree);
        if !output.is_terminal {
            return Ok(Some(format!("--- {}\n{text}\n", now.strftime("%Y-%m-%d %H:%M:%S UTC"))));
        }
        // Bars move with the time.
        if text == self.text {
            return Ok(None);
        }
        // From the top left corner; what is left of longer lines and of more lines is cleared.
        let drawn = text.replace('\n', "\u{1b}[K\n");
        self.text = text;
        Ok(Some(format!("\u{1b}[H{drawn}\u{1b}[J")))
    }
}
