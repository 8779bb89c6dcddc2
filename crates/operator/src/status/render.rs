//! The tree as text.

use engine::podset::Deadline;
use jiff::{SignedDuration, Timestamp};
use slurm::hostlist;

use super::model::{Attention, Branch, Event, Health, Progress, Tree, Workers};

/// The number of characters of a bar.
const BAR: u32 = 20;

/// Longer names and messages are cut.
const LONGEST: usize = 500;

/// How wide the column of node names becomes at most.
const NAMES: usize = 30;

/// How a piece of text looks on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Bold,
    Dim,
    Of(Health),
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bold => "\u{1b}[1m",
            Self::Dim | Self::Of(Health::Unknown) => "\u{1b}[2m",
            Self::Of(Health::Good) => "\u{1b}[32m",
            Self::Of(Health::Busy) => "\u{1b}[36m",
            Self::Of(Health::Warning) => "\u{1b}[33m",
            Self::Of(Health::Bad) => "\u{1b}[31m",
        }
    }
}

/// One line, in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line(Vec<(Style, String)>);

impl Line {
    pub fn new(style: Style, text: impl Into<String>) -> Self {
        Self(vec![(style, text.into())])
    }

    #[must_use]
    pub fn then(mut self, style: Style, text: impl Into<String>) -> Self {
        self.0.push((style, text.into()));
        self
    }

    /// The text, with colours if wanted, and not longer than the terminal is wide.
    fn text(&self, colours: bool, width: usize) -> String {
        let mut left = width;
        let mut out = String::new();
        for (style, text) in &self.0 {
            let shown: String = text.chars().take(left).collect();
            left = left.saturating_sub(shown.chars().count());
            match (colours, style.code()) {
                (true, code) if !code.is_empty() => out.extend([code, &*shown, "\u{1b}[0m"]),
                _ => out.push_str(&shown),
            }
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// Width and height of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: usize,
    pub height: usize,
}

/// Prints lines, one below the other. On a terminal of a size, those that do not fit are counted.
pub fn print(lines: &[Line], colours: bool, size: Option<Size>) -> String {
    let width = size.map_or(usize::MAX, |size| size.width);
    let most = size.map_or(usize::MAX, |size| size.height.saturating_sub(1).max(1));
    let shown = if lines.len() > most { most.saturating_sub(1) } else { lines.len() };
    let mut out: String = lines.iter().take(shown).map(|line| line.text(colours, width) + "\n").collect();
    if shown < lines.len() {
        let more = Line::new(Style::Dim, format!("… {} more lines", lines.len().saturating_sub(shown)));
        out.push_str(&(more.text(colours, width) + "\n"));
    }
    out
}

/// A mark that tells how something is without colours, too.
pub fn mark(health: Health) -> &'static str {
    match health {
        Health::Good => "●",
        Health::Busy => "◐",
        Health::Unknown => "○",
        Health::Warning => "▲",
        Health::Bad => "✗",
    }
}

/// Names and messages come from users: no control character of theirs reaches a terminal.
pub fn clean(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let plain: String = plain.take(LONGEST).collect();
    if text.chars().count() > LONGEST { format!("{plain}…") } else { plain }
}

/// The whole tree.
pub fn lines(tree: &Tree, now: Timestamp) -> Vec<Line> {
    let mut out = Vec::new();
    if !tree.attention.is_empty() {
        out.push(Line::new(Style::Bold, "Needs attention"));
        out.extend(tree.attention.iter().map(|found| attention(found, tree)));
        out.push(Line::default());
    }
    for cluster in &tree.clusters {
        let title = format!("{}/{}", cluster.namespace, cluster.name);
        out.push(head(cluster, title.trim_end_matches('/')));
        body(cluster, "", now, &mut out);
    }
    if tree.clusters.is_empty() {
        let place =
            tree.namespace.as_ref().map_or_else(|| "any namespace".to_owned(), |name| format!("the namespace {name}"));
        out.push(Line::new(Style::Plain, format!("no Slurm cluster in {place}")));
    }
    if !tree.events.is_empty() {
        out.push(Line::default());
        out.push(Line::new(Style::Bold, "Last events"));
        out.extend(tree.events.iter().map(|found| event(found, tree, now)));
    }
    if !tree.unread.is_empty() {
        out.push(Line::default());
        out.push(Line::new(Style::Bold, "Not read"));
        let line =
            |unread: &super::model::Unread| Line::new(Style::Dim, format!("  {}: {}", unread.what, clean(&unread.why)));
        out.extend(tree.unread.iter().map(line));
    }
    out
}

/// Without the namespace, if only one is shown.
fn local(object: &str, tree: &Tree) -> String {
    match &tree.namespace {
        Some(namespace) => clean(&object.replacen(&format!(" {namespace}/"), " ", 1)),
        None => clean(object),
    }
}

fn attention(found: &Attention, tree: &Tree) -> Line {
    let style = Style::Of(found.health);
    Line::new(style, format!("  {} {}", mark(found.health), local(&found.object, tree)))
        .then(Style::Plain, format!("  {}: {}", clean(&found.reason), clean(&found.message)))
}

fn head(branch: &Branch, title: &str) -> Line {
    let style = Style::Of(branch.health);
    Line::new(style, format!("{} ", mark(branch.health)))
        .then(Style::Bold, clean(format!("{} {title}", branch.kind).trim()))
        .then(Style::Plain, format!("  {}", clean(&branch.summary)))
}

/// What is below a head: progress, notes, workers and children.
fn body(branch: &Branch, indent: &str, now: Timestamp, out: &mut Vec<Line>) {
    let stem = if branch.workers.is_empty() && branch.children.is_empty() { "   " } else { "│  " };
    let inner = format!("{indent}{stem}");
    for progress in &branch.progress {
        out.push(Line::new(Style::Dim, inner.clone()).then(Style::Of(Health::Busy), progress_text(progress)));
    }
    for note in &branch.notes {
        out.push(Line::new(Style::Dim, inner.clone()).then(Style::Plain, clean(note)));
    }
    let rows = branch.workers.len().saturating_add(branch.children.len());
    let (names, states) = widths(&branch.workers);
    for (index, workers) in branch.workers.iter().enumerate() {
        let (twig, _) = twigs(index, rows);
        out.push(worker_line(workers, &format!("{indent}{twig}"), names, states, now));
    }
    for (index, child) in branch.children.iter().enumerate() {
        let (twig, below) = twigs(index.saturating_add(branch.workers.len()), rows);
        let Line(mut pieces) = head(child, &child.name);
        pieces.insert(0, (Style::Dim, format!("{indent}{twig}")));
        out.push(Line(pieces));
        body(child, &format!("{indent}{below}"), now, out);
    }
}

/// What is before a row, and before the lines below it.
fn twigs(index: usize, rows: usize) -> (&'static str, &'static str) {
    if index.saturating_add(1) < rows { ("├─ ", "│  ") } else { ("└─ ", "   ") }
}

fn widths(workers: &[Workers]) -> (usize, usize) {
    let longest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or_default();
    let names = longest(&mut workers.iter().map(|group| names(group).chars().count()));
    (names.min(NAMES), longest(&mut workers.iter().map(|group| group.state.chars().count())))
}

fn names(group: &Workers) -> String {
    clean(&hostlist::text(group.nodes.iter().map(String::as_str)))
}

fn worker_line(group: &Workers, indent: &str, width: usize, states: usize, now: Timestamp) -> Line {
    let count = match group.nodes.len() {
        0 | 1 => String::new(),
        number => format!("{number} workers "),
    };
    let line = Line::new(Style::Dim, indent)
        .then(Style::Of(group.health), format!("{} ", mark(group.health)))
        .then(Style::Plain, format!("{:width$}  ", names(group)))
        .then(Style::Of(group.health), format!("{:states$}  ", group.state))
        .then(Style::Plain, format!("{count}{}", clean(&group.why)));
    let line = match (&group.jobs_end, group.drained_since) {
        // The blocker has the time.
        (Some(Deadline::At(end)), Some(since)) => {
            return line.then(Style::Of(Health::Busy), format!("  {}", time_bar(since, *end, now)));
        }
        (Some(Deadline::At(end)), None) if !group.why.contains(" until ") => {
            line.then(Style::Dim, format!(", jobs until {}", time(*end, now)))
        }
        (Some(Deadline::Never), None) => line.then(Style::Dim, ", a job has no time limit"),
        _ => line,
    };
    match group.drained_since {
        Some(since) => line.then(Style::Dim, format!(", drained since {}", time(since, now))),
        None => line,
    }
}

fn progress_text(progress: &Progress) -> String {
    let Progress { what, done, all } = progress;
    format!("{what} {} {done} of {all}", bar(*done, *all))
}

/// A bar that is full only if everything is done.
pub fn bar(done: u32, all: u32) -> String {
    let full = u64::from(done).saturating_mul(BAR.into()).checked_div(all.into()).unwrap_or_default();
    let full = usize::try_from(full.min(BAR.into())).unwrap_or_default();
    let rest = usize::try_from(BAR).unwrap_or_default().saturating_sub(full);
    format!("{}{}", "█".repeat(full), "░".repeat(rest))
}

/// How much of the time has passed until the last job ends.
fn time_bar(since: Timestamp, end: Timestamp, now: Timestamp) -> String {
    let seconds =
        |from: Timestamp, to: Timestamp| u32::try_from(to.duration_since(from).as_secs().max(0)).unwrap_or(u32::MAX);
    let (passed, all) = (seconds(since, now), seconds(since, end));
    let passed = passed.min(all);
    let percent = u64::from(passed).saturating_mul(100).checked_div(all.into()).unwrap_or(100);
    format!("{} {percent}% of the time", bar(passed, all))
}

fn event(event: &Event, tree: &Tree, now: Timestamp) -> Line {
    let style = if event.is_warning { Style::Of(Health::Warning) } else { Style::Dim };
    let when = event.time.map_or_else(|| "-".to_owned(), |then| time(then, now));
    let times = if event.count > 1 { format!(" ({} times)", event.count) } else { String::new() };
    let text = format!("  {}: {}{times}", clean(&event.reason), clean(&event.message));
    Line::new(style, format!("  {when}  {}", local(&event.object, tree))).then(Style::Plain, text)
}

/// A time of day, with the date if it is not near.
pub fn time(then: Timestamp, now: Timestamp) -> String {
    let is_near = then.duration_since(now).abs() < SignedDuration::from_hours(20);
    then.strftime(if is_near { "%H:%M:%S UTC" } else { "%Y-%m-%d %H:%M UTC" }).to_string()
}
