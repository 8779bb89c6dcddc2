//! `slurm-operator report`: one archive for a bug report, without secrets, with the rights of whoever calls it.
//!
//! What goes into the archive goes through [`Report`], which removes secrets from it. What could not be read is listed.

mod archive;
mod live;
pub mod plan_parts;
pub mod plan_redact;
pub mod plan_slurm;
pub mod plan_text;
mod read;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use jiff::Timestamp;
use serde_json::Value;

use crate::{
    explain,
    status::{
        block_on,
        model::{Event, Facts, Unread},
        plan_tree::{Scope, tree},
        read::{ConnectArgs, Reader},
        render,
    },
};
use plan_parts::{Log, MOST_WORKERS, events, logs, namespaces, parts, references, text, without_images};
use plan_redact::Redactor;
use plan_text::Form;

/// Flags of `slurm-operator report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The cluster.
    #[command(flatten)]
    pub connect: ConnectArgs,
    /// The archive; `-` is standard output. Defaults to `slurm-report-NAMESPACE-TIME.tar.gz` here
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "slurm-operator")]
    pub operator_namespace: String,
}

/// Collects everything, and writes the archive.
pub fn run(args: &ReportArgs, out: &mut dyn Write) -> Result<()> {
    let now = Timestamp::now();
    let (report, scope) = block_on(async {
        let reader = args.connect.connect().await?;
        let scope = reader.namespace.clone().unwrap_or_else(|| "all".to_owned());
        Ok((collect(&reader, &args.operator_namespace, now).await?, scope))
    })?;
    let folder = format!("slurm-report-{scope}-{}", now.strftime("%Y%m%dT%H%M%SZ"));
    let unread = report.unread.len();
    let files = report.finish(&scope, now);
    let archive = archive::pack(&folder, &files, now)?;
    let path = args.output.clone().unwrap_or_else(|| format!("{folder}.tar.gz").into());
    if path.as_os_str() == "-" {
        return out.write_all(&archive).and_then(|()| out.flush()).context("cannot write the archive");
    }
    archive::save(&path, &archive)?;
    let missing =
        if unread == 0 { String::new() } else { format!("; {unread} things could not be read (not-read.txt)") };
    writeln!(
        out,
        "{}: {} files{missing}\nSecrets were removed as far as they can be known. Names of machines, users and jobs may be in messages and logs: look through it before you send it.",
        path.display(),
        files.len()
    )?;
    Ok(())
}

/// The files of the archive.
#[derive(Debug, Default)]
pub struct Report {
    redactor: Redactor,
    files: BTreeMap<String, String>,
    unread: Vec<Unread>,
}

impl Report {
    fn put_text(&mut self, path: String, text: &str) {
        let text = self.redactor.text(text, Form::Prose);
        self.files.insert(path, text);
    }

    /// Objects, in one file for each kind and namespace.
    fn put_objects(&mut self, objects: &[Value]) -> Result<()> {
        let mut files: BTreeMap<String, String> = BTreeMap::new();
        for object in objects {
            let (kind, namespace) = (text(object, "/kind"), text(object, "/metadata/namespace"));
            let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
            let yaml = serde_saphyr::to_string(&self.redactor.object(object))
                .with_context(|| format!("cannot write {kind} {namespace}/{}", text(object, "/metadata/name")))?;
            let file = files.entry(format!("{place}{}.yaml", kind.to_lowercase())).or_default();
            file.extend(["---\n", yaml.trim_end(), "\n"]);
        }
        for (path, yaml) in files {
            let yaml = self.redactor.made(&yaml);
            self.files.insert(path, yaml);
        }
        Ok(())
    }

    fn put_logs(&mut self, read: Vec<(Log, Result<String, Unread>)>) {
        for (log, found) in read {
            let previous = if log.is_previous { ".previous" } else { "" };
            let path = format!("{}/logs/{}/{}{previous}.log", log.namespace, log.pod, log.container);
            match found {
                Ok(found) => self.put_text(path, &found),
                Err(unread) => self.unread.push(unread),
            }
        }
    }

    fn not_read(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.unread.push(Unread { what: what.into(), why: why.into() });
    }

    /// All files, with those about the report itself.
    fn finish(mut self, scope: &str, now: Timestamp) -> BTreeMap<String, String> {
        let mut unread = String::new();
        for Unread { what, why } in &self.unread {
            unread.extend([what.as_str(), ": ", why.as_str(), "\n"]);
        }
        if !unread.is_empty() {
            self.put_text("not-read.txt".to_owned(), &unread);
        }
        let about = format!(
            "Made by slurm-operator {} at {now:.0}, of the namespace {scope}.\n\n\
             status.txt, explain.txt   what `slurm-operator status` and `explain` say\n\
             not-read.txt              what could not be read, and why\n\
             NAMESPACE/KIND.yaml       our objects, what belongs to them and what they refer to\n\
             NAMESPACE/events.txt      their events\n\
             NAMESPACE/logs            the end of the logs of daemons, and of {MOST_WORKERS} workers at most\n\
             NAMESPACE/slurm           nodes, jobs and statistics of Slurm, without names of users and jobs\n\
             NAMESPACE/debug           what the operator knows of Slurm, and what it waits for\n\n\
             Of Secrets there are the sizes of entries. Passwords, tokens and keys were removed from everything else, and numbers stand\n\
             for their hashes. Names of machines may be anywhere, those of users and jobs in messages and logs: look through it before you\n\
             send it.\n",
            env!("CARGO_PKG_VERSION")
        );
        self.files.insert("README.txt".to_owned(), about);
        self.files
    }
}

/// Reads everything that may be read. Fails only if none of our kinds can be.
pub async fn collect(reader: &Reader, operator_namespace: &str, now: Timestamp) -> Result<Report> {
    // What people see, with its own error if nothing is there.
    let facts = reader.read(now).await?;
    let mut found = read::clusters(reader).await;
    let namespaces = namespaces(&found.objects);
    if !namespaces.contains(operator_namespace) {
        let (client, namespace) = (reader.client.clone(), Some(operator_namespace.to_owned()));
        found.add(read::operator(&Reader { client, namespace, is_cached: reader.is_cached }).await);
    }
    let nodes = read::nodes(reader).await;

    let mut report = Report::default();
    report.unread.extend(found.unread.into_iter().chain(nodes.unread));
    let objects = parts(found.objects);
    let secrets =
        read::secrets(reader, references(objects.iter()).into_iter().filter(|name| name.kind == "Secret").collect())
            .await;
    report.unread.extend(secrets.unread);

    // Before anything is written: what is known to be secret is removed everywhere.
    for secret in &secrets.objects {
        report.redactor.learn_secret(secret);
    }
    for object in objects.iter().chain(&secrets.objects) {
        report.redactor.learn_hashes(object);
    }
    report.put_objects(&objects)?;
    report.put_objects(&secrets.objects)?;
    let mut nodes = nodes.objects;
    nodes.iter_mut().for_each(without_images);
    report.put_objects(&nodes)?;
    put_events(&mut report, &events(found.events, &objects));
    put_status(&mut report, reader, &facts, now);

    let (wanted, left) = logs(&objects);
    if left > 0 {
        report.not_read(
            format!("logs of {left} workers"),
            format!("only those of {MOST_WORKERS} are read, first of those that are not well"),
        );
    }
    let read = Box::pin(read::logs(reader, wanted)).await;
    report.put_logs(read);
    Box::pin(put_operator(&mut report, reader, &objects, operator_namespace)).await;
    Box::pin(put_slurm(&mut report, reader, &facts)).await;
    Ok(report)
}

fn put_events(report: &mut Report, events: &[Value]) {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for value in events {
        let Some(event) = Event::new(value) else { continue };
        let time = event.time.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"));
        let type_ = if event.is_warning { "Warning" } else { "Normal" };
        let line =
            format!("{time}  {type_}  {}  {} ({} times): {}\n", event.object, event.reason, event.count, event.message);
        let path = format!("{}/events.txt", text(value, "/metadata/namespace"));
        files.entry(path).or_default().push_str(&line);
    }
    for (path, lines) in files {
        report.put_text(path, &lines);
    }
}

fn put_status(report: &mut Report, reader: &Reader, facts: &Facts, now: Timestamp) {
    let tree = tree(facts, &Scope { namespace: reader.namespace.clone(), events: 50 }, now);
    report.put_text("status.txt".to_owned(), &render::print(&render::lines(&tree, now), false, None));
    report.put_text("explain.txt".to_owned(), &explain::everything(facts, now));
}

/// What the operator's pods show.
async fn put_operator(report: &mut Report, reader: &Reader, objects: &[Value], namespace: &str) {
    let is_operator = |object: &&Value| {
        let arg = text(object, "/spec/containers/0/args/0");
        text(object, "/kind") == "Pod" && text(object, "/metadata/namespace") == namespace && arg == "manager"
    };
    let mut pods = objects.iter().filter(is_operator).peekable();
    if pods.peek().is_none() {
        report.not_read(
            "the operator",
            format!("no pod of it is known in the namespace {namespace}: see --operator-namespace"),
        );
    }
    for pod in pods {
        let name = text(pod, "/metadata/name");
        for (file, flag, port, path) in
            [("vars.json", "--health-addr", 8081, "/debug/vars"), ("metrics.txt", "--metrics-addr", 8080, "/metrics")]
        {
            match live::page(&reader.client, pod, flag, port, path).await {
                Ok(page) => report.put_text(format!("{namespace}/debug/{name}/{file}"), &page),
                Err(why) => report.not_read(format!("{path} of Pod {namespace}/{name}"), why),
            }
        }
    }
}

/// What Slurm says.
async fn put_slurm(report: &mut Report, reader: &Reader, facts: &Facts) {
    for controller in facts.objects.iter().filter(|object| object.kind == "Controller") {
        let title = controller.title();
        match live::slurm(&reader.client, controller, facts).await {
            Ok((found, problems)) => {
                for (file, text) in plan_slurm::files(&found) {
                    report.put_text(format!("{}/slurm/{}/{file}", controller.namespace, controller.name), &text);
                }
                for problem in problems {
                    report.not_read(format!("Slurm of {title}"), problem);
                }
            }
            Err(why) => report.not_read(format!("Slurm of {title}"), why),
        }
    }
}
