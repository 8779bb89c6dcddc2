//! All files of a cluster together: what one names must be in another.

use std::collections::BTreeSet;

use slurm::conf::{Report, UserConf, UserFile, check_cluster, unknown_qos};

const SCRIPT: &str = "#!/bin/sh\ntrue\n";

fn file<'a>(name: &'a str, text: &'a str) -> UserFile<'a> {
    UserFile {
        origin: format!("{name} in the ConfigMap files").into(),
        name,
        content: text.as_bytes(),
        is_script: false,
    }
}

fn report(release: &str, extra: &str, files: &[(&str, &str)]) -> Report {
    report_with(release, extra, files, None)
}

fn report_with(release: &str, extra: &str, files: &[(&str, &str)], qos: Option<&BTreeSet<String>>) -> Report {
    check_cluster(&UserConf {
        version: release.parse().ok(),
        cluster_name: "Lab",
        extra: UserFile { origin: "spec.extraConf".into(), ..file("slurm.conf", extra) },
        files: files.iter().map(|(name, text)| file(name, text)).collect(),
        partitions: vec![("gpu", "NodeSet gpu")],
        qos,
    })
}

fn lines(numbers: std::ops::Range<u32>, line: impl Fn(u32) -> String) -> String {
    numbers.map(line).collect::<Vec<_>>().join("\n")
}

fn errors(extra: &str, files: &[(&str, &str)]) -> Vec<String> {
    report("26.05", extra, files).errors
}

/// Exactly one error, with this text.
fn refused(extra: &str, files: &[(&str, &str)], text: &str) {
    let found = errors(extra, files);
    assert!(matches!(&found[..], [one] if one.contains(text)), "{extra:?}: expected {text:?} in {found:?}");
}

fn accepted(extra: &str, files: &[(&str, &str)]) {
    assert_eq!(report("26.05", extra, files), Report::default(), "{extra}");
}

#[test]
fn every_file_is_checked_and_named() {
    refused("A1=1", &[], "spec.extraConf: line 1: A1 is not known");
    refused("", &[("gres.conf", "\nName=gpu Flie=x")], "gres.conf in the ConfigMap files: line 2: Flie");
    refused("Include a.conf", &[("a.conf", "SlurmdDebgu=1")], "a.conf in the ConfigMap files: line 1: SlurmdDebgu");
    let two = errors("A1=1\nprose", &[("cgroup.conf", "A=1"), ("notes.txt", "prose")]);
    assert_eq!(two.len(), 3, "{two:?}");
}

#[test]
fn included_files_are_provided_and_reach_slurmd() {
    accepted("Include %c.conf\nInclude b.conf", &[("lab.conf", "Include b.conf"), ("b.conf", "ReturnToService=1")]);
    refused(
        "#\nInclude missing.conf",
        &[],
        "spec.extraConf: line 2: the included file missing.conf is not in /etc/slurm",
    );
    refused(
        "Include /etc/slurm/a.conf",
        &[("a.conf", "")],
        "slurmd does not get /etc/slurm/a.conf: write Include a.conf",
    );
    refused("Include *.conf", &[("a.conf", "")], "does not support *");
    refused("Include a.conf", &[("a.conf", "Include b.conf"), ("b.conf", "Include a.conf")], "a.conf includes itself");
    let names: Vec<String> = (0..30).map(|n| format!("f{n}")).collect();
    let texts: Vec<String> = (1..31).map(|n| format!("Include f{n}\nInclude f{n}\n")).collect();
    let mut twice: Vec<(&str, &str)> =
        names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())).collect();
    twice.push(("f30", "ReturnToService=1"));
    refused("Include f0", &twice, "included too often");
    refused("", &[("gres.conf", "Include x")], "gres.conf in the ConfigMap files: line 1: the included file x");
    let elsewhere = report("26.05", "Include /opt/site.conf", &[]);
    assert_eq!(elsewhere, Report { unchecked: vec!["Include /opt/site.conf".into()], ..Report::default() });
}

#[test]
fn scripts_exist_and_can_be_executed() {
    accepted("Prolog=p.sh\nPrologSlurmctld=/etc/slurm/p.sh\nEpilog=p.sh", &[("p.sh", SCRIPT)]);
    accepted("Prolog=p", &[("p", "\x7fELF...")]);
    refused("Prolog=/etc/slurm/p.sh", &[], "line 1: Prolog is /etc/slurm/p.sh, but p.sh is not in /etc/slurm");
    refused("Epilog=p.sh", &[("P.sh", SCRIPT)], "p.sh is not in /etc/slurm");
    refused("ResumeProgram=/etc/slurm/resume", &[], "resume is not in /etc/slurm");
    refused("Prolog=p.sh", &[("p.sh", "echo hi")], "p.sh in the ConfigMap files: it does not begin with #!");
    refused("Prolog=p.sh", &[("p.sh", "#!/bin/sh\r\ntrue\r\n")], "line ends of Unix");
    let named = UserFile { is_script: true, ..file("prolog", "true") };
    let ours = check_cluster(&UserConf { files: vec![named], ..UserConf::default() });
    assert!(ours.errors.len() == 1 && ours.errors[0].contains("#!"), "{ours:?}");

    let elsewhere = report("26.05", "Prolog=/opt/p.d/*\nHealthCheckProgram=/usr/sbin/nhc\nMailProg=mail", &[]);
    let unchecked = ["Prolog=/opt/p.d/*", "HealthCheckProgram=/usr/sbin/nhc", "MailProg=mail"].map(str::to_owned);
    assert_eq!(elsewhere, Report { unchecked: unchecked.into(), ..Report::default() });

    let on_workers = report("26.05", "Prolog=/etc/slurm/p.sh", &[("p.sh", SCRIPT)]);
    assert!(on_workers.errors.is_empty(), "{on_workers:?}");
    assert!(on_workers.warnings[0].contains("write Prolog=p.sh, and slurmctld sends it to them"), "{on_workers:?}");
}

#[test]
fn partitions_and_nodes_are_defined_once() {
    accepted(
        "PartitionName=DEFAULT MaxTime=1\nPartitionName=a Nodes=ALL\nPartitionName=DEFAULT MaxTime=2\nPartitionName=b Nodes=ALL",
        &[],
    );
    refused(
        "PartitionName=a Nodes=ALL\n\nPartitionName=a Nodes=x",
        &[],
        "line 3: the partition a is defined already by spec.extraConf: line 1",
    );
    refused("PartitionName=gpu Nodes=ALL", &[], "line 1: the partition gpu is defined already by NodeSet gpu");
    let include = [("p.conf", "PartitionName=a Nodes=x")];
    refused(
        "PartitionName=a Nodes=ALL\nInclude p.conf",
        &include,
        "p.conf in the ConfigMap files: line 1: the partition a",
    );
    accepted("NodeName=DEFAULT CPUs=1\nNodeName=n[1-2]\nNodeName=n3", &[]);
    refused("NodeName=n[1-3]\nNodeName=n3", &[], "line 2: the node n3 is defined already");
    refused("NodeName=n[1-", &[], "NodeName is not a list of hosts");
}

#[test]
fn plugins_have_their_files() {
    refused("JobSubmitPlugins=all_partitions,lua", &[], "there is no job_submit.lua");
    accepted("JobSubmitPlugins=lua", &[("job_submit.lua", "--")]);
    refused("TopologyPlugin=topology/tree", &[], "TopologyPlugin=topology/tree needs a topology.conf");
    accepted("TopologyPlugin=topology/flat", &[]);
    let gather = [("acct_gather.conf", "#\nprofileHDF5dir=/profile")];
    accepted("AcctGatherProfileType=acct_gather_profile/hdf5", &gather);
    refused(
        "AcctGatherProfileType=acct_gather_profile/influxdb",
        &gather,
        "line 2: profileHDF5dir needs AcctGatherProfileType with hdf5",
    );
    accepted(
        "AcctGatherEnergyType=acct_gather_energy/ipmi,acct_gather_energy/gpu",
        &[("acct_gather.conf", "EnergyIPMIFrequency=9")],
    );
}

#[test]
fn switches_are_a_tree() {
    const TREE: &str = "TopologyPlugin=topology/tree";
    let good = "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n3 LinkSpeed=1\nSwitchName=top Switches=s[1-2]\n";
    accepted(TREE, &[("topology.conf", good)]);
    for (text, expected) in [
        ("", "there is no switch"),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "the switch a is defined twice"),
        ("SwitchName=a Nodes=n1\nSwitchName=top Switches=a,b", "the switch top has the child b, which is not defined"),
        (
            "SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=b",
            "the switch b is below itself (b > c > b)",
        ),
        ("SwitchName=a Switches=a", "the switch a is below itself (a > a)"),
        ("SwitchName=b Nodes=n1\nSwitchName=a Switches=b Nodes=n1", "line 2: the switch a has both Nodes and Switches"),
        ("SwitchName=a Nodse=n1", "line 1: Nodse is not known to Slurm 26.05; did you mean Nodes?"),
        ("BlockName=a Nodes=n1\nSwitchName=b", "line 1: BlockName is not known"),
    ] {
        refused(TREE, &[("topology.conf", text)], &format!("topology.conf in the ConfigMap files: {expected}"));
    }
    accepted("", &[("topology.conf", "anything")]);
    let blocks = "BlockName=b1 Nodes=n[1-4]\nBlockName=b2 Nodes=n[5-8]\nBlockSizes=4,8\n";
    accepted("TopologyPlugin=topology/block", &[("topology.conf", blocks)]);
    refused(
        "TopologyPlugin=topology/block",
        &[("topology.conf", "BlockName=a\nBlockName=a")],
        "the block a is defined twice",
    );
}

#[test]
fn yaml_topologies() {
    let tree = |switches: &str| format!("- topology: t\n  cluster_default: true\n  tree:\n    switches:\n{switches}");
    let good = tree("    - switch: s\n      nodes: n[1-2]\n    - switch: top\n      children: s\n");
    accepted("TopologyPlugin=topology/tree", &[("topology.yaml", &good)]);
    accepted("", &[("topology.yaml", "topology: flat\nflat: true\n")]);
    for (text, expected) in [
        (
            tree("    - switch: a\n      children: b\n    - switch: b\n      children: a\n"),
            "topology t: the switch a is below itself (a > b > a)",
        ),
        (
            tree("    - switch: a\n      children: x\n"),
            "topology t: the switch a has the child x, which is not defined",
        ),
        ("a: [".to_owned(), "it is not valid YAML"),
        ("words".to_owned(), "it must be a topology or a list of topologies"),
        (
            "- topology: b\n  block:\n    blocks:\n    - block: x\n    - block: x\n".to_owned(),
            "topology b: the block x is defined twice",
        ),
    ] {
        refused("", &[("topology.yaml", &text)], &format!("topology.yaml in the ConfigMap files: {expected}"));
    }
    let old = report("24.11", "", &[("topology.yaml", "a: [")]);
    assert!(old.errors.is_empty() && old.warnings[0].contains("came with 25.05"), "{old:?}");
    let odd = report("22.04", "TopologyPlugin=topology/tree", &[("topology.yaml", &good)]);
    assert_eq!(odd, Report::default(), "a tag may be that of the distribution");
}

#[test]
fn short_lines_with_many_names_do_not_fill_the_memory() {
    let nodes = lines(0..9, |n| format!("NodeName=n{n}-[1-60000]"));
    refused(&nodes, &[], "line 3: there are more than 100000 nodes");
    let switches = lines(0..9, |n| format!("SwitchName=s{n} Switches=x[1-60000]"));
    refused("TopologyPlugin=topology/tree", &[("topology.conf", &switches)], "more than 100000 links");
}

#[test]
fn a_long_chain_of_switches_is_no_problem() {
    let chain = lines(0..3000, |n| format!("SwitchName=s{n} Switches=s{}", n + 1));
    refused(
        "TopologyPlugin=topology/tree",
        &[("topology.conf", &format!("{chain}\nSwitchName=s3000 Switches=s0"))],
        "below itself",
    );
}

#[test]
fn partitions_have_only_qos_of_slurmdbd() {
    let known: BTreeSet<String> = ["normal", "fast"].map(str::to_owned).into();
    let errors =
        |extra: &str, files: &[(&str, &str)]| report_with("26.05", extra, files, Some(&known)).errors.join("\n");
    let good =
        "PartitionName=a QOS=FAST AllowQos=normal,Fast\nPartitionName=b AllowQos=ALL DenyQos=fast QOS=\"\"\nNodeName=q";
    assert_eq!(errors(good, &[]), "");
    assert_eq!(
        errors("\nPartitionName=DEFAULT qos=fats", &[]),
        "spec.extraConf: line 2: qos: the QOS fats is not known to slurmdbd; did you mean fast?"
    );
    let two = errors("Include p.conf", &[("p.conf", "PartitionName=a AllowQos=fast,interactive DenyQos=norml")]);
    let lines: Vec<&str> = two.lines().collect();
    let place = "p.conf in the ConfigMap files: line 1:";
    assert_eq!(
        lines,
        [
            format!(
                "{place} AllowQos: the QOS interactive is not known to slurmdbd; create it with sacctmgr add qos interactive, or correct the line"
            ),
            format!("{place} DenyQos: the QOS norml is not known to slurmdbd; did you mean normal?"),
        ]
    );
    accepted("PartitionName=a QOS=fats", &[]);
    assert_eq!(unknown_qos("MaxTime=1 QOS=fast", &known), [""; 0]);
    assert_eq!(unknown_qos("MaxTime=1 QOS=slow", &known).len(), 1);
    assert_eq!(unknown_qos("PartitionName=x QOS=slow", &known), [""; 0], "refused elsewhere");
}

#[test]
fn trackable_resources_are_those_of_slurm() {
    accepted("AccountingStorageTRES=gres/gpu,gres/gpu:a100,License/matlab,ic/ofed,CPU,,bb/x,fs/disk,VMem", &[]);
    for wrong in ["gpu", "gres/", "gres", "cpus"] {
        let text = format!("spec.extraConf: line 1: AccountingStorageTRES: Slurm has no resource {wrong}:");
        refused(&format!("AccountingStorageTRES=cpu,{wrong}"), &[], &text);
    }
}
