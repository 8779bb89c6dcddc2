//! When the certificates of the webhook are replaced.
//!
//! The authority is replaced in two steps, so that no call fails: first the API server learns to trust the new one beside the
//! old one; some time later, certificates of the new one are used.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// A certificate and its key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
    /// Identifies an authority: no two are created at the same time.
    pub created: Timestamp,
    pub expires: Timestamp,
}

/// All certificates, as the replicas share them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificates {
    /// Signs new certificates.
    pub authority: Pair,
    /// The authority before it, which the API server still trusts.
    #[serde(default)]
    pub previous: Option<Pair>,
    /// What the server shows.
    pub serving: Pair,
    /// When the authority that signed it was created.
    pub signed_by: Timestamp,
    /// What it is valid for.
    pub names: Vec<String>,
}

impl Certificates {
    /// What the API server must trust, as PEM.
    pub fn bundle(&self) -> String {
        let previous = self.previous.as_ref().map_or("", |previous| previous.certificate.as_str());
        format!("{}{previous}", self.authority.certificate)
    }
}

/// How long certificates are valid. Each is replaced when two thirds of that time are over.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    pub authority: SignedDuration,
    pub serving: SignedDuration,
    /// How long the API server may take to trust a new authority.
    pub trusted_after: SignedDuration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            authority: SignedDuration::from_hours(10 * 365 * 24),
            serving: SignedDuration::from_hours(365 * 24),
            trusted_after: SignedDuration::from_mins(5),
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    Nothing,
    /// There are none, or none that can be used: replace all at once.
    All,
    /// Create an authority, and keep the old one as the previous one.
    Authority,
    /// Sign a new certificate with the authority.
    Serving,
    /// The previous authority has expired.
    ForgetPrevious,
}

/// Decides what to do next.
pub fn plan(found: Option<&Certificates>, names: &[String], lifetimes: &Lifetimes, now: Timestamp) -> Renewal {
    let Some(found) = found.filter(|found| now < found.authority.expires) else { return Renewal::All };
    let is_due = |pair: &Pair| {
        let life = pair.expires.duration_since(pair.created);
        now.duration_since(pair.created) >= life * 2 / 3
    };
    let is_trusted = now.duration_since(found.authority.created) >= lifetimes.trusted_after;
    let is_of_previous = found.signed_by != found.authority.created;
    if found.names != names || now >= found.serving.expires {
        Renewal::Serving
    } else if is_due(&found.authority) {
        Renewal::Authority
    } else if (is_of_previous || is_due(&found.serving)) && is_trusted {
        Renewal::Serving
    } else if found.previous.as_ref().is_some_and(|previous| now >= previous.expires) && !is_of_previous {
        Renewal::ForgetPrevious
    } else {
        Renewal::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn pair(created: i64, hours: i32) -> Pair {
        let created = Timestamp::from_second(created * 3600).unwrap();
        Pair { certificate: format!("{created}\n"), key: String::new(), created, expires: created + HOUR * hours }
    }

    fn certificates(authority: i64, previous: Option<i64>, serving: i64, signed_by: i64) -> Certificates {
        Certificates {
            authority: pair(authority, 90),
            previous: previous.map(|created| pair(created, 90)),
            serving: pair(serving, 30),
            signed_by: pair(signed_by, 0).created,
            names: vec!["a.ns.svc".into()],
        }
    }

    fn at(found: Option<&Certificates>, hours: i64) -> Renewal {
        let lifetimes = Lifetimes { authority: HOUR * 90, serving: HOUR * 30, trusted_after: HOUR };
        plan(found, &["a.ns.svc".into()], &lifetimes, pair(hours, 0).created)
    }

    #[test]
    fn certificates_are_replaced_when_two_thirds_of_their_time_are_over() {
        assert_eq!(at(None, 0), Renewal::All);
        let new = certificates(0, None, 0, 0);
        assert_eq!(at(Some(&new), 0), Renewal::Nothing);
        assert_eq!(at(Some(&new), 19), Renewal::Nothing);
        assert_eq!(at(Some(&new), 20), Renewal::Serving);
        assert_eq!(at(Some(&new), 31), Renewal::Serving, "it was off for long");
        assert_eq!(at(Some(&new), 90), Renewal::All, "for even longer");
        let later = certificates(0, None, 45, 0);
        assert_eq!(at(Some(&later), 59), Renewal::Nothing);
        assert_eq!(at(Some(&later), 60), Renewal::Authority);
    }

    #[test]
    fn a_new_authority_is_trusted_before_it_is_used() {
        let replaced = certificates(60, Some(0), 45, 0);
        assert_eq!(at(Some(&replaced), 60), Renewal::Nothing);
        assert_eq!(at(Some(&replaced), 61), Renewal::Serving);
        assert_eq!(replaced.bundle().lines().count(), 2);
        let used = certificates(60, Some(0), 61, 60);
        assert_eq!(at(Some(&used), 62), Renewal::Nothing);
        let used = certificates(60, Some(0), 80, 60);
        assert_eq!(at(Some(&used), 89), Renewal::Nothing);
        assert_eq!(at(Some(&used), 90), Renewal::ForgetPrevious);
    }

    #[test]
    fn another_service_name_needs_another_certificate() {
        let found = certificates(0, None, 0, 0);
        let now = found.authority.created;
        assert_eq!(plan(Some(&found), &["b.ns.svc".into()], &Lifetimes::default(), now), Renewal::Serving);
    }

    #[test]
    fn the_defaults_leave_months_to_renew() {
        let lifetimes = Lifetimes::default();
        assert!(lifetimes.serving / 3 > SignedDuration::from_hours(90 * 24));
        assert!(lifetimes.authority / 3 > lifetimes.serving, "no certificate outlives its authority");
    }
}
