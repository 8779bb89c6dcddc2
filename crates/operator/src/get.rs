//! `slurm-operator get`: a page of a server of ours.

use std::{
    io::{Read, Write},
    net::{TcpStream, ToSocketAddrs},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

const TIMEOUT: Duration = Duration::from_secs(5);

/// The body of a page that is served over plain HTTP.
pub fn page(url: &str) -> Result<String> {
    let address = url.strip_prefix("http://").unwrap_or(url);
    ensure!(!address.contains("://"), "{url}: only http:// is supported");
    let (host, path) = address.split_once('/').unwrap_or((address, ""));
    let addresses =
        host.to_socket_addrs().with_context(|| format!("{host} is not a host and port that can be found"))?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return ask(stream, host, path).with_context(|| format!("cannot read {url}")),
            Err(error) => last = Some(error),
        }
    }
    bail!(
        "cannot connect to {host}: {}",
        last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string())
    )
}

/// HTTP/1.0, so that the body ends with the connection.
fn ask(mut stream: TcpStream, host: &str, path: &str) -> Result<String> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /{path} HTTP/1.0\r\nHost: {host}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.lines().next().unwrap_or_default();
    let code = status.split(' ').nth(1).unwrap_or_default();
    ensure!(code.starts_with('2'), "the answer is `{status}`: {}", body.trim());
    Ok(body.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// A server that answers once, and returns what it was asked.
    fn get(answer: &'static str, path: &str) -> (Result<String>, String) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}{path}", server.local_addr().unwrap());
        let asked = thread::spawn(move || {
            let (mut stream, _) = server.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                request.extend(byte);
            }
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8(request).unwrap()
        });
        (page(&url), asked.join().unwrap())
    }

    #[test]
    fn a_page_is_printed_only_if_it_is_a_success() {
        let (body, asked) = get("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok\n", "/readyz");
        assert_eq!(body.unwrap(), "ok\n");
        assert!(asked.starts_with("GET /readyz HTTP/1.0\r\n"), "{asked}");
        let (body, asked) = get("HTTP/1.1 503 Service Unavailable\r\n\r\ntokens: not synced yet\n", "");
        let error = format!("{:#}", body.unwrap_err());
        assert!(error.contains("503 Service Unavailable") && error.contains("tokens: not synced yet"), "{error}");
        assert!(asked.starts_with("GET / HTTP/1.0"), "{asked}");
    }

    #[test]
    fn what_cannot_be_reached_is_named() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = page(&format!("{free}/readyz")).unwrap_err().to_string();
        assert!(error.starts_with(&format!("cannot connect to {free}: ")), "{error}");
        assert!(page("https://localhost:1/").unwrap_err().to_string().contains("only http://"));
        assert!(page("localhost/readyz").is_err(), "a port is missing");
    }
}
