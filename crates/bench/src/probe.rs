//! Pages of a program that is measured.

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// Host and port of a URL such as `http://localhost:6820/readyz`.
pub fn host_and_port(url: &str) -> Result<(&str, u16)> {
    let rest = url.strip_prefix("http://").with_context(|| format!("{url} does not begin with http://"))?;
    let (host, port) = rest
        .split('/')
        .next()
        .and_then(|authority| authority.rsplit_once(':'))
        .with_context(|| format!("{url} has no port"))?;
    Ok((host, port.parse().with_context(|| format!("{url} has no port"))?))
}

/// Whether a GET of the URL is answered with 200.
pub async fn is_ready(url: &str) -> Result<bool> {
    Ok(get(url).await?.starts_with(b"HTTP/1.1 200"))
}

/// What a GET of the URL is answered with, headers included.
pub async fn get(url: &str) -> Result<Vec<u8>> {
    let (host, port) = host_and_port(url)?;
    let path = url.splitn(4, '/').nth(3).unwrap_or_default();
    let mut stream = TcpStream::connect((host, port)).await?;
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_a_host_and_a_port() {
        assert_eq!(host_and_port("http://localhost:6820").unwrap(), ("localhost", 6820));
        assert_eq!(host_and_port("http://127.0.0.1:8081/readyz").unwrap(), ("127.0.0.1", 8081));
        assert!(host_and_port("https://localhost:1").is_err());
        assert!(host_and_port("http://localhost").is_err());
    }

    #[tokio::test]
    async fn ready_is_an_answer_of_200() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/readyz", listener.local_addr().unwrap());
        let server = async {
            for status in ["503 Service Unavailable", "200 OK"] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let read = stream.read(&mut request).await.unwrap();
                assert!(request[..read].starts_with(b"GET /readyz HTTP/1.1\r\n"));
                stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await.unwrap();
            }
        };
        let client = async { [is_ready(&url).await.unwrap(), is_ready(&url).await.unwrap()] };
        let (answers, ()) = tokio::join!(client, server);
        assert_eq!(answers, [false, true]);
    }
}
