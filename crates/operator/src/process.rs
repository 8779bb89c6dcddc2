//! What every process has: addresses to listen on, and signals.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use futures::future::select_all;
use tokio::signal::unix::{SignalKind, signal};

/// `:8081` means every address, as in the flags of the Go operator: IPv6 and, on the same socket, IPv4.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let text = if text == "0" { ":0" } else { text };
    let full = if text.starts_with(':') { format!("[::]{text}") } else { text.replace("localhost", "127.0.0.1") };
    full.parse().map_err(|_| format!("`{text}` is not an address like :8081 or 127.0.0.1:8081"))
}

/// Waits for a signal to end.
pub async fn signals() -> Result<()> {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
    let mut streams =
        kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>().context("cannot install signal handlers")?;
    select_all(streams.iter_mut().map(|stream| Box::pin(stream.recv()))).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_omit_the_host() {
        assert_eq!(address(":8081").unwrap().to_string(), "[::]:8081");
        assert_eq!(address("localhost:6060").unwrap().to_string(), "127.0.0.1:6060");
        assert_eq!(address("[::]:80").unwrap().to_string(), "[::]:80");
        assert!(address("8081").unwrap_err().contains("8081"));
    }
}
