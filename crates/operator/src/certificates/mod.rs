//! Certificates of servers, and HTTPS with a certificate that can be replaced at any time.

pub mod issue;
pub mod plan_certificates;
pub mod tls;

use std::{fs, path::Path, time::Duration};

use anyhow::{Context, Result};
use jiff::Timestamp;

use crate::health::Readiness;
use issue::renew;
pub use plan_certificates::Lifetimes;
use plan_certificates::{Certificates, plan};
pub use tls::Current;

/// How often everything is compared, and how soon after a failure or a change.
pub const EVERY: Duration = Duration::from_secs(10);
pub const SOON: Duration = Duration::from_secs(1);

/// How often a certificate that only this process knows is looked at.
const OWN_EVERY: Duration = Duration::from_hours(1);

/// Records what came of a pass that uses a certificate, and returns when to look again. `what` is what readiness waits for.
pub fn record(what: &str, readiness: &Readiness, pass: Result<Duration>) -> Duration {
    match pass {
        Ok(pause) => {
            readiness.met(what);
            pause
        }
        Err(error) => {
            let text = format!("{error:#}");
            readiness.failing(what, &text);
            tracing::warn!("{what}: {text}");
            SOON
        }
    }
}

/// Keeps the certificate in use: that in a folder, or one that is made here and that clients cannot verify. Runs forever.
pub async fn keep_own(folder: Option<&Path>, current: &Current, readiness: &Readiness) {
    const WHAT: &str = "certificate of the metrics server";
    readiness.expect(WHAT);
    let (mut used, mut found) = (String::new(), None);
    loop {
        let pass = match folder {
            Some(folder) => read_files(folder, current, &mut used).map(|()| EVERY),
            None => renew_own(current, &mut found),
        };
        tokio::time::sleep(record(WHAT, readiness, pass)).await;
    }
}

fn renew_own(current: &Current, found: &mut Option<Certificates>) -> Result<Duration> {
    let (names, lifetimes, now) = (["localhost".to_owned()], Lifetimes::default(), Timestamp::now());
    let renewal = plan(found.as_ref(), &names, &lifetimes, now);
    if let Some(renewed) = renew(renewal, found.clone(), &names, &lifetimes, now)? {
        current.set(&renewed.serving.certificate, &renewed.serving.key)?;
        *found = Some(renewed);
    }
    Ok(OWN_EVERY)
}

/// Uses the certificate in the folder if it has changed.
pub fn read_files(folder: &Path, current: &Current, used: &mut String) -> Result<()> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (certificate, key) = (read("tls.crt")?, read("tls.key")?);
    // They are replaced together, but not read together: if they do not match, the next pass reads them again.
    if *used != certificate {
        current.set(&certificate, &key)?;
        tracing::info!("certificate read");
        *used = certificate;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{plan_certificates::Renewal, *};

    fn made() -> Certificates {
        let names = ["hook.ns.svc".to_owned()];
        renew(Renewal::All, None, &names, &Lifetimes::default(), Timestamp::now()).unwrap().unwrap()
    }

    #[test]
    fn files_are_read_again_when_they_change() {
        let folder = std::env::temp_dir().join(format!("slurm-operator-webhook-{}", crate::random::id().unwrap()));
        fs::create_dir(&folder).unwrap();
        let (current, mut used) = (Current::default(), String::new());
        let error = read_files(&folder, &current, &mut used).unwrap_err();
        assert!(error.to_string().contains("tls.crt"), "{error:#}");
        let (first, second) = (made().serving, made().serving);
        let write = |certificate: &str, key: &str| {
            fs::write(folder.join("tls.crt"), certificate).unwrap();
            fs::write(folder.join("tls.key"), key).unwrap();
        };
        write(&first.certificate, &first.key);
        read_files(&folder, &current, &mut used).unwrap();
        write(&second.certificate, &first.key);
        read_files(&folder, &current, &mut used).unwrap_err();
        assert_eq!(used, first.certificate, "the old one stays in use");
        write(&second.certificate, &second.key);
        read_files(&folder, &current, &mut used).unwrap();
        assert_eq!(used, second.certificate);
        fs::remove_dir_all(folder).unwrap();
    }
}
