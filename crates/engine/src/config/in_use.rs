//! Lines of slurm.conf that no object asks for any more, but that jobs or nodes still use.
//!
//! When slurmctld starts or rereads its configuration, it ends every job whose partition is gone.

use slurm::conf::{Conf, Extra, Pair};

use super::NodeSetLine;
use crate::podset::Snapshot;

/// Adds the lines of the live slurm.conf that are still in use. Returns the names of those that are kept
/// only for that reason. Without an observation of Slurm, everything counts as used.
pub fn keep(wanted: &mut Vec<NodeSetLine>, live: &Conf, extra: &Extra, slurm: Option<&Snapshot>) -> Vec<String> {
    let mut kept = Vec::new();
    let is_users = |name: &&str| extra.all("NodeSet").any(|defined| defined.eq_ignore_ascii_case(name));
    let ours = live.records("NodeSet").filter_map(|line| named_after_itself(line, "Feature"));
    for name in ours.filter(|name| !is_users(name)) {
        let partition = partition(live, name).filter(|_| !defines_partition(extra, name));
        match wanted.iter_mut().find(|known| known.name.eq_ignore_ascii_case(name)) {
            Some(known) if known.partition.is_none() && partition.is_some() && has_jobs(slurm, name) => {
                known.partition = partition;
                kept.push(name.to_owned());
            }
            None if has_nodes(slurm, name) || has_jobs(slurm, name) => {
                let origin = format!("the removed NodeSet {name}");
                wanted.push(NodeSetLine { origin, name: name.to_owned(), partition });
                kept.push(name.to_owned());
            }
            _ => {}
        }
    }
    kept
}

/// Whether the live slurm.conf has a NodeSet of this name.
pub fn has_node_set(live: &Conf, name: &str) -> bool {
    live.records("NodeSet").any(|line| line.first().is_some_and(|pair| pair.value().eq_ignore_ascii_case(name)))
}

/// The lines of a NodeSet as they are now, for one whose new lines are refused.
pub fn live_line(wanted: &NodeSetLine, live: &Conf) -> Option<NodeSetLine> {
    let name = wanted.name.as_str();
    live.records("NodeSet").find(|line| named_after_itself(line, "Feature") == Some(name))?;
    let partition =
        our_partition(live, name).map(|line| text(line.iter().skip(1).filter(|pair| !pair.has_key("Nodes"))));
    Some(NodeSetLine { partition, ..wanted.clone() })
}

/// Whether the live slurm.conf has lines that are not wanted, so that it must be known who uses them.
pub fn has_old_lines(wanted: &[NodeSetLine], live: &Conf, extra: &Extra) -> bool {
    let mut wanted = wanted.to_vec();
    !keep(&mut wanted, live, extra, None).is_empty()
}

/// The name of a line such as `NodeSet=gpu Feature=gpu`: the operator writes no others.
fn named_after_itself<'a>(line: &'a [Pair], key: &str) -> Option<&'a str> {
    let name = line.first()?.value();
    line.iter().any(|pair| pair.has_key(key) && pair.value() == name).then_some(name)
}

/// The parameters of the partition of a NodeSet, except that new jobs do not go there by default.
fn partition(live: &Conf, name: &str) -> Option<String> {
    let found = our_partition(live, name)?;
    Some(text(found.iter().skip(1).filter(|pair| !pair.has_key("Nodes") && !pair.has_key("Default"))))
}

fn our_partition<'a>(live: &'a Conf, name: &str) -> Option<&'a [Pair]> {
    live.records("PartitionName").find(|line| named_after_itself(line, "Nodes") == Some(name))
}

fn text<'a>(pairs: impl Iterator<Item = &'a Pair>) -> String {
    pairs.map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn defines_partition(extra: &Extra, name: &str) -> bool {
    extra.all("PartitionName").any(|defined| defined.eq_ignore_ascii_case(name))
}

fn has_nodes(slurm: Option<&Snapshot>, name: &str) -> bool {
    let has = |snapshot: &Snapshot| snapshot.nodes.values().any(|node| node.features.iter().any(|known| known == name));
    slurm.is_none_or(has)
}

fn has_jobs(slurm: Option<&Snapshot>, name: &str) -> bool {
    let jobs = slurm.and_then(|snapshot| snapshot.jobs.read());
    jobs.is_none_or(|jobs| jobs.by_partition.contains_key(name))
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Arc};

    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::podset::{JobIndex, JobList, Jobs, SlurmNode};

    const LIVE: &str = "ClusterName=c\nNodeSet=gpu Feature=gpu\nPartitionName=gpu Nodes=gpu Default=YES MaxTime=60 State=UP\n\
                        NodeSet=old Feature=old\nPartitionName=users Nodes=ALL\n";

    fn live() -> Conf {
        Conf::parse(LIVE).unwrap()
    }

    fn line(name: &str, partition: Option<&str>) -> NodeSetLine {
        let origin = format!("NodeSet {name}");
        NodeSetLine { origin, name: name.to_owned(), partition: partition.map(str::to_owned) }
    }

    fn slurm(features: &[&str], partitions: Option<&[&str]>) -> Snapshot {
        let node = |feature: &&str| {
            let features = vec![(*feature).to_owned()];
            (format!("{feature}-0"), SlurmNode { features, ..SlurmNode::default() })
        };
        let jobs = |names: &[&str]| {
            let by_partition = names.iter().map(|name| ((*name).to_owned(), 1)).collect();
            Jobs::Read(JobList {
                jobs: Arc::new(JobIndex { by_partition, ..JobIndex::default() }),
                ..JobList::default()
            })
        };
        Snapshot {
            nodes: Arc::new(features.iter().map(node).collect()),
            read_at: Timestamp::UNIX_EPOCH,
            period: SignedDuration::from_secs(1),
            ctld_started: None,
            clock_ahead: Some(SignedDuration::ZERO),
            version: None,
            pending: HashMap::new(),
            jobs: partitions.map_or(Jobs::Unread, jobs),
            reservations: None,
        }
    }

    fn kept(wanted: &[NodeSetLine], slurm: Option<&Snapshot>) -> (Vec<NodeSetLine>, Vec<String>) {
        let mut wanted = wanted.to_vec();
        let kept = keep(&mut wanted, &live(), &Extra::new(""), slurm);
        (wanted, kept)
    }

    #[test]
    fn a_renamed_set_keeps_its_partition_while_jobs_or_nodes_use_it() {
        let wanted = [line("a100", Some("State=UP"))];
        for (slurm, expected) in [
            (None, &["gpu", "old"][..]),
            (Some(slurm(&["gpu"], Some(&[]))), &["gpu"]),
            (Some(slurm(&["a100"], Some(&["gpu"]))), &["gpu"]),
            (Some(slurm(&["a100"], None)), &["gpu", "old"]),
            (Some(slurm(&["a100"], Some(&["a100"]))), &[]),
        ] {
            let (lines, names) = kept(&wanted, slurm.as_ref());
            assert_eq!(names, expected);
            let gpu = lines.iter().find(|line| line.name == "gpu");
            assert_eq!(gpu.and_then(|line| line.partition.as_deref()), expected.first().map(|_| "MaxTime=60 State=UP"));
        }
    }

    #[test]
    fn a_partition_that_is_turned_off_stays_while_it_has_jobs() {
        let wanted = [line("gpu", None), line("old", None)];
        let busy = slurm(&["gpu"], Some(&["gpu"]));
        assert_eq!(kept(&wanted, Some(&busy)).0[0].partition.as_deref(), Some("MaxTime=60 State=UP"));
        let idle = slurm(&["gpu"], Some(&[]));
        assert_eq!(kept(&wanted, Some(&idle)), (wanted.to_vec(), Vec::new()));
    }

    #[test]
    fn a_partition_that_the_user_now_defines_is_not_defined_twice() {
        let mut wanted = vec![line("gpu", None), line("old", None)];
        let extra = Extra::new("PartitionName=gpu Nodes=gpu MaxTime=10");
        assert!(keep(&mut wanted, &live(), &extra, None).is_empty());
        assert!(!has_old_lines(&wanted, &live(), &extra) && has_old_lines(&wanted, &live(), &Extra::new("")));
    }

    #[test]
    fn a_refused_set_keeps_its_lines_with_the_default() {
        let found = live_line(&line("gpu", Some("MaxTiem=1")), &live()).unwrap();
        assert_eq!(found, line("gpu", Some("Default=YES MaxTime=60 State=UP")));
        assert_eq!(live_line(&line("old", Some("x")), &live()), Some(line("old", None)));
        assert_eq!(live_line(&line("new", None), &live()), None);
        assert_eq!(live_line(&line("users", None), &live()), None, "it is not ours");
    }

    #[test]
    fn a_node_set_of_the_user_is_not_ours() {
        let mut wanted = vec![line("gpu", Some(""))];
        assert!(keep(&mut wanted, &live(), &Extra::new("NodeSet=Old Feature=old"), None).is_empty());
    }
}
