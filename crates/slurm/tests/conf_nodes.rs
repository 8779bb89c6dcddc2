//! Lines of slurm.conf for static nodes.

use std::collections::BTreeSet;

use proptest::prelude::*;
use slurm::{
    conf::{Conf, ConfBuilder, ConfError, Hardware, NodeConf, StaticNodes},
    hostlist,
};

const DOMAIN: &str = "alps-nodeset-svc.hpc.svc.cluster.local";

fn render(nodes: &StaticNodes<'_>) -> Result<Option<(String, Vec<&'static str>)>, ConfError> {
    let Some(lines) = nodes.lines()? else { return Ok(None) };
    let mut conf = ConfBuilder::new();
    conf.record(lines.nodes).record(lines.set);
    Ok(Some((conf.to_string(), lines.ignored)))
}

fn nodes<'a>(ordinals: &'a BTreeSet<u32>, options: &'a NodeConf) -> StaticNodes<'a> {
    StaticNodes {
        set: "gpu",
        ordinals,
        domain: DOMAIN,
        port: 6818,
        hardware: Hardware { cpus: Some(64), memory: Some(256_000), gres: Some("gpu:8") },
        features: &[],
        is_cloud: true,
        options,
    }
}

#[test]
fn lines_have_what_is_known_of_the_nodes() {
    let (ordinals, options) = ([0, 1, 2, 5].into(), NodeConf::default());
    let features = ["h100".to_owned(), "ib".to_owned()];
    let cloud = StaticNodes { features: &features, ..nodes(&ordinals, &options) };
    let text = "NodeName=gpu-[0-2,5] NodeAddr=gpu-[0-2,5].alps-nodeset-svc.hpc.svc.cluster.local Port=6818 State=CLOUD \
                CPUs=64 Features=h100,ib Gres=gpu:8 RealMemory=256000\nNodeSet=gpu Nodes=gpu-[0-2,5]\n";
    assert_eq!(render(&cloud), Ok(Some((text.into(), vec![]))));

    let one = [7].into();
    let fixed = StaticNodes { is_cloud: false, hardware: Hardware::default(), ..nodes(&one, &options) };
    let text =
        "NodeName=gpu-7 NodeAddr=gpu-7.alps-nodeset-svc.hpc.svc.cluster.local Port=6818\nNodeSet=gpu Nodes=gpu-7\n";
    assert_eq!(render(&fixed), Ok(Some((text.into(), vec![]))));
}

#[test]
fn a_set_without_nodes_has_no_lines() {
    let (none, options) = (BTreeSet::new(), NodeConf::default());
    assert_eq!(render(&nodes(&none, &options)), Ok(None));
}

#[test]
fn the_user_knows_the_hardware_better_but_not_where_nodes_are() {
    let ordinals = [0].into();
    let options = NodeConf::parse(
        "Sockets=2 realmemory=1000 Gres=gpu:a100:4 Feature=a State=DOWN Feature=b NodeHostname=x port=1 Weight=10",
    )
    .unwrap();
    let (text, ignored) = render(&nodes(&ordinals, &options)).unwrap().unwrap();
    let line = text.lines().next().unwrap();
    assert!(
        line.ends_with(" Port=6818 State=CLOUD Features=a,b Gres=gpu:a100:4 realmemory=1000 Sockets=2 Weight=10"),
        "{line}"
    );
    assert_eq!(ignored, ["NodeHostname", "Port", "State"]);
}

#[test]
fn what_would_be_another_line_is_refused() {
    let (ordinals, options) = ([0].into(), NodeConf::default());
    let good = nodes(&ordinals, &options);
    for bad in [
        StaticNodes { set: "gpu\nNodeName=x", ..good.clone() },
        StaticNodes { set: "gpu[0-1]", ..good.clone() },
        StaticNodes { domain: "svc State=DOWN", ..good.clone() },
        StaticNodes { features: &["a,b".to_owned()], ..good.clone() },
        StaticNodes { hardware: Hardware { gres: Some("gpu #"), ..Hardware::default() }, ..good.clone() },
    ] {
        bad.lines().unwrap_err();
    }
    NodeConf::parse("Weight=1 NodeName=x").unwrap_err();
}

proptest! {
    #[test]
    fn nodes_are_exactly_the_ordinals(ordinals in prop::collection::btree_set(prop_oneof![0_u32..40, any::<u32>()], 1..30)) {
        let (text, _) = render(&nodes(&ordinals, &NodeConf::default())).unwrap().unwrap();
        let conf = Conf::parse(&text).unwrap();
        let names: Vec<String> = ordinals.iter().map(|ordinal| format!("gpu-{ordinal}")).collect();
        let addresses: Vec<String> = names.iter().map(|name| format!("{name}.{DOMAIN}")).collect();
        let record = conf.records("NodeName").next().unwrap();
        prop_assert_eq!(hostlist::expand(record[0].value()), Ok(names.clone()));
        prop_assert_eq!(hostlist::expand(record[1].value()), Ok(addresses));
        prop_assert_eq!(hostlist::expand(conf.records("NodeSet").next().unwrap()[1].value()), Ok(names));
    }
}

#[test]
fn ten_thousand_nodes_fit_into_little_text() {
    let options = NodeConf::default();
    let size = |ordinals: &BTreeSet<u32>| render(&nodes(ordinals, &options)).unwrap().unwrap().0.len();
    assert!(size(&(0..10_000).collect()) < 300);
    // Every second one: nothing can be a range.
    let scattered = size(&(0..20_000).step_by(2).collect());
    assert!(scattered < 200_000, "{scattered}");
}
