//! Lists the nodes of a Slurm cluster and drains one: `cargo run -p slurm --example drain -- http://slurm-restapi:6820 jwt.key gpu-0`

use jiff::SignedDuration;
use slurm::{
    client::{Auth, Client},
    token::Key,
    wire::NodeUpdate,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [url, key, node] = &std::env::args().skip(1).collect::<Vec<_>>()[..] else {
        return Err("usage: drain URL KEY_FILE NODE".into());
    };
    let key = Key::new(&std::fs::read(key)?)?;
    let auth = Auth::mint(key, "slurm", SignedDuration::from_mins(15));
    let slurm = Client::builder(url).auth(auth).connect().await?;
    for node in &slurm.nodes().await?.items {
        println!("{} {}", node.name, node.state);
    }
    slurm.update_node(node, &NodeUpdate::new().drain("a fan is broken")).await?;
    Ok(())
}
