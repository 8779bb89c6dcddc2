//! Waits for conditions by polling instead of fixed sleeps.

use std::time::Duration;

use anyhow::anyhow;
use tokio::time::{Instant, sleep, timeout_at};

/// Short compared with what a test waits for, long compared with a call.
const PERIOD: Duration = Duration::from_millis(50);

/// Polls `probe` until it succeeds; its error describes the current state.
///
/// After the timeout, the error contains `what` was awaited and the last state.
pub async fn wait_for<T, P>(what: &str, within: Duration, mut probe: P) -> anyhow::Result<T>
where
    P: AsyncFnMut() -> anyhow::Result<T>,
{
    let deadline = Instant::now() + within;
    let mut seen = anyhow!("nothing: the first probe did not finish");
    loop {
        match timeout_at(deadline, probe()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => seen = error,
            // The probe hangs; the previous state is more useful.
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            return Err(anyhow!("waited {within:?} for {what}; last seen: {seen:#}"));
        }
        sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[tokio::test(start_paused = true)]
    async fn returns_the_first_answer() {
        let mut looks = 0;
        let answer = wait_for("three looks", Duration::from_secs(10), async || {
            looks += 1;
            if looks < 3 {
                bail!("{looks} looks");
            }
            Ok("here")
        });
        assert_eq!(answer.await.unwrap(), "here");
        assert_eq!(looks, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_reports_the_last_state() {
        let start = Instant::now();
        let mut looks = 0;
        let never = wait_for::<(), _>("a miracle", Duration::from_secs(1), async || {
            looks += 1;
            Err(anyhow!("phase Pending").context(format!("look {looks}")))
        });
        let error = never.await.unwrap_err().to_string();
        assert_eq!(error, "waited 1s for a miracle; last seen: look 21: phase Pending");
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_hangs_does_not_hang_the_test() {
        let hung = wait_for::<(), _>("an answer", Duration::from_secs(1), async || std::future::pending().await);
        let error = hung.await.unwrap_err().to_string();
        assert!(error.contains("last seen: nothing"), "{error}");
    }
}
