//! The server itself: negotiation, statistics, partitions and reservations.

use anyhow::{Context, ensure};
use jiff::{SignedDuration, Timestamp};
use slurm::client::{Auth, Call, Client};
use slurm::token::{Claims, Key, mint};
use slurm::version::RestVersion;
use slurm::wire::{NodeUpdate, ReservationSpec};

use super::Target;
use super::scene::{SOON, Scene, connect, fails_with, sleeper};
use crate::wait_for;

/// Server and client negotiate the newest version, every older one on request, and no other.
pub(super) async fn negotiation(target: &dyn Target) -> anyhow::Result<()> {
    let (release, url) = (target.release(), target.url());
    let served = release.rest_versions();
    let newest = Client::builder(&url).auth(target.auth()?).connect().await?;
    ensure!(Some(&newest.rest_version()) == served.last(), "{} is not the newest", newest.rest_version());
    for rest in RestVersion::ALL {
        let connected = Client::builder(&url).auth(target.auth()?).rest_version(rest).connect().await;
        if !served.contains(&rest) {
            fails_with("no_common_version", &format!("{rest}"), connected)?;
            continue;
        }
        let client = connected?;
        ensure!(client.rest_version() == rest, "{} instead of {rest}", client.rest_version());
        let found = client.slurm_version().context("the server did not report its release")?;
        ensure!((found.major, found.minor) == (release.major, release.minor), "{found} instead of {release}");
        let meta = client.ping().await?.meta;
        ensure!(meta.version == Some(found) && !meta.cluster.is_empty(), "{meta:?}");
        ensure!(meta.data_parser.ends_with(rest.as_str()), "{meta:?}");
    }
    Ok(())
}

/// slurmctld responds.
pub(super) async fn ping(target: &dyn Target) -> anyhow::Result<()> {
    let pings = connect(target).await?.ping().await?;
    let first = pings.first().context("no slurmctld at all")?;
    ensure!(first.responding && first.primary && !first.hostname.is_empty(), "{first:?}");
    Ok(())
}

/// Statistics are plausible.
pub(super) async fn diag(target: &dyn Target) -> anyhow::Result<()> {
    let diag = connect(target).await?.diag().await?;
    let now = diag.req_time.context("no time")?;
    // No start time means that the statistics were reset.
    ensure!(diag.req_time_start.is_none_or(|start| start <= now), "{:?}", diag.body);
    ensure!(!diag.rpcs_by_message_type.is_empty() && !diag.rpcs_by_user.is_empty(), "no counters");
    Ok(())
}

/// The configuration, where it can be read.
pub(super) async fn conf(target: &dyn Target) -> anyhow::Result<()> {
    let client = connect(target).await?;
    if !client.offers(Call::Conf) {
        fails_with("not_offered", "conf", client.conf().await)?;
        return Ok(());
    }
    let conf = client.conf().await?;
    let name = conf.get("ClusterName").and_then(|name| name.as_str());
    ensure!(name == Some(&conf.meta.cluster), "{name:?} instead of {}", conf.meta.cluster);
    Ok(())
}

/// Partitions contain the nodes.
pub(super) async fn partitions(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let node = scene.node(scene.node_name()).await?;
    let name = node.partitions.first().context("the node is in no partition")?;
    let all = scene.client.partitions().await?;
    ensure!(all.items.iter().any(|partition| partition.name == *name), "{name} is not in the list");
    let one = scene.client.partition(name).await?;
    ensure!(one.total_nodes >= 2 && one.total_cpus >= 2 && one.state == ["UP"], "{:?}", one.body);
    let members = slurm::hostlist::expand(&one.nodes)?;
    ensure!(scene.nodes.iter().all(|node| members.contains(node)), "{} does not contain {:?}", one.nodes, scene.nodes);
    fails_with("not_found", "an unknown partition", scene.client.partition("no-such-partition").await)?;
    Ok(())
}

/// Calls that a version lacks fail before anything is sent.
pub(super) async fn not_offered(target: &dyn Target) -> anyhow::Result<()> {
    // The oldest version lacks most calls.
    let oldest = *target.release().rest_versions().first().context("no REST version")?;
    let client = Client::builder(&target.url()).auth(target.auth()?).rest_version(oldest).connect().await?;
    let [node, _] = target.nodes();
    fails_with("not_offered", "conf", client.conf().await)?;
    fails_with("not_offered", "requeue", client.requeue_job(1).await)?;
    fails_with("not_offered", "new node", client.new_node("NodeName=x").await)?;
    // From Slurm 26.11 on, the oldest version has these.
    if oldest < RestVersion::V43 {
        fails_with("not_offered", "reservation", client.write_reservation(&ReservationSpec::new("x")).await)?;
        let topology = NodeUpdate::new().topology("default:x");
        fails_with("not_offered", "topology", client.update_node(&node, &topology).await)?;
    }
    Ok(())
}

/// A token signed with another key is rejected with an authentication error by every call.
pub(super) async fn bad_token(target: &dyn Target) -> anyhow::Result<()> {
    let key = Key::new(&[0x55; 32])?;
    let claims = Claims::new("conformance", target.user(), Timestamp::now(), SignedDuration::from_mins(5));
    let auth = Auth::token(mint(&key, &claims));
    let mut builder = Client::builder(&target.url()).auth(auth);
    if let Some(rest) = target.rest_version() {
        builder = builder.rest_version(rest);
    }
    // The list of paths needs no valid token. A ping is no error either: it reports that slurmctld does not respond.
    let client = builder.connect().await?;
    ensure!(client.ping().await?.iter().all(|ping| !ping.responding), "slurmctld answered a bad token");
    let [node, _] = target.nodes();
    let error = fails_with("unauthorised", "nodes", client.nodes().await)?;
    ensure!(error.code() == Some(slurm::client::code::AUTHENTICATION), "{error}");
    fails_with("unauthorised", "node", client.node(&node).await)?;
    fails_with("unauthorised", "node update", client.update_node(&node, &NodeUpdate::new().comment("x")).await)?;
    fails_with("unauthorised", "jobs", client.jobs().await)?;
    fails_with("unauthorised", "job", client.job(1).await)?;
    fails_with("unauthorised", "submit", client.submit(&sleeper("never")).await)?;
    fails_with("unauthorised", "partitions", client.partitions().await)?;
    fails_with("unauthorised", "diag", client.diag().await)?;
    Ok(())
}

/// Reservations are created, updated, listed and deleted, where REST supports it.
pub(super) async fn reservation(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    let client = &scene.client;
    let name = "conformance";
    let start = Timestamp::from_second(Timestamp::now().as_second() + 3600)?;
    let spec = ReservationSpec::new(name)
        .nodes([scene.node_name()])
        .flags(["MAINT", "IGNORE_JOBS"])
        .users([target.user()])
        .start(start)
        .duration(60);
    fails_with("not_found", "an unknown reservation", client.reservation(name).await)?;
    if !client.offers(Call::WriteReservation) {
        fails_with("not_offered", "a reservation", client.write_reservation(&spec).await)?;
        return Ok(());
    }
    client.write_reservation(&spec).await?;
    let made = client.reservation(name).await?.body;
    ensure!(made.start_time == Some(start) && made.node_list == scene.node_name(), "{made:?}");
    ensure!(made.users == [target.user()], "{made:?}");
    ensure!(["MAINT", "IGNORE_JOBS", "SPEC_NODES"].iter().all(|flag| made.flags.iter().any(|has| has == flag)));
    ensure!(made.end_time == Some(start + SignedDuration::from_mins(60)), "{made:?}");

    client.write_reservation(&spec.clone().duration(30)).await?;
    let all = client.reservations().await?;
    let changed = all.items.iter().find(|one| one.name == name).context("the reservation is not in the list")?;
    ensure!(changed.end_time == Some(start + SignedDuration::from_mins(30)), "{changed:?}");
    ensure!(!scene.node(scene.node_name()).await?.state.has(slurm::states::NodeState::Maintenance), "too early");

    client.delete_reservation(name).await?;
    fails_with("not_found", "a removed reservation", client.reservation(name).await)?;
    fails_with("not_found", "a second removal", client.delete_reservation(name).await)?;
    let nowhere = ReservationSpec::new("nowhere").nodes(["no-such-node"]).users([target.user()]);
    let refused = client.write_reservation(&nowhere.start(start).duration(1)).await;
    ensure!(refused.is_err(), "a reservation of an unknown node was accepted");
    Ok(())
}

/// A reconfigure loses no nodes.
pub(super) async fn reconfigure(target: &dyn Target) -> anyhow::Result<()> {
    let scene = Scene::open(target).await?;
    scene.client.reconfigure().await?;
    wait_for("the nodes to be listed after a reconfigure", SOON, async || {
        let nodes = scene.client.nodes().await?;
        let missing = scene.nodes.iter().find(|name| !nodes.items.iter().any(|node| node.name == **name));
        ensure!(missing.is_none(), "{missing:?} is missing");
        Ok(())
    })
    .await?;
    for name in &scene.nodes {
        scene.in_service(name).await?;
    }
    Ok(())
}
