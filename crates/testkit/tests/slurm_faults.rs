//! Injected faults look to a client like real ones.

use std::time::{Duration, Instant};

use anyhow::ensure;
use jiff::{SignedDuration, Timestamp};
use slurm::client::{Auth, Client, Cursor, Error, Poll};
use slurm::token::{Claims, Key, mint};
use testkit::slurmrestd::{
    Clock, Cluster, Fault, Faults, JobSpec, Machine, Options, Release, Settings, Slurmrestd, StateSave,
};

const KEY: [u8; 32] = [0x2a; 32];

async fn server(release: Release) -> anyhow::Result<Slurmrestd> {
    let mut cluster = Cluster::new(Settings { release, ..Settings::default() }, Timestamp::now().as_second());
    cluster.register_many("w", 3, &Machine::default());
    Slurmrestd::start(cluster, Options { key: Some(Key::new(&KEY)?), ..Options::default() }).await
}

async fn client(server: &Slurmrestd) -> anyhow::Result<Client> {
    let auth = Auth::mint(Key::new(&KEY)?, "slurm", SignedDuration::from_mins(15));
    let builder = Client::builder(&server.url()).auth(auth).retries(0);
    // Long enough that only calls which get no answer time out, also on a busy machine.
    let limit = Duration::from_secs(3);
    Ok(builder.timeout(limit).list_timeout(limit).connect().await?)
}

fn class<T>(outcome: Result<T, Error>) -> String {
    outcome.err().map_or_else(|| "ok".to_owned(), |error| error.class().to_owned())
}

#[tokio::test]
async fn faults_meet_the_calls_they_are_for_and_then_end() -> anyhow::Result<()> {
    let server = server(Release::V26_05).await?;
    let client = client(&server).await?;
    let table = [
        (Fault::Error, "refused"),
        (Fault::Cut, "unreachable"),
        (Fault::Hang, "timeout"),
        (Fault::Garbage, "undecodable"),
    ];
    for (fault, expected) in table {
        server.faults(|faults| faults.next(1, "/nodes", fault));
        assert_eq!(class(client.ping().await), "ok", "{fault:?}");
        assert_eq!(class(client.nodes().await), expected, "{fault:?}");
        assert_eq!(class(client.nodes().await), "ok", "{fault:?}");
    }
    server.faults(|faults| faults.latency = Duration::from_secs(5));
    assert_eq!(class(client.ping().await), "timeout");
    server.faults(Faults::clear);
    assert_eq!(class(client.ping().await), "ok");
    Ok(())
}

#[tokio::test]
async fn tokens_expire_and_keys_change() -> anyhow::Result<()> {
    let server = server(Release::V24_11).await?;
    let old = Timestamp::now() - SignedDuration::from_mins(10);
    let token = mint(&Key::new(&KEY)?, &Claims::new("", "slurm", old, SignedDuration::from_mins(5)));
    let late = Client::builder(&server.url()).auth(Auth::token(token)).connect().await?;
    assert_eq!(class(late.nodes().await), "unauthorised");

    let client = client(&server).await?;
    assert_eq!(class(client.nodes().await), "ok");
    server.set_key(Some(Key::new(&[1; 32])?));
    assert_eq!(class(client.nodes().await), "unauthorised");
    server.set_key(None);
    assert_eq!(class(client.nodes().await), "ok");
    server.faults(|faults| faults.refuse_tokens = true);
    assert_eq!(class(client.nodes().await), "unauthorised");
    Ok(())
}

#[tokio::test]
async fn lost_state_is_an_empty_list_until_nodes_come_back() -> anyhow::Result<()> {
    let server = server(Release::V26_05).await?;
    let client = client(&server).await?;
    let mut cursor = Cursor::default();
    client.nodes_since(&mut cursor).await?;
    server.cluster(|cluster| cluster.start(StateSave::Lost));
    let Poll::Changed(list) = client.nodes_since(&mut cursor).await? else { anyhow::bail!("unchanged") };
    ensure!(list.items.is_empty(), "{:?}", list.items);
    server.cluster(|cluster| cluster.register("w1", Machine::default()));
    ensure!(client.nodes().await?.items.len() == 1);
    // The same without losing anything.
    server.faults(|faults| faults.empty_lists = true);
    ensure!(client.nodes().await?.items.is_empty());
    assert_eq!(class(client.node("w1").await), "not_found");
    Ok(())
}

#[tokio::test]
async fn slurmctld_down_takes_its_time() -> anyhow::Result<()> {
    let server = server(Release::V26_05).await?;
    let client = client(&server).await?;
    server.cluster(Cluster::stop);
    assert_eq!(class(client.nodes().await), "daemon_down");
    server.faults(|faults| faults.down_latency = Duration::from_secs(9));
    let start = Instant::now();
    assert_eq!(class(client.nodes().await), "timeout");
    ensure!(!client.ping().await?.iter().any(|ping| ping.responding));
    ensure!(start.elapsed() < Duration::from_secs(5));
    Ok(())
}

#[tokio::test]
async fn slurmrestd_restarts_on_its_port() -> anyhow::Result<()> {
    let server = server(Release::V25_11).await?;
    let (client, url) = (client(&server).await?, server.url());
    let server = server.restart().await?;
    assert_eq!(server.url(), url);
    ensure!(client.nodes().await?.items.len() == 3);
    drop(server);
    assert_eq!(class(client.nodes().await), "unreachable");
    Ok(())
}

#[tokio::test]
async fn an_upgrade_under_the_client_shows() -> anyhow::Result<()> {
    let server = server(Release::V24_11).await?;
    let old = client(&server).await?;
    server.cluster(|cluster| cluster.settings.release = Release::V26_05);
    // v0.0.42 is still served, and the responses contain the new release.
    ensure!(old.nodes().await?.meta.release == "26.05.5");
    let new = old.renegotiate().await?;
    ensure!(new.rest_version() > old.rest_version() && new.conf().await.is_ok());
    server.cluster(|cluster| cluster.settings.release = Release::V24_11);
    assert_eq!(class(new.nodes().await), "not_offered");
    Ok(())
}

#[tokio::test]
async fn calls_are_counted_by_what_they_are() -> anyhow::Result<()> {
    let server = server(Release::V26_05).await?;
    let client = client(&server).await?;
    server.forget_calls();
    for name in ["w0", "w1", "nope"] {
        let _ = client.node(name).await;
    }
    client.nodes().await?;
    let calls = server.calls();
    let expected = [("GET /slurm/{version}/node/{node_name}", 3), ("GET /slurm/{version}/nodes/", 1)];
    assert_eq!(calls, expected.map(|(call, count)| (call.to_owned(), count)).into());
    Ok(())
}

#[tokio::test]
async fn a_clock_that_stands_still_until_it_is_moved() -> anyhow::Result<()> {
    let mut cluster = Cluster::new(Settings::default(), 1_800_000_000);
    cluster.register("w0", Machine::default());
    let server = Slurmrestd::start(cluster, Options { clock: Clock::Manual, ..Options::default() }).await?;
    let auth = Auth::mint(Key::new(&KEY)?, "slurm", SignedDuration::from_mins(15));
    let client = Client::builder(&server.url()).auth(auth).connect().await?;
    let spec = JobSpec { runs_for: Some(600), time_limit: Some(60), ..JobSpec::default() };
    let id = server.cluster(|cluster| cluster.submit(spec))?;
    let job = client.job(id).await?;
    ensure!(job.job_state.is_running() && job.deadline() == Some(Timestamp::from_second(1_800_003_600)?));
    server.cluster(|cluster| cluster.advance(599));
    ensure!(client.job(id).await?.job_state.is_running());
    server.cluster(|cluster| cluster.advance(1));
    ensure!(client.job(id).await?.job_state.is_finished());
    // Nothing changes while the clock stands still, and changes of the last second are returned once more.
    server.cluster(|cluster| cluster.advance(2));
    let mut cursor = Cursor::default();
    client.nodes_since(&mut cursor).await?;
    ensure!(client.nodes_since(&mut cursor).await? == Poll::Unchanged);
    Ok(())
}
