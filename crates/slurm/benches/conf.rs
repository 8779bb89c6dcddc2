//! `cargo bench -p slurm --bench conf`: a slurm.conf with a thousand `NodeSets`.

use divan::{Bencher, black_box};
use slurm::conf::{Conf, ConfBuilder, ConfError, Extra, NodeConf, Options, Record};

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
