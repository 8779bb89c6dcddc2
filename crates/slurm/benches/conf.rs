//! `cargo bench -p slurm --bench conf`: a slurm.conf with a thousand `NodeSets`, and one with ten thousand static nodes.

use std::collections::BTreeSet;

use divan::{Bencher, black_box};
use slurm::conf::{Conf, ConfBuilder, ConfError, Extra, Hardware, NodeConf, Options, Record, StaticNodes};

const NODESETS: usize = 1_000;
const EXTRA: &str =
    "GresTypes=gpu\nSlurmctldParameters=idle_on_node_suspend,max_powered_nodes=100\nReturnToService=2\n";

fn main() {
    divan::main();
}

fn build(names: &[String]) -> Result<ConfBuilder, ConfError> {
    let mut conf = ConfBuilder::new();
    conf.section("GENERAL")?
        .name("ClusterName", "bench")?
        .list("SlurmctldParameters", ["enable_configless", "reconfig_on_restart"])?
        .section("NODESET & PARTITION")?;
    for name in names {
        let options = Options::parse("State=UP MaxTime=UNLIMITED OverSubscribe=NO")?;
        conf.record(Record::new("NodeSet", name)?.name("Feature", name)?);
        conf.record(Record::new("PartitionName", name)?.name("Nodes", name)?.options(&options)?);
    }
    Ok(conf)
}

fn render(names: &[String]) -> Result<String, ConfError> {
    build(names)?.render(&Extra::new(EXTRA))
}

fn names() -> Vec<String> {
    (0..NODESETS).map(|n| format!("nodeset-{n}")).collect()
}

#[divan::bench]
fn render_1000_nodesets(bencher: Bencher) {
    let names = names();
    bencher.bench(|| render(black_box(&names)));
}

#[divan::bench]
fn parse_1000_nodesets(bencher: Bencher) {
    let text = render(&names()).unwrap_or_default();
    assert!(text.len() > 50 * NODESETS, "the file is too small");
    bencher.bench(|| Conf::parse(black_box(&text)));
}

#[divan::bench]
fn node_options() -> Result<String, ConfError> {
    let mut conf = NodeConf::parse(black_box("RealMemory=256000 Gres=gpu:8 Features=a100,nvlink Weight=10"))?;
    Ok(conf.feature("nodeset-1")?.to_string())
}

/// One line for each set, as they are made whenever something changes.
fn static_nodes(sets: &[(String, BTreeSet<u32>)]) -> Result<String, ConfError> {
    let options = NodeConf::parse("Weight=10 Sockets=2 CoresPerSocket=32")?;
    let mut conf = ConfBuilder::new();
    for (set, ordinals) in sets {
        let nodes = StaticNodes {
            set,
            ordinals,
            domain: "bench-nodeset-svc.hpc.svc.cluster.local",
            port: 6818,
            hardware: Hardware { cpus: Some(64), memory: Some(256_000), gres: Some("gpu:8") },
            features: &["nvlink".to_owned()],
            is_cloud: true,
            options: &options,
        };
        if let Some(lines) = nodes.lines()? {
            conf.record(lines.nodes).record(lines.set);
        }
    }
    Ok(conf.to_string())
}

/// 10,000 nodes in this many sets, of which every second ordinal is missing.
#[divan::bench(args = [1, 100, 10_000])]
fn render_10000_static_nodes(bencher: Bencher, sets: u32) {
    let ordinals: BTreeSet<u32> = (0..10_000 / sets).map(|n| n * 2).collect();
    let sets: Vec<_> = (0..sets).map(|n| (format!("set-{n}"), ordinals.clone())).collect();
    bencher.bench(|| static_nodes(black_box(&sets)));
}
