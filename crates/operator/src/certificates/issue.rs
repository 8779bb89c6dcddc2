//! Makes certificates.

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};

use super::plan_certificates::{Certificates, Lifetimes, Pair, Renewal};

/// The clock of the API server may be behind ours.
const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// Carries out what was planned. `found` is needed for everything but `All`.
pub fn renew(
    renewal: Renewal,
    found: Option<Certificates>,
    names: &[String],
    lifetimes: &Lifetimes,
    now: Timestamp,
) -> Result<Option<Certificates>> {
    let renewed = match (renewal, found) {
        (Renewal::Nothing, _) => return Ok(None),
        (Renewal::All, _) | (_, None) => {
            let authority = authority(lifetimes, now)?;
            let serving = serving(&authority, names, lifetimes, now)?;
            Certificates { signed_by: now, authority, previous: None, serving, names: names.to_vec() }
        }
        (Renewal::Authority, Some(found)) => {
            Certificates { previous: Some(found.authority), authority: authority(lifetimes, now)?, ..found }
        }
        (Renewal::Serving, Some(found)) => Certificates {
            serving: serving(&found.authority, names, lifetimes, now)?,
            signed_by: found.authority.created,
            names: names.to_vec(),
            ..found
        },
        (Renewal::ForgetPrevious, Some(found)) => Certificates { previous: None, ..found },
    };
    Ok(Some(renewed))
}

/// The name tells authorities apart. Certificates refer to it, so it depends on nothing else.
fn authority_params(created: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, format!("slurm-operator-webhook {created}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn authority(lifetimes: &Lifetimes, now: Timestamp) -> Result<Pair> {
    let key = KeyPair::generate().context("cannot make a key")?;
    let mut params = authority_params(now);
    let expires = limit(&mut params, lifetimes.authority, now)?;
    let certificate = params.self_signed(&key).context("cannot sign the authority")?.pem();
    Ok(Pair { certificate, key: key.serialize_pem(), created: now, expires })
}

fn serving(authority: &Pair, names: &[String], lifetimes: &Lifetimes, now: Timestamp) -> Result<Pair> {
    let signing_key = KeyPair::from_pem(&authority.key).context("cannot read the key of the authority")?;
    let issuer = Issuer::new(authority_params(authority.created), signing_key);
    let mut params = CertificateParams::new(names).context("not a DNS name")?;
    params.distinguished_name.push(DnType::CommonName, "slurm-operator-webhook");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let expires = limit(&mut params, lifetimes.serving, now)?;
    let key = KeyPair::generate().context("cannot make a key")?;
    let certificate = params.signed_by(&key, &issuer).context("cannot sign the certificate")?.pem();
    Ok(Pair { certificate, key: key.serialize_pem(), created: now, expires })
}

/// Sets the time in which the certificate is valid, and returns its end.
fn limit(params: &mut CertificateParams, lifetime: SignedDuration, now: Timestamp) -> Result<Timestamp> {
    let since_epoch = |time: Timestamp| time.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs();
    let epoch = date_time_ymd(1970, 1, 1);
    let expires = now.checked_add(lifetime).context("the clock is wrong")?;
    params.not_before = epoch + since_epoch(now.saturating_sub(BACKDATED).context("the clock is wrong")?);
    params.not_after = epoch + since_epoch(expires);
    Ok(expires)
}

#[cfg(test)]
mod tests {
    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    };
    use std::{sync::Arc, time::Duration};

    use super::*;

    /// Whether a client that trusts the bundle accepts the certificate at that time.
    fn is_accepted(bundle: &str, certificate: &str, name: &str, at: Timestamp) -> bool {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(root.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let seconds = u64::try_from(at.as_second()).unwrap();
        let end = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        verifier.verify_server_cert(&end, &[], &name, &[], time).is_ok()
    }

    #[test]
    fn a_client_accepts_the_certificate_at_every_step_of_a_rotation() {
        let lifetimes = Lifetimes::default();
        let names = ["hook.ns.svc".to_owned()];
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let first = renew(Renewal::All, None, &names, &lifetimes, start).unwrap().unwrap();
        let accepts =
            |found: &Certificates, at| is_accepted(&found.bundle(), &found.serving.certificate, &names[0], at);
        assert!(accepts(&first, start) && accepts(&first, start - SignedDuration::from_mins(50)));
        assert!(!accepts(&first, start + lifetimes.serving + SignedDuration::from_secs(1)));
        assert!(!is_accepted(&first.bundle(), &first.serving.certificate, "other.ns.svc", start));

        let later = start + SignedDuration::from_hours(24);
        let trusted = renew(Renewal::Authority, Some(first.clone()), &names, &lifetimes, later).unwrap().unwrap();
        assert!(accepts(&trusted, later) && trusted.serving == first.serving);
        let used = renew(Renewal::Serving, Some(trusted.clone()), &names, &lifetimes, later).unwrap().unwrap();
        assert!(accepts(&used, later));
        assert!(is_accepted(&trusted.bundle(), &used.serving.certificate, &names[0], later), "another replica");
        assert!(!is_accepted(&first.bundle(), &used.serving.certificate, &names[0], later), "it is another authority");
        let alone = renew(Renewal::ForgetPrevious, Some(used), &names, &lifetimes, later).unwrap().unwrap();
        assert!(accepts(&alone, later) && !is_accepted(&alone.bundle(), &first.serving.certificate, &names[0], later));
    }
}
