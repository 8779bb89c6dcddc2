//! Leader election on a Lease: whoever writes it first, on the version that was read, leads.

use std::time::Duration;

use anyhow::{Result, bail};
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

/// How long a lease is good without being renewed.
const LASTS: Duration = Duration::from_secs(15);
/// How often it is renewed, and looked at by those who do not hold it.
const EVERY: Duration = Duration::from_secs(3);
/// A leader that could not renew for this long stops: well before others may take over.
const PATIENCE: Duration = Duration::from_secs(10);
/// No single call may take longer.
const CALL: Duration = Duration::from_secs(4);

/// Somebody who wants to lead.
pub struct Candidate {
    /// Where the Lease is; with a client that does not retry by itself.
    pub api: Api<Lease>,
    /// What it is called.
    pub name: String,
    /// Who we are: different for every process, also after a restart.
    pub identity: String,
}

/// What is known of a lease that somebody else holds. Expiry is judged by our own clock alone, from when we saw it change:
/// clocks of two machines may differ by more than a lease lasts.
#[derive(Debug, Default)]
struct Rival {
    version: String,
    since: Option<Instant>,
}

/// What to do about a lease.
#[derive(Debug, PartialEq, Eq)]
enum LeaseAction {
    Renew,
    TakeOver,
    Wait,
}

impl Rival {
    fn decide(&mut self, spec: &LeaseSpec, version: &str, me: &str, now: Instant) -> LeaseAction {
        match spec.holder_identity.as_deref() {
            Some(holder) if holder == me => return LeaseAction::Renew,
            None | Some("") => return LeaseAction::TakeOver,
            Some(_) => {}
        }
        if self.version != version || self.since.is_none() {
            version.clone_into(&mut self.version);
            self.since = Some(now);
        }
        let lasts = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LASTS, Duration::from_secs);
        match self.since {
            Some(since) if now.duration_since(since) > lasts => LeaseAction::TakeOver,
            _ => LeaseAction::Wait,
        }
    }
}

impl Candidate {
    /// Runs for leadership until the watch is closed, and says in it whether we lead. An error means that leadership was lost:
    /// the process should end, since a new one is easier to trust than one that stopped in the middle.
    pub async fn campaign(&self, leads: &watch::Sender<bool>) -> Result<()> {
        let mut rival = Rival::default();
        let mut renewed: Option<Instant> = None;
        loop {
            let asked = Instant::now();
            match timeout(CALL, self.round(&mut rival)).await {
                Ok(Ok(true)) => {
                    renewed = Some(asked);
                    leads.send_if_modified(|leads| !std::mem::replace(leads, true));
                }
                Ok(Ok(false)) if renewed.is_some() => {
                    leads.send_replace(false);
                    bail!("somebody else took the lease {}", self.name);
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "the lease could not be renewed"),
                Err(_) => tracing::warn!("the API server did not answer for the lease"),
            }
            if renewed.is_some_and(|renewed| renewed.elapsed() > PATIENCE) {
                leads.send_replace(false);
                bail!("the lease {} could not be renewed in time", self.name);
            }
            sleep(EVERY).await;
        }
    }

    /// One look. Whether we lead. A conflict means that somebody was faster, which is no error.
    async fn round(&self, rival: &mut Rival) -> kube::Result<bool> {
        let now = MicroTime(Timestamp::now());
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            return won(self.api.create(&PostParams::default(), &self.fresh(now)).await);
        };
        let version = lease.resource_version().unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        match rival.decide(spec, &version, &self.identity, Instant::now()) {
            LeaseAction::Wait => return Ok(false),
            LeaseAction::Renew => {}
            LeaseAction::TakeOver => {
                spec.holder_identity = Some(self.identity.clone());
                spec.acquire_time = Some(now.clone());
                spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
            }
        }
        spec.lease_duration_seconds = i32::try_from(LASTS.as_secs()).ok();
        spec.renew_time = Some(now);
        // It carries the version that we read: the API server refuses whoever is late.
        won(self.api.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn fresh(&self, now: MicroTime) -> Lease {
        Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Lets the next one lead at once.
    pub async fn resign(&self) -> kube::Result<()> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else { return Ok(()) };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(());
        }
        spec.holder_identity = None;
        won(self.api.replace(&self.name, &PostParams::default(), &lease).await).map(drop)
    }
}

fn won<T>(answer: kube::Result<T>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str) -> LeaseSpec {
        LeaseSpec { holder_identity: Some(holder.into()), lease_duration_seconds: Some(15), ..LeaseSpec::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rival_is_given_the_whole_time_of_its_lease_by_our_own_clock() {
        let mut rival = Rival::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(rival.decide(&held_by("b"), "1", "a", after(0)), LeaseAction::Wait, "however old it says it is");
        assert_eq!(rival.decide(&held_by("b"), "1", "a", after(15)), LeaseAction::Wait);
        assert_eq!(rival.decide(&held_by("b"), "2", "a", after(16)), LeaseAction::Wait, "it was renewed");
        assert_eq!(rival.decide(&held_by("b"), "2", "a", after(31)), LeaseAction::Wait);
        assert_eq!(rival.decide(&held_by("b"), "2", "a", after(32)), LeaseAction::TakeOver);
    }

    #[tokio::test(start_paused = true)]
    async fn our_own_lease_is_renewed_and_a_free_one_taken() {
        let mut rival = Rival::default();
        assert_eq!(rival.decide(&held_by("a"), "1", "a", Instant::now()), LeaseAction::Renew);
        assert_eq!(rival.decide(&held_by(""), "1", "a", Instant::now()), LeaseAction::TakeOver);
        assert_eq!(rival.decide(&LeaseSpec::default(), "1", "a", Instant::now()), LeaseAction::TakeOver);
    }

    #[test]
    fn a_leader_stops_before_others_may_start() {
        // The last good renewal may be as old as our patience, one pause and one call when we notice.
        assert!(PATIENCE + CALL < LASTS);
        assert!(CALL + EVERY < PATIENCE, "one slow call must not cost the lease");
    }
}
