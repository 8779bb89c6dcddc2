//! Answers about a cluster in which something is going on.

use serde_json::{Value, json};

use super::*;
use crate::status::tests::{controller, facts, updating, worker};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn text(target: &str, facts: &Facts) -> Result<String> {
    let answers = answers(&[parse(target)?], facts, NOW)?;
    Ok(print(&lines(&answers, NOW), false, None))
}

fn node(name: &str, is_cordoned: bool) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {"unschedulable": is_cordoned},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

#[test]
fn each_worker_has_its_reason_and_the_facts_behind_it() {
    let mut values = updating();
    values.push(node("node1", false));
    values.push(node("node2", true));
    values.push(node("node3", false));
    let text = text("nodeset/gpu", &facts(&values)).unwrap();
    let expected = "\
◐ NodeSet ns/gpu  2 of 4 workers can run jobs
  wanted: 4 workers, 4 there, 0 without a pod
  rolling update: at most 1 out of service; drain: jobs may take as long as they like
  Conditions
    ▲ Ready=False (PodsNotReady) since 07:30:00 UTC: 2 of 4 workers can run jobs
    ◐ Progressing=True (Draining) since 07:30:00 UTC: waiting for 1 of 4 workers to drain: gpu-1; gpu-1: blocked by job 17 until 08:10 UTC
  Workers
    ● gpu-0 on node0  idle  in service
    ◐ gpu-1 on node1  mixed+drain  to be removed (it is outdated): blocked by a job until 08:10 UTC
        reason of its Slurm node: slurm-operator: NodeSet (ns/gpu) is being updated
        drained since 2027-01-15T07:50:00Z
        its last job ends at 2027-01-15T08:10:00Z at the latest
    ● gpu-2 on node2  idle  in service; outdated: is not replaced while a user, an admin or a cordon keeps it out of service
        its Kubernetes node node2 is cordoned
        its template is old, the newest one is new
    ▲ gpu-3 on node3  idle+drain  drained by an admin, who must resume it: bad disk; outdated: is not replaced while a user, an \
                    admin or a cordon keeps it out of service
        drained since 2027-01-15T07:50:00Z
        its template is old, the newest one is new
";
    assert_eq!(text, expected);
}

#[test]
fn programs_get_the_words_of_the_plan() {
    let facts = facts(&updating());
    let answers = answers(&[parse("NodeSets/gpu").unwrap()], &facts, NOW).unwrap();
    let json = json!(answers);
    let workers = json[0]["workers"].as_array().unwrap();
    let words: Vec<(&str, Option<&str>)> =
        workers.iter().map(|worker| (worker["reason"].as_str().unwrap(), worker["cause"].as_str())).collect();
    assert_eq!(words, [("InService", None), ("Busy", Some("Update")), ("InService", None), ("Held", None)]);
    assert_eq!(json[0]["conditions"][0]["type"], "Ready");
}

#[test]
fn daemons_are_explained_by_conditions_and_pods() {
    let mut values = updating();
    values[0]["metadata"]["deletionTimestamp"] = json!("2027-01-15T07:59:00Z");
    values[0]["metadata"]["finalizers"] = json!(["example.com/keep"]);
    let text = text("controller", &facts(&values)).unwrap();
    assert!(text.contains("it is being deleted, and waits for its finalizers: example.com/keep\n"), "{text}");
    assert!(text.contains("    ● SlurmReachable=True (AsExpected)"), "{text}");
    assert!(text.ends_with("  Pods\n    ● slurm-controller-0  ready, in charge\n"), "{text}");
}

#[test]
fn a_cordon_is_seen_without_the_right_to_read_nodes() {
    let by = |manager: &str| {
        let key = "f:nodeset.slinky.slurm.net/pod-cordon";
        json!({"metadata": {
            "annotations": {"nodeset.slinky.slurm.net/pod-cordon": "true"},
            "managedFields": [{"manager": manager, "fieldsV1": {"f:metadata": {"f:annotations": {key: {}}}}}],
        }})
    };
    let reason = "slurm-operator: Node (node0) was cordoned, Pod (ns/gpu-0) must be cordoned";
    for (manager, note) in [
        ("slurm-operator/patch", "the annotation nodeset.slinky.slurm.net/pod-cordon shows a cordoned node"),
        ("kubectl-annotate", "a user has set the annotation nodeset.slinky.slurm.net/pod-cordon"),
    ] {
        let mut values = updating();
        values[3] = worker(0, &["Idle", "Drain"], reason, &by(manager));
        let text = text("nodeset/gpu", &facts(&values)).unwrap();
        assert!(
            text.contains(&format!("gpu-0 on node0  idle+drain  drained because of a cordon: {reason}\n")),
            "{text}"
        );
        assert!(text.contains(note), "{text}");
    }
}

#[test]
fn what_cannot_be_explained_is_said() {
    let mut facts = facts(&[controller(&[])]);
    let error = |target: &str, facts: &Facts| format!("{:#}", text(target, facts).unwrap_err());
    assert!(
        error("pod/gpu-1", &facts).starts_with("pod is none of these kinds: controller, restapi, accounting, nodeset")
    );
    assert!(error("nodeset/gpu", &facts).starts_with("there is no NodeSet gpu here"));
    assert_eq!(text("nodesets", &facts).unwrap(), "there is none here: see --namespace and --all-namespaces\n");
    facts.unread.push(Unread { what: "nodesets".into(), why: "forbidden".into() });
    assert_eq!(error("nodesets", &facts), "cannot read NodeSet: forbidden");
    let text = text("controllers/slurm", &facts).unwrap();
    assert!(text.ends_with("Not read\n  nodesets: forbidden\n"), "{text}");
}
