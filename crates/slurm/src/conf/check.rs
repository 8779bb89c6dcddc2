//! Checks texts against the keys that a release of Slurm knows.

use super::{
    ConfError, Item, Options, Pair,
    keys::{Fate, Release, Table, fate, hint},
    parse,
};
use crate::version::SlurmVersion;

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// Where it is, and what to do about it. Contains no values: they may be secret.
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A daemon that reads it ends.
    Error,
    /// Slurm ignores it, or the release of Slurm is not known well enough.
    Warning,
}

impl Finding {
    pub(super) fn error(text: impl Into<String>) -> Self {
        Self { severity: Severity::Error, text: text.into() }
    }

    fn warning(text: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, text: text.into() }
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl From<ConfError> for Finding {
    fn from(error: ConfError) -> Self {
        Self::error(error.to_string())
    }
}

/// Checks a whole file, or the user's part of slurm.conf. Files with another syntax always pass; topology.conf is among them,
/// because its keys depend on a plugin.
///
/// Included files are not read.
pub fn check(file: &str, text: &str, version: Option<SlurmVersion>) -> Vec<Finding> {
    Table::of_file(file).map_or_else(Vec::new, |table| Checker { table, version }.text(text))
}

/// Checks the options of a node: `Weight=10 Gres=gpu:8`.
pub fn check_node(options: &str, version: Option<SlurmVersion>) -> Vec<Finding> {
    Checker { table: Table::Node, version }.options(options)
}

/// Checks the options of a partition: `MaxTime=60 Default=YES`.
pub fn check_partition(options: &str, version: Option<SlurmVersion>) -> Vec<Finding> {
    Checker { table: Table::Partition, version }.options(options)
}

#[derive(Clone, Copy)]
pub(super) struct Checker {
    pub(super) table: Table,
    pub(super) version: Option<SlurmVersion>,
}

impl Checker {
    pub(super) fn text(self, text: &str) -> Vec<Finding> {
        let mut found = Vec::new();
        for line in parse::lines(text) {
            match line {
                Ok(line) => {
                    if let Item::Pairs(pairs) = &line.item {
                        let place = format!("line {}: ", line.number);
                        self.line(&place, line.number, pairs, &mut found);
                    }
                }
                Err(error) if self.table.is_lenient() => found.push(Finding::warning(error.to_string())),
                Err(error) => found.push(error.into()),
            }
        }
        found
    }

    fn options(self, options: &str) -> Vec<Finding> {
        match Options::parse(options) {
            Ok(options) => options.pairs().iter().filter_map(|pair| self.pair("", pair)).collect(),
            Err(error) => vec![error.into()],
        }
    }

    fn line(self, place: &str, number: usize, pairs: &[Pair], found: &mut Vec<Finding>) {
        let Some((first, others)) = pairs.split_first() else { return };
        let problem = self.pair(place, first);
        let is_known = problem.is_none();
        found.extend(problem);
        match self.table.record(first.key()) {
            Some(_) if !is_known => {}
            Some(table) => {
                let record = Self { table, ..self };
                found.extend(others.iter().filter_map(|pair| record.pair(place, pair)));
            }
            None if others.is_empty() || !is_known || self.table.is_lenient() => {}
            // `Parameters=a, b=1` has one space too many.
            None => found.push(ConfError::Trailing { line: number, key: first.key().to_owned() }.into()),
        }
    }

    fn pair(self, place: &str, pair: &Pair) -> Option<Finding> {
        let release = self.version.and_then(Release::of);
        let key: String = pair.key().chars().take(64).collect();
        match fate(self.table, &key, release) {
            Some(Fate::Known(kind)) => {
                let wanted = kind.objection(pair.value())?;
                Some(self.finding(release, format!("{place}the value of {key} must be {wanted}")))
            }
            Some(Fate::Ignored) => {
                let text = format!("{place}Slurm ignores {key}, which has no effect any more: remove it");
                release.map(|_| Finding::warning(text))
            }
            Some(Fate::Removed) => {
                Some(self.finding(release, format!("{place}{key} was removed, and Slurm ends with it: remove it")))
            }
            None => {
                let hint = hint(self.table, &key, release).map(|hint| format!("; {hint}")).unwrap_or_default();
                let slurm = match (release, self.version) {
                    (Some(release), _) => format!("Slurm {}", release.version()),
                    (None, Some(version)) => {
                        format!("{}, and the keys of Slurm {version} are not known to the operator", range())
                    }
                    (None, None) => format!("{}, and the version of Slurm is not known", range()),
                };
                Some(self.finding(release, format!("{place}{key} is not known to {slurm}{hint}")))
            }
        }
    }

    /// Only an error if it is known what this release does.
    fn finding(self, release: Option<Release>, text: String) -> Finding {
        if release.is_none() || self.table.is_lenient() { Finding::warning(text) } else { Finding::error(text) }
    }
}

/// The releases in the table.
fn range() -> String {
    let [oldest, .., newest] = Release::ALL;
    format!("Slurm {} to {}", oldest.version(), newest.version())
}
