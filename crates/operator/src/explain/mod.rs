//! `slurm-operator explain nodeset/gpu`: why an object is as it is, and why each worker is where it is.
//!
//! The reasons are those of the plan (`engine::podset::explain`), made from what a viewer can read.

mod plan_explain;
#[cfg(test)]
mod tests;

use std::io::Write;

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use kube::api::ApiResource;
use serde_json::json;

use crate::status::{
    Format, Screen, block_on,
    model::{Facts, Health, Object, Unread},
    read::{ConnectArgs, kinds},
    render::{Line, Style, clean, mark, print, time},
};
use plan_explain::{Answer, answer};

/// Flags of `slurm-operator explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// The cluster.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// What to explain: KIND/NAME, or KIND for all of a kind, such as `nodeset/gpu`, `controller/slurm` or `loginsets`
    #[arg(required = true, value_name = "KIND[/NAME]")]
    pub objects: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
}

/// Prints why objects are as they are.
pub fn run(args: &ExplainArgs, out: &mut dyn Write) -> Result<()> {
    let mut screen = Screen::new(out);
    let wanted: Vec<(String, Option<String>)> = args.objects.iter().map(|text| parse(text)).collect::<Result<_>>()?;
    let (facts, now) = block_on(async {
        let now = Timestamp::now();
        Ok((args.connect.connect().await?.read(now).await?, now))
    })?;
    let answers = answers(&wanted, &facts, now)?;
    let text = match args.output {
        Format::Json => format!("{:#}\n", json!(answers)),
        Format::Text => print(&lines(&answers, now), screen.colours(), None),
    };
    screen.write(&text).map(drop)
}

/// Why all objects are as they are, as text.
pub fn everything(facts: &Facts, now: Timestamp) -> String {
    let answers: Vec<Answer> = facts.objects.iter().map(|object| answer(object, facts, now)).collect();
    print(&lines(&answers, now), false, None)
}

/// Kind and name.
fn parse(text: &str) -> Result<(String, Option<String>)> {
    let (kind, name) = text.split_once('/').map_or((text, None), |(kind, name)| (kind, Some(name)));
    let all = kinds();
    let is_meant = |known: &&ApiResource| {
        let words = [known.kind.to_lowercase(), known.plural.clone(), format!("{}.{}", known.plural, known.group)];
        words.contains(&kind.to_lowercase())
    };
    let Some(known) = all.iter().find(is_meant) else {
        let names: Vec<String> = all.iter().map(|known| known.kind.to_lowercase()).collect();
        bail!("{kind} is none of these kinds: {}", names.join(", "));
    };
    Ok((known.kind.clone(), name.filter(|name| !name.is_empty()).map(str::to_owned)))
}

fn answers(wanted: &[(String, Option<String>)], facts: &Facts, now: Timestamp) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for (kind, name) in wanted {
        let is_meant = |object: &&Object| object.kind == *kind && name.as_ref().is_none_or(|name| *name == object.name);
        let found: Vec<Answer> =
            facts.objects.iter().filter(is_meant).map(|object| answer(object, facts, now)).collect();
        // Of a whole kind there may be none.
        if found.is_empty() && (name.is_some() || facts.unread.iter().any(|unread| is_of(kind, unread))) {
            let title = name.as_ref().map_or_else(|| kind.clone(), |name| format!("{kind} {name}"));
            let problem = facts.unread.iter().find(|unread| is_of(kind, unread));
            None.with_context(|| match problem {
                Some(unread) => format!("cannot read {title}: {}", unread.why),
                None => format!("there is no {title} here: see --namespace and --all-namespaces"),
            })?;
        }
        answers.extend(found);
    }
    Ok(answers)
}

fn is_of(kind: &str, unread: &Unread) -> bool {
    unread.what.trim_end_matches('s') == kind.to_lowercase()
}

fn lines(answers: &[Answer], now: Timestamp) -> Vec<Line> {
    let mut out = Vec::new();
    for answer in answers {
        if !out.is_empty() {
            out.push(Line::default());
        }
        let title = format!("{} {}/{}", answer.kind, answer.namespace, answer.name);
        let head = Line::new(Style::Of(answer.health), format!("{} ", mark(answer.health)));
        out.push(head.then(Style::Bold, clean(&title)).then(Style::Plain, format!("  {}", clean(&answer.summary))));
        out.extend(answer.notes.iter().map(|note| Line::new(Style::Plain, format!("  {}", clean(note)))));
        conditions(answer, now, &mut out);
        workers(answer, &mut out);
        events(answer, now, &mut out);
    }
    if answers.is_empty() {
        out.push(Line::new(Style::Plain, "there is none here: see --namespace and --all-namespaces"));
    }
    let unread = answers.first().map(|answer| answer.unread.as_slice()).unwrap_or_default();
    if !unread.is_empty() {
        out.push(Line::default());
        out.push(Line::new(Style::Bold, "Not read"));
        out.extend(unread.iter().map(not_read));
    }
    out
}

fn title(text: &str) -> Line {
    Line::new(Style::Bold, format!("  {text}"))
}

fn conditions(answer: &Answer, now: Timestamp, out: &mut Vec<Line>) {
    if answer.conditions.is_empty() {
        return;
    }
    out.push(title("Conditions"));
    for found in &answer.conditions {
        let style = if found.health == Health::Good { Style::Plain } else { Style::Of(found.health) };
        let head = format!("    {} {}={} ({})", mark(found.health), found.type_, found.status, found.reason);
        let text = format!(" since {}: {}", time(found.since, now), clean(&found.message));
        out.push(Line::new(style, clean(&head)).then(Style::Plain, text.trim_end_matches(": ")));
    }
}

fn workers(answer: &Answer, out: &mut Vec<Line>) {
    if !answer.workers.is_empty() {
        out.push(title("Workers"));
    }
    for worker in &answer.workers {
        let style = Style::Of(worker.health);
        let name = match &worker.slurm_node {
            Some(node) if *node != worker.pod => format!("{node} (pod {})", worker.pod),
            _ => worker.pod.clone(),
        };
        let head = Line::new(style, format!("    {} ", mark(worker.health)));
        let place = worker.kubernetes_node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        let head = head.then(Style::Bold, clean(&name)).then(Style::Plain, clean(&place));
        out.push(
            head.then(style, format!("  {}", worker.state)).then(Style::Plain, format!("  {}", clean(&worker.message))),
        );
        out.extend(worker.notes.iter().map(|note| Line::new(Style::Dim, format!("        {}", clean(note)))));
    }
    if !answer.pods.is_empty() {
        out.push(title("Pods"));
    }
    for pod in &answer.pods {
        let head = Line::new(Style::Of(pod.health), format!("    {} {}", mark(pod.health), clean(&pod.name)));
        out.push(head.then(Style::Plain, format!("  {}", clean(&pod.message))));
    }
}

fn events(answer: &Answer, now: Timestamp, out: &mut Vec<Line>) {
    if !answer.events.is_empty() {
        out.push(title("Last events"));
    }
    for event in &answer.events {
        let style = if event.is_warning { Style::Of(Health::Warning) } else { Style::Dim };
        let when = event.time.map_or_else(|| "-".to_owned(), |then| time(then, now));
        let text = format!("  {}: {}", clean(&event.reason), clean(&event.message));
        out.push(Line::new(style, format!("    {when}")).then(Style::Plain, text));
    }
}

fn not_read(unread: &Unread) -> Line {
    let meaning = match unread.what.as_str() {
        "nodes" => " (cordons are known from the annotations of workers)",
        "pods" => " (workers are unknown)",
        "events" => " (no events are shown)",
        "controllers" => " (whether Slurm answers is unknown)",
        _ => "",
    };
    Line::new(Style::Dim, format!("  {}: {}{meaning}", unread.what, clean(&unread.why)))
}
