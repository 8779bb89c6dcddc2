//! Checks all files of a cluster together: what one names must be in another.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    Item, Pair,
    check::{Checker, Severity},
    keys::{Release, Table},
    parse, qos, topology,
};
use crate::{hostlist, version::SlurmVersion};

/// The folder of the configuration in the containers of slurmctld.
const FOLDER: &str = "/etc/slurm/";

/// More than Slurm has room for: a few short lines can be many names.
const MAX_NODES: usize = 100_000;

/// Files that include the next one twice would be read without end.
const MAX_INCLUDES: usize = 1000;

/// What users have written for a cluster.
#[derive(Clone, Debug, Default)]
pub struct UserConf<'a> {
    pub version: Option<SlurmVersion>,
    pub cluster_name: &'a str,
    /// The user's part of slurm.conf.
    pub extra: UserFile<'a>,
    /// The user's files in /etc/slurm. Of files with the same name, the last one counts.
    pub files: Vec<UserFile<'a>>,
    /// The partitions that the operator adds, and the objects that they belong to.
    pub partitions: Vec<(&'a str, &'a str)>,
    /// The QOS of slurmdbd, if it could be asked.
    pub qos: Option<&'a BTreeSet<String>>,
}

/// A file that a user provides.
#[derive(Clone, Debug, Default)]
pub struct UserFile<'a> {
    /// For messages: a field of an object, or a `ConfigMap`.
    pub origin: Cow<'a, str>,
    pub name: &'a str,
    pub content: &'a [u8],
    /// Whether Slurm executes it, because the operator adds it to slurm.conf as a prolog or an epilog.
    pub is_script: bool,
}

/// What is wrong with the configuration of a cluster. Each text says where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What would end a daemon or drain nodes.
    pub errors: Vec<String>,
    /// What Slurm ignores, or what may be wrong.
    pub warnings: Vec<String>,
    /// Programs and files that cannot be seen from here.
    pub unchecked: Vec<String>,
}

/// Checks the keys of all files, and whether the files fit together.
pub fn check_cluster(conf: &UserConf) -> Report {
    let mut cluster = Cluster { conf, report: Report::default(), settings: Vec::new(), includes: 0 };
    cluster.read(&conf.extra, Table::SlurmConf, &mut vec!["slurm.conf"]);
    for file in &conf.files {
        if let Some(table) = Table::of_file(file.name) {
            cluster.read(file, table, &mut vec![file.name]);
        }
        if file.is_script {
            cluster.executable(file);
        }
    }
    cluster.programs();
    cluster.partitions();
    cluster.qos();
    cluster.tres();
    cluster.nodes();
    cluster.lua();
    cluster.acct_gather();
    cluster.topology();
    cluster.report
}

struct Cluster<'a> {
    conf: &'a UserConf<'a>,
    report: Report,
    /// The lines of slurm.conf and of the files that it includes.
    settings: Vec<Setting>,
    includes: usize,
}

/// A line of slurm.conf.
struct Setting {
    /// The text and the line.
    place: String,
    pairs: Vec<Pair>,
}

/// Programs that slurmd runs. slurmctld sends it those of the first list, if they have no path.
const SENT_TO_SLURMD: &[&str] = &["Epilog", "Prolog", "TaskEpilog", "TaskProlog"];
const RUN_BY_SLURMD: &[&str] = &["HealthCheckProgram", "RebootProgram", "UnkillableStepProgram"];

/// Programs that slurmctld runs.
const RUN_BY_SLURMCTLD: &[&str] = &[
    "EpilogSlurmctld",
    "JobCompPassScript",
    "MailProg",
    "PrologSlurmctld",
    "ResumeFailProgram",
    "ResumeProgram",
    "ResvEpilog",
    "ResvProlog",
    "SlurmctldPrimaryOffProg",
    "SlurmctldPrimaryOnProg",
    "SuspendProgram",
];

/// Trackable resources, and the beginnings of those with a name.
const TRES: &[&str] = &["billing", "cpu", "energy", "mem", "node", "pages", "vmem"];
const TRES_WITH_NAME: &[&str] = &["bb/", "fs/", "gres/", "ic/", "license/"];

/// Keys of `acct_gather.conf`: how they begin, which settings of slurm.conf load their plugin, and its name.
const ACCT_GATHER: &[(&str, &[&str], &[&str])] = &[
    ("EnergyIPMI", &["AcctGatherEnergyType"], &["ipmi", "xcc"]),
    ("EnergyXCC", &["AcctGatherEnergyType"], &["xcc"]),
    ("InfinibandOFED", &["AcctGatherInterconnectType", "AcctGatherInfinibandType"], &["ofed"]),
    ("InterconnectOFED", &["AcctGatherInterconnectType", "AcctGatherInfinibandType"], &["ofed"]),
    ("ProfileHDF5", &["AcctGatherProfileType"], &["hdf5"]),
    ("ProfileInfluxDB", &["AcctGatherProfileType"], &["influxdb"]),
    ("SysfsInterfaces", &["AcctGatherInterconnectType"], &["sysfs"]),
];

impl<'a> Cluster<'a> {
    fn file(&self, name: &str) -> Option<&'a UserFile<'a>> {
        self.conf.files.iter().rfind(|file| file.name == name)
    }

    fn error(&mut self, place: &str, text: &str) {
        self.report.errors.push(format!("{place}: {text}"));
    }

    fn errors(&mut self, file: &UserFile, texts: &[String]) {
        for text in texts {
            self.error(&file.origin, text);
        }
    }

    fn warning(&mut self, place: &str, text: &str) {
        self.report.warnings.push(format!("{place}: {text}"));
    }

    /// Checks a file and those that it includes. `path` are the files that lead here.
    fn read(&mut self, file: &UserFile<'a>, table: Table, path: &mut Vec<&'a str>) {
        let text = String::from_utf8_lossy(file.content);
        for finding in (Checker { table, version: self.conf.version }).text(&text) {
            match finding.severity {
                Severity::Error => self.error(&file.origin, &finding.text),
                Severity::Warning => self.warning(&file.origin, &finding.text),
            }
        }
        for line in parse::lines(&text).filter_map(Result::ok) {
            let place = format!("{}: line {}", file.origin, line.number);
            match line.item {
                Item::Include(name) => self.include(&place, &name, table, path),
                Item::Pairs(pairs) if table == Table::SlurmConf => self.settings.push(Setting { place, pairs }),
                Item::Pairs(_) | Item::Empty => {}
            }
        }
    }

    fn include(&mut self, place: &str, name: &str, table: Table, path: &mut Vec<&'a str>) {
        if name.contains('*') {
            return self.error(place, "Slurm does not support * in Include: include each file by its name");
        }
        let name = name.replace("%c", &self.conf.cluster_name.to_ascii_lowercase());
        if let Some(plain) = name.strip_prefix(FOLDER) {
            // slurmctld sends only files without a path to slurmd, and slurmd ends if it does not find one.
            return self.error(place, &format!("slurmd does not get {name}: write Include {plain}"));
        }
        if name.contains('/') {
            return self.report.unchecked.push(format!("Include {name}"));
        }
        self.includes += 1;
        if self.includes > MAX_INCLUDES {
            if self.includes == MAX_INCLUDES + 1 {
                self.error(place, "files are included too often: include each of them once");
            }
            return;
        }
        match self.file(&name) {
            None => self.error(
                place,
                &format!("the included file {name} is not in /etc/slurm: add it to a ConfigMap of the spec, or remove the line"),
            ),
            Some(file) if path.contains(&file.name) => self.error(place, &format!("{name} includes itself")),
            Some(file) => {
                path.push(file.name);
                self.read(file, table, path);
                path.pop();
            }
        }
    }

    /// A program that does not exist passes every start of Slurm; a missing prolog then drains every node.
    fn programs(&mut self) {
        let settings = std::mem::take(&mut self.settings);
        for Setting { place, pairs } in &settings {
            let is_one_of = |keys: &[&str]| keys.iter().any(|key| pairs.first().is_some_and(|pair| pair.has_key(key)));
            let on_workers = is_one_of(SENT_TO_SLURMD) || is_one_of(RUN_BY_SLURMD);
            if let Some(pair) = pairs.first().filter(|_| on_workers || is_one_of(RUN_BY_SLURMCTLD)) {
                self.program(place, pair, on_workers);
            }
        }
        self.settings = settings;
    }

    fn program(&mut self, place: &str, pair: &Pair, on_workers: bool) {
        let (key, value) = (pair.key(), pair.value());
        let may_be_sent = SENT_TO_SLURMD.iter().any(|other| pair.has_key(other));
        let is_sent = may_be_sent && !value.contains('/');
        let name = value.strip_prefix(FOLDER).or_else(|| is_sent.then_some(value));
        let Some(name) = name.filter(|name| !name.contains(['*', '?', '['])) else {
            if !value.is_empty() {
                self.report.unchecked.push(format!("{key}={value}"));
            }
            return;
        };
        let Some(file) = self.file(name) else {
            let text = format!(
                "{key} is {value}, but {name} is not in /etc/slurm: add it to a ConfigMap of the spec, or correct the line"
            );
            return self.error(place, &text);
        };
        if !file.is_script {
            self.executable(file);
        }
        if on_workers && !is_sent {
            let how = if may_be_sent {
                format!("write {key}={name}, and slurmctld sends it to them")
            } else {
                "mount it there, or put it into their image".to_owned()
            };
            let text = format!("{value} is in /etc/slurm of slurmctld, but workers run it and do not have it: {how}");
            self.warning(place, &text);
        }
    }

    fn executable(&mut self, file: &UserFile) {
        let first = file.content.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if file.content.starts_with(b"\x7fELF") || (first.starts_with(b"#!") && !first.ends_with(b"\r")) {
            return;
        }
        let text = if first.starts_with(b"#!") {
            "its lines end with a carriage return, so it cannot be executed: save it with the line ends of Unix"
        } else {
            "it does not begin with #!, so it cannot be executed: begin it with a line such as #!/bin/sh"
        };
        self.error(&file.origin, text);
    }

    /// slurmctld ends if a partition is defined twice.
    fn partitions(&mut self) {
        let mut seen: BTreeMap<&str, String> = BTreeMap::new();
        for (name, origin) in &self.conf.partitions {
            seen.insert(name, (*origin).to_owned());
        }
        let mut errors = Vec::new();
        for Setting { place, pairs } in &self.settings {
            let Some(first) = pairs.first().filter(|pair| pair.has_key("PartitionName")) else { continue };
            let name = first.value();
            if name.eq_ignore_ascii_case("DEFAULT") {
                continue;
            }
            if let Some(other) = seen.get(name) {
                errors.push(format!("{place}: the partition {name} is defined already by {other}: remove one of them"));
            }
            seen.insert(name, place.clone());
        }
        self.report.errors.append(&mut errors);
    }

    /// slurmctld ends if a partition refers to a QOS that does not exist.
    fn qos(&mut self) {
        let Some(known) = self.conf.qos else { return };
        let is_partition = |pairs: &[Pair]| pairs.first().is_some_and(|first| first.has_key("PartitionName"));
        let partitions = self.settings.iter().filter(|setting| is_partition(&setting.pairs));
        let errors = partitions.flat_map(|Setting { place, pairs }| {
            qos::unknown(pairs, known).into_iter().map(move |text| format!("{place}: {text}"))
        });
        self.report.errors.extend(errors);
    }

    /// Every daemon ends if a node is defined twice. Only the first error is reported: lists can be long.
    fn nodes(&mut self) {
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let lines = self.settings.iter().filter_map(|setting| Some((&setting.place, setting.pairs.first()?)));
        let lines =
            lines.filter(|(_, first)| first.has_key("NodeName") && !first.value().eq_ignore_ascii_case("DEFAULT"));
        let error = lines.into_iter().find_map(|(place, first)| match hostlist::expand(first.value()) {
            Ok(_) if seen.len() > MAX_NODES => {
                Some(format!("{place}: there are more than {MAX_NODES} nodes: remove some"))
            }
            Ok(names) => {
                let again = names.into_iter().find(|name| !seen.insert(name.clone()))?;
                Some(format!("{place}: the node {again} is defined already: remove one of them"))
            }
            Err(error) => Some(format!("{place}: NodeName is not a list of hosts: {error}")),
        });
        self.report.errors.extend(error);
    }

    /// The last value of a parameter.
    fn get(&self, key: &str) -> Option<(&str, &str)> {
        let mut settings =
            self.settings.iter().filter_map(|setting| Some((setting.place.as_str(), setting.pairs.first()?)));
        settings.rfind(|(_, pair)| pair.has_key(key)).map(|(place, pair)| (place, pair.value()))
    }

    /// slurmctld ends if it does not know a resource.
    fn tres(&mut self) {
        let Some((place, value)) = self.get("AccountingStorageTRES") else { return };
        let is_known = |name: &&str| {
            let name = name.to_ascii_lowercase();
            let is_named = |prefix: &&str| name.strip_prefix(*prefix).is_some_and(|rest| !rest.is_empty());
            name.is_empty() || TRES.contains(&name.as_str()) || TRES_WITH_NAME.iter().any(is_named)
        };
        let Some(name) = value.split(',').map(str::trim).find(|name| !is_known(name)) else { return };
        let name: String = name.chars().take(64).collect();
        let text = format!(
            "AccountingStorageTRES: Slurm has no resource {name}: it has {}, and {} with a name, such as gres/gpu",
            TRES.join(", "),
            TRES_WITH_NAME.join(", ")
        );
        let place = place.to_owned();
        self.error(&place, &text);
    }

    /// slurmctld ends if the script of this plugin is missing.
    fn lua(&mut self) {
        let Some((place, plugins)) = self.get("JobSubmitPlugins") else { return };
        let uses_lua = plugins.split(',').any(|name| matches!(name.trim(), "lua" | "job_submit/lua"));
        if uses_lua && self.file("job_submit.lua").is_none() {
            let place = place.to_owned();
            let text = "JobSubmitPlugins has lua, but there is no job_submit.lua: add it to a ConfigMap of the spec, or remove lua";
            self.error(&place, text);
        }
    }

    /// slurmd ends if `acct_gather.conf` has settings of plugins that slurm.conf does not load.
    fn acct_gather(&mut self) {
        let Some(file) = self.file("acct_gather.conf") else { return };
        let text = String::from_utf8_lossy(file.content);
        for line in parse::lines(&text).filter_map(Result::ok) {
            let Item::Pairs(pairs) = &line.item else { continue };
            let key = pairs.first().map(Pair::key).unwrap_or_default();
            let begins = |prefix: &str| key.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
            let Some((_, settings, plugins)) = ACCT_GATHER.iter().find(|(prefix, ..)| begins(prefix)) else { continue };
            let mut values = settings.iter().filter_map(|setting| self.get(setting)).map(|(_, value)| value);
            if !values.any(|value| plugins.iter().any(|plugin| value.contains(plugin))) {
                let setting = settings.first().unwrap_or(&"");
                let plugin = plugins.join(" or ");
                let place = format!("{}: line {}", file.origin, line.number);
                self.error(
                    &place,
                    &format!("{key} needs {setting} with {plugin} in slurm.conf: add it there, or remove {key}"),
                );
            }
        }
    }

    fn topology(&mut self) {
        let release = self.conf.version.and_then(Release::of);
        let reads_yaml = release.is_none_or(|release| release >= Release::V25_05);
        let yaml = self.file("topology.yaml");
        if let Some(file) = yaml.filter(|_| reads_yaml) {
            // It replaces TopologyPlugin and topology.conf.
            let found = topology::check_yaml(&String::from_utf8_lossy(file.content));
            return self.errors(file, &found);
        }
        if let Some(file) = yaml {
            self.warning(&file.origin, "this release of Slurm does not read topology.yaml, which came with 25.05");
        }
        let setting = self.get("TopologyPlugin").map(|(place, plugin)| (place.to_owned(), plugin.to_owned()));
        let Some((place, plugin)) = setting else { return };
        let Some(table) = Table::of_topology(&plugin) else { return };
        let Some(file) = self.file("topology.conf") else {
            let text = format!("TopologyPlugin={plugin} needs a topology.conf: add it to a ConfigMap of the spec");
            return self.error(&place, &text);
        };
        self.read(file, table, &mut vec![file.name]);
        let found = topology::check_conf(table, &String::from_utf8_lossy(file.content));
        self.errors(file, &found);
    }
}
