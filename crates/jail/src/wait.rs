//! Waits for a jail.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::fs::FileType;

use crate::{layout, nodes, tree::Tree};

/// How often people are told what is waited for.
const TELL: Duration = Duration::from_secs(30);

/// Whether jobs can run in a jail.
pub fn is_populated(jail: &Tree) -> Result<bool> {
    for path in [layout::SENTINEL, layout::OLD_SENTINEL] {
        if jail.look(Path::new(path))?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a jail does not have yet.
fn missing(jail: &Path, node: Option<&str>) -> Result<Option<String>> {
    // Opened anew each time: network file systems forget.
    let tree = Tree::open(jail)?;
    if !is_populated(&tree)? {
        return Ok(Some(format!(
            "the jail {} to be populated, which ends with the file {}",
            jail.display(),
            tree.show(Path::new(layout::SENTINEL))
        )));
    }
    match node {
        Some(node) if !nodes::is_in_slurm_conf(&tree, node)? => {
            Ok(Some(format!("a line NodeName of {node} in {}", tree.show(Path::new(nodes::SLURM_CONF)))))
        }
        _ => Ok(None),
    }
}

/// Waits until a jail is populated and its slurm.conf has a node. Network file systems do not tell of changes, so it looks
/// again and again.
pub fn run(
    jail: &Path,
    node: Option<&str>,
    every: Duration,
    stop: &dyn Fn() -> Result<()>,
    say: &dyn Fn(&str),
) -> Result<()> {
    let mut told: Option<(String, Instant)> = None;
    while let Some(missing) = missing(jail, node)? {
        stop()?;
        if told.as_ref().is_none_or(|(what, at)| *what != missing || at.elapsed() >= TELL) {
            say(&format!("waiting for {missing}"));
            told = Some((missing, Instant::now()));
        }
        std::thread::sleep(every);
    }
    Ok(())
}
