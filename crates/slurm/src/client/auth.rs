//! Token sources of the client. The only place in this crate that reads a clock or generates random numbers.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
    process::Stdio,
};

use aws_lc_rs::rand;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use thiserror::Error;
use tokio::{process::Command, sync::Mutex};

use crate::token::{self, Claims, Key, NotAToken, Token};

/// A source of tokens.
#[derive(Debug)]
pub struct Auth {
    source: Source,
    /// Cached token, for sources where getting one is expensive.
    kept: Mutex<Option<Kept>>,
}

#[derive(Debug)]
enum Source {
    Static(Token),
    Mint { key: Box<Key>, user: String, lifetime: SignedDuration },
    File(PathBuf),
    // Redacted because the arguments may contain secrets.
    Command(Redacted<(OsString, Vec<OsString>)>),
}

/// A value that must not be printed.
struct Redacted<T>(T);

impl<T> fmt::Debug for Redacted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[derive(Clone, Debug)]
struct Kept {
    token: Token,
    refresh_at: Timestamp,
}

/// Why no token is available.
#[derive(Debug, Error)]
pub enum AuthError {
    #[error("cannot read the token file {}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("cannot run the token command")]
    Command { source: io::Error },
    /// The command failed. Its output is omitted: it may contain a token.
    #[error("the token command failed: {status}")]
    CommandFailed { status: std::process::ExitStatus },
    /// The file or the output of the command is not a token.
    #[error(transparent)]
    NotAToken(#[from] NotAToken),
    /// The system provides no random numbers.
    #[error("cannot generate a random token id")]
    NoRandomness,
}

/// How long to use a command's token that has no expiry time.
const UNKNOWN_LIFETIME: SignedDuration = SignedDuration::from_secs(60);

impl Auth {
    /// Always uses the same token.
    pub fn token(token: Token) -> Self {
        Self::from(Source::Static(token))
    }

    /// Signs tokens for a user with the cluster's key, and replaces them after 80 % of their lifetime.
    pub fn mint(key: Key, user: impl Into<String>, lifetime: SignedDuration) -> Self {
        Self::from(Source::Mint { key: Box::new(key), user: user.into(), lifetime })
    }

    /// Reads the token from a file that is refreshed externally. A leading `SLURM_JWT=` is skipped.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::from(Source::File(path.into()))
    }

    /// Runs a command such as `scontrol token` and uses its output; runs it again after 80 % of the token's lifetime.
    pub fn command<S: Into<OsString>>(program: impl Into<OsString>, arguments: impl IntoIterator<Item = S>) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self::from(Source::Command(Redacted((program.into(), arguments))))
    }

    fn from(source: Source) -> Self {
        Self { source, kept: Mutex::new(None) }
    }

    /// Returns a token that is valid now.
    pub(super) async fn current(&self) -> Result<Token, AuthError> {
        match &self.source {
            Source::Static(token) => Ok(token.clone()),
            // The file is a few bytes: reading it is cheaper than checking for changes, and never misses one.
            Source::File(path) => read(path).await,
            Source::Mint { .. } | Source::Command(_) => {
                let mut kept = self.kept.lock().await;
                let now = Timestamp::now();
                if let Some(kept) = kept.as_ref().filter(|kept| now < kept.refresh_at) {
                    return Ok(kept.token.clone());
                }
                let fresh = self.fresh(now).await?;
                let token = fresh.token.clone();
                *kept = Some(fresh);
                Ok(token)
            }
        }
    }

    /// Returns a token other than the refused one, if this source has one.
    pub(super) async fn after_refusal(&self, refused: &Token) -> Option<Token> {
        {
            let mut kept = self.kept.lock().await;
            if kept.as_ref().is_some_and(|kept| kept.token.expose() == refused.expose()) {
                *kept = None;
            }
        }
        match self.source {
            // A new token signed with the same key would be refused too; retrying only doubles the load of a
            // misconfiguration.
            Source::Static(_) | Source::Mint { .. } => None,
            Source::File(_) | Source::Command(_) => {
                self.current().await.ok().filter(|token| token.expose() != refused.expose())
            }
        }
    }

    async fn fresh(&self, now: Timestamp) -> Result<Kept, AuthError> {
        match &self.source {
            Source::Mint { key, user, lifetime } => {
                let claims = Claims::new(&unique_id()?, user, now, *lifetime);
                Ok(Kept { token: token::mint(key, &claims), refresh_at: claims.refresh_at() })
            }
            Source::Command(Redacted((program, arguments))) => {
                let token = run(program, arguments).await?;
                let refresh_at = refresh_of(&token, now);
                Ok(Kept { token, refresh_at })
            }
            Source::Static(token) => Ok(Kept { token: token.clone(), refresh_at: Timestamp::MAX }),
            Source::File(path) => Ok(Kept { token: read(path).await?, refresh_at: now }),
        }
    }
}

async fn read(path: &Path) -> Result<Token, AuthError> {
    let text = tokio::fs::read_to_string(path).await;
    let text = text.map_err(|source| AuthError::File { path: path.to_owned(), source })?;
    Ok(Token::from_text(&text)?)
}

async fn run(program: &OsString, arguments: &[OsString]) -> Result<Token, AuthError> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.map_err(|source| AuthError::Command { source })?;
    if !output.status.success() {
        return Err(AuthError::CommandFailed { status: output.status });
    }
    Ok(Token::from_text(&String::from_utf8_lossy(&output.stdout))?)
}

fn unique_id() -> Result<String, AuthError> {
    let mut bytes = [0_u8; 16];
    rand::fill(&mut bytes).map_err(|_| AuthError::NoRandomness)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// When to replace an external token. Its claims are not verified: the client only sends the token.
fn refresh_of(token: &Token, now: Timestamp) -> Timestamp {
    #[derive(Deserialize)]
    struct Expiry {
        exp: i64,
    }
    let expires_at = || {
        let claims = token.expose().split('.').nth(1)?;
        let claims: Expiry = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        Timestamp::from_second(claims.exp).ok()
    };
    let lifetime = expires_at().map_or(UNKNOWN_LIFETIME, |end| end.duration_since(now).max(SignedDuration::ZERO));
    let refresh_after = lifetime / 5 * 4;
    now.checked_add(refresh_after).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::new(b"0123456789abcdef0123456789abcdef").unwrap()
    }

    fn seconds(seconds: i64) -> SignedDuration {
        SignedDuration::from_secs(seconds)
    }

    #[tokio::test]
    async fn minted_tokens_are_kept_until_four_fifths_are_over() {
        let auth = Auth::mint(key(), "slurm", seconds(900));
        let first = auth.current().await.unwrap();
        assert_eq!(auth.current().await.unwrap().expose(), first.expose());
        let kept = auth.kept.lock().await.clone().unwrap();
        let claims = token::verify(&key(), first.expose(), Timestamp::now()).unwrap();
        assert_eq!((kept.refresh_at, claims.user.as_str()), (claims.issued_at + seconds(720), "slurm"));
        // Make the token due for renewal.
        auth.kept.lock().await.as_mut().unwrap().refresh_at = Timestamp::now();
        assert_ne!(auth.current().await.unwrap().expose(), first.expose(), "each token has its own id");
    }

    #[tokio::test]
    async fn files_are_read_again() {
        let path = std::env::temp_dir().join(format!("slurm-token-{}", std::process::id()));
        let auth = Auth::file(&path);
        assert!(matches!(auth.current().await, Err(AuthError::File { .. })));
        std::fs::write(&path, "SLURM_JWT=one\n").unwrap();
        let one = auth.current().await.unwrap();
        assert_eq!(one.expose(), "one");
        assert!(auth.after_refusal(&one).await.is_none(), "the token has not changed");
        std::fs::write(&path, "two").unwrap();
        assert_eq!(auth.after_refusal(&one).await.unwrap().expose(), "two");
        std::fs::write(&path, "").unwrap();
        assert!(matches!(auth.current().await, Err(AuthError::NotAToken(_))));
        std::fs::remove_file(&path).unwrap();
    }

    #[tokio::test]
    async fn commands_run_when_needed() {
        let auth = Auth::command("sh", ["-c", "echo SLURM_JWT=$(date +%s%N)"]);
        let first = auth.current().await.unwrap();
        assert_eq!(auth.current().await.unwrap().expose(), first.expose());
        let second = auth.after_refusal(&first).await.unwrap();
        assert_ne!(second.expose(), first.expose());
        let broken = Auth::command("sh", ["-c", "echo hush; exit 3"]).current().await.unwrap_err();
        assert!(matches!(broken, AuthError::CommandFailed { .. }));
        assert!(!format!("{broken} {broken:?}").contains("hush"));
        let missing = Auth::command("/no/such/program", [""; 0]).current().await.unwrap_err();
        assert!(matches!(missing, AuthError::Command { .. }));
    }

    #[test]
    fn others_tokens_are_replaced_after_four_fifths() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let minted = token::mint(&key(), &Claims::new("", "x", now, seconds(100)));
        assert_eq!(refresh_of(&minted, now), now + seconds(80));
        assert_eq!(refresh_of(&minted, now + seconds(200)), now + seconds(200), "already over");
        assert_eq!(refresh_of(&Token::from_text("opaque").unwrap(), now), now + seconds(48));
        assert_eq!(refresh_of(&Token::from_text("a.b.c").unwrap(), now), now + seconds(48));
    }

    #[tokio::test]
    async fn debug_shows_no_secret() {
        let secret = "sesame";
        let sources = [
            Auth::token(Token::from_text(secret).unwrap()),
            Auth::mint(Key::new(secret.repeat(9).as_bytes()).unwrap(), "slurm", seconds(9)),
            Auth::command("echo", [secret]),
        ];
        for auth in sources {
            let token = auth.current().await.unwrap();
            let shown = format!("{auth:?}");
            assert!(!shown.contains(secret) && !shown.contains(token.expose()), "{shown}");
        }
    }
}
