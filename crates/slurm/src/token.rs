//! JSON Web Tokens for Slurm's auth/jwt: HS256 over the claims that slurmctld reads.

use std::fmt;

use aws_lc_rs::hmac;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::json;
use thiserror::Error;

/// Length in bytes from which on a signing key is not the weakest part: HS256 is only as strong as its key.
pub const MIN_KEY_LEN: usize = 32;

/// Minimum lifetime: claims are in whole seconds.
pub const MIN_LIFETIME: SignedDuration = SignedDuration::from_secs(1);

/// Maximum lifetime, about 68 years, as in the Go operator.
pub const MAX_LIFETIME: SignedDuration = SignedDuration::from_secs(2_147_483_646);

/// Issuer claim of the operator's tokens.
pub const ISSUER: &str = "slurm-operator";

/// A signing key. Its content is never printed.
#[derive(Clone)]
pub struct Key {
    key: hmac::Key,
    len: usize,
}

/// A key without any content.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the signing key is empty")]
pub struct EmptyKey;

impl Key {
    /// Uses the bytes unchanged: slurmctld also signs with the whole file, line breaks included.
    pub fn new(bytes: &[u8]) -> Result<Self, EmptyKey> {
        if bytes.is_empty() {
            return Err(EmptyKey);
        }
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, bytes), len: bytes.len() })
    }

    /// Why the key is weak, if it is. Slurm accepts such keys.
    #[must_use]
    pub fn weakness(&self) -> Option<String> {
        let text = || format!("the signing key has {} bytes and can be guessed: use at least {MIN_KEY_LEN}", self.len);
        (self.len < MIN_KEY_LEN).then(text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

/// A signed token. It grants the access of its user, so it is printed only through [`Token::expose`].
#[derive(Clone)]
pub struct Token(String);

/// A text is not a token. The error does not contain the text, which may still be a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("not a token: it is empty or contains characters other than visible ASCII")]
pub struct NotAToken;

impl Token {
    /// Reads a token signed elsewhere, also with the prefix `SLURM_JWT=` that scontrol prints.
    pub fn from_text(text: &str) -> Result<Self, NotAToken> {
        let text = text.trim();
        let text = text.strip_prefix("SLURM_JWT=").unwrap_or(text);
        // Other characters cannot be sent in a header.
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NotAToken);
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the token as sent in `X-SLURM-USER-TOKEN`.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(redacted)")
    }
}

/// Claims of a token. Times are whole seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// `jti`: unique among the tokens of an issuer.
    pub id: String,
    /// `iss`
    pub issuer: String,
    /// `sun`: the Slurm user.
    pub user: String,
    /// `iat`
    pub issued_at: Timestamp,
    /// `nbf`
    pub not_before: Timestamp,
    /// `exp`: the first second at which the token is no longer valid.
    pub expires_at: Timestamp,
}

impl Claims {
    /// Creates claims that are valid from `now`; the lifetime is clamped to [`MIN_LIFETIME`] and [`MAX_LIFETIME`].
    #[must_use]
    pub fn new(id: &str, user: &str, now: Timestamp, lifetime: SignedDuration) -> Self {
        let seconds = lifetime.clamp(MIN_LIFETIME, MAX_LIFETIME).as_secs();
        // Clamp to jiff's maximum year 9999: a wrong clock must not make minting fail.
        let at = |second| Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
        let issued_at = at(now.as_second());
        let expires_at = at(now.as_second().saturating_add(seconds));
        Self {
            id: id.to_owned(),
            issuer: ISSUER.to_owned(),
            user: user.to_owned(),
            issued_at,
            not_before: issued_at,
            expires_at,
        }
    }

    /// When to replace the token: after 80 % of its lifetime.
    #[must_use]
    pub fn refresh_at(&self) -> Timestamp {
        let lifetime = self.expires_at.duration_since(self.issued_at).max(SignedDuration::ZERO);
        self.expires_at.checked_sub(lifetime / 5).unwrap_or(self.expires_at)
    }
}

/// Whether a text looks like a token of this operator, or of the Go operator, for a user. Says nothing about its signature.
#[must_use]
pub fn resembles(text: &str, user: &str) -> bool {
    let claims = text.split('.').nth(1).and_then(|part| json_part::<WireClaims>(part, "").ok());
    claims.is_some_and(|claims| claims.iss == ISSUER && claims.sun == user)
}

/// Signs the claims.
#[must_use]
pub fn mint(key: &Key, claims: &Claims) -> Token {
    let claims = json!({
        "jti": claims.id,
        "iss": claims.issuer,
        "iat": claims.issued_at.as_second(),
        "nbf": claims.not_before.as_second(),
        "exp": claims.expires_at.as_second(),
        "sun": claims.user,
    });
    Token(sign(key, r#"{"alg":"HS256","typ":"JWT"}"#, &claims.to_string()))
}

/// Why a token is rejected.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VerifyError {
    /// Not a token in the expected format.
    #[error("malformed token: {0}")]
    Malformed(&'static str),
    /// The header asks for another algorithm, including `none`.
    #[error("the token is not signed with HS256")]
    WrongAlgorithm,
    /// Signed with another key, or modified.
    #[error("the signature of the token does not match the key")]
    WrongSignature,
    /// Authentic but expired. The claims are kept because the status still reports when it was issued.
    #[error("the token expired at {}", .0.expires_at)]
    Expired(Box<Claims>),
    /// Authentic but not valid yet.
    #[error("the token is not valid before {}", .0.not_before)]
    NotYetValid(Box<Claims>),
}

/// Returns the claims of a token if it was signed with this key and is valid at `now`.
pub fn verify(key: &Key, token: &str, now: Timestamp) -> Result<Claims, VerifyError> {
    let claims: WireClaims = json_part(authentic(key, token)?, "the claims are not those of a Slurm token")?;
    let time = |second| Timestamp::from_second(second).map_err(|_| VerifyError::Malformed("a time is out of range"));
    let claims = Claims {
        id: claims.jti,
        issuer: claims.iss,
        user: claims.sun,
        issued_at: time(claims.iat)?,
        not_before: time(claims.nbf)?,
        expires_at: time(claims.exp)?,
    };
    if now >= claims.expires_at {
        Err(VerifyError::Expired(claims.into()))
    } else if now < claims.not_before {
        Err(VerifyError::NotYetValid(claims.into()))
    } else {
        Ok(claims)
    }
}

#[derive(Deserialize)]
struct WireClaims {
    jti: String,
    iss: String,
    iat: i64,
    nbf: i64,
    exp: i64,
    sun: String,
}

#[derive(Deserialize)]
struct WireHeader {
    alg: String,
}

fn sign(key: &Key, header: &str, claims: &str) -> String {
    let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
    let tag = hmac::sign(&key.key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Returns the encoded claims of a token after checking its signature.
fn authentic<'a>(key: &Key, token: &'a str) -> Result<&'a str, VerifyError> {
    let parts = || VerifyError::Malformed("it does not have three parts");
    let (signed, tag) = token.rsplit_once('.').ok_or_else(parts)?;
    let (header, claims) = signed.split_once('.').ok_or_else(parts)?;
    if claims.contains('.') {
        return Err(parts());
    }
    // The header is only used to reject a token: the algorithm is never taken from it.
    let header: WireHeader = json_part(header, "the header is not a JSON object with an algorithm")?;
    if header.alg != "HS256" {
        return Err(VerifyError::WrongAlgorithm);
    }
    let tag = base64_part(tag)?;
    hmac::verify(&key.key, signed.as_bytes(), &tag).map_err(|_| VerifyError::WrongSignature)?;
    Ok(claims)
}

fn json_part<T: for<'de> Deserialize<'de>>(part: &str, otherwise: &'static str) -> Result<T, VerifyError> {
    serde_json::from_slice(&base64_part(part)?).map_err(|_| VerifyError::Malformed(otherwise))
}

fn base64_part(part: &str) -> Result<Vec<u8>, VerifyError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| VerifyError::Malformed("a part is not base64url"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn key() -> Key {
        Key::new(b"0123456789abcdef0123456789abcdef").unwrap()
    }

    fn claims(lifetime: i64) -> Claims {
        Claims::new("id-1", "root", at(NOW), SignedDuration::from_secs(lifetime))
    }

    fn key_of_rfc_7515() -> Key {
        let text = "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow";
        Key::new(&URL_SAFE_NO_PAD.decode(text).unwrap()).unwrap()
    }

    #[test]
    fn signs_the_example_of_rfc_7515_appendix_a1() {
        let claims = "{\"iss\":\"joe\",\r\n \"exp\":1300819380,\r\n \"http://example.com/is_root\":true}";
        let token = sign(&key_of_rfc_7515(), "{\"typ\":\"JWT\",\r\n \"alg\":\"HS256\"}", claims);
        let expected = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9\
                        .eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ\
                        .dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
        assert_eq!(token, expected);
        authentic(&key_of_rfc_7515(), &token).unwrap();
        // Authentic, but without a Slurm user.
        assert!(matches!(verify(&key_of_rfc_7515(), &token, at(0)), Err(VerifyError::Malformed(_))));
    }

    #[test]
    fn a_minted_token_verifies_to_its_claims() {
        let token = mint(&key(), &claims(900));
        let read = verify(&key(), token.expose(), at(NOW)).unwrap();
        assert_eq!(read, claims(900));
        assert_eq!((read.issuer.as_str(), read.user.as_str(), read.id.as_str()), ("slurm-operator", "root", "id-1"));
        assert_eq!((read.issued_at, read.not_before, read.expires_at), (at(NOW), at(NOW), at(NOW + 900)));
    }

    #[test]
    fn the_wire_has_the_claims_slurm_reads() {
        let token = mint(&key(), &claims(60));
        let part = token.expose().split('.').nth(1).unwrap();
        let wire: serde_json::Value = json_part(part, "").unwrap();
        let expected =
            json!({"jti": "id-1", "iss": "slurm-operator", "iat": NOW, "nbf": NOW, "exp": NOW + 60, "sun": "root"});
        assert_eq!(wire, expected);
    }

    #[test]
    fn any_change_breaks_a_token() {
        let token = mint(&key(), &claims(900)).expose().to_owned();
        for (index, byte) in token.bytes().enumerate() {
            let mut changed = token.clone().into_bytes();
            changed[index] = if byte == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            verify(&key(), &changed, at(NOW)).unwrap_err();
        }
        let other = Key::new(&[7; 32]).unwrap();
        assert_eq!(verify(&other, &token, at(NOW)), Err(VerifyError::WrongSignature));
        let (signed, _) = token.rsplit_once('.').unwrap();
        assert_eq!(verify(&key(), &format!("{signed}."), at(NOW)), Err(VerifyError::WrongSignature));
        let forged = mint(&other, &Claims { user: "slurm".into(), ..claims(900) });
        assert_eq!(verify(&key(), forged.expose(), at(NOW)), Err(VerifyError::WrongSignature));
    }

    #[test]
    fn only_hs256_counts() {
        let body = "{}";
        for alg in ["none", "None", "hs256", "HS384", "RS256", ""] {
            let token = sign(&key(), &json!({ "alg": alg }).to_string(), body);
            assert_eq!(verify(&key(), &token, at(NOW)), Err(VerifyError::WrongAlgorithm), "{alg}");
        }
        let unsigned = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), URL_SAFE_NO_PAD.encode(body));
        assert_eq!(verify(&key(), &unsigned, at(NOW)), Err(VerifyError::WrongAlgorithm));
    }

    #[test]
    fn garbage_is_malformed() {
        let good = r#"{"alg":"HS256"}"#;
        let signed = [
            sign(&key(), "[]", "{}"),
            sign(&key(), good, "{}"),
            sign(&key(), good, "no JSON"),
            sign(&key(), good, r#"{"jti":"","iss":"","iat":0,"nbf":0,"exp":9223372036854775807,"sun":""}"#),
        ];
        let texts = ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "é.é.é", "SLURM_JWT=x"];
        for token in texts.into_iter().chain(signed.iter().map(String::as_str)) {
            assert!(matches!(verify(&key(), token, at(NOW)), Err(VerifyError::Malformed(_))), "{token}");
        }
        let four = format!("{}.x", mint(&key(), &claims(900)).expose());
        assert!(matches!(verify(&key(), &four, at(NOW)), Err(VerifyError::Malformed(_))));
    }

    #[test]
    fn a_token_is_good_from_its_first_second_to_before_its_last() {
        let token = mint(&key(), &claims(10));
        let verify_at = |second| verify(&key(), token.expose(), at(second));
        assert_eq!(verify_at(NOW - 1), Err(VerifyError::NotYetValid(claims(10).into())));
        assert_eq!(verify_at(NOW), Ok(claims(10)));
        assert_eq!(verify_at(NOW + 9), Ok(claims(10)));
        assert_eq!(verify_at(NOW + 10), Err(VerifyError::Expired(claims(10).into())));
        assert_eq!(verify_at(NOW + 10).unwrap_err().to_string(), "the token expired at 2027-01-15T08:00:10Z");
    }

    #[test]
    fn lifetimes_are_clamped_and_refreshed_at_four_fifths() {
        let table = [
            // (requested lifetime, effective lifetime, refresh after milliseconds)
            (i64::MIN, 1, 800),
            (-5, 1, 800),
            (0, 1, 800),
            (1, 1, 800),
            (900, 900, 720_000),
            (2_147_483_646, 2_147_483_646, 1_717_986_916_800),
            (i64::MAX, 2_147_483_646, 1_717_986_916_800),
        ];
        for (asked, lifetime, refresh) in table {
            let claims = claims(asked);
            assert_eq!(claims.expires_at, at(NOW + lifetime), "{asked}");
            assert_eq!(claims.refresh_at().duration_since(at(NOW)).as_millis(), refresh, "{asked}");
        }
        // Seconds are truncated, never rounded up into the future.
        let early = Claims::new("", "", "2027-01-15T08:00:00.9Z".parse().unwrap(), SignedDuration::from_millis(1900));
        assert_eq!((early.issued_at, early.expires_at), (at(NOW), at(NOW + 1)));
        // The maximum timestamp must not fail.
        let late = Claims::new("", "", Timestamp::MAX, MAX_LIFETIME);
        assert!(late.refresh_at() <= late.expires_at);
    }

    #[test]
    fn short_keys_are_weak_and_empty_ones_refused() {
        let weakness = Key::new(&[0; 31]).unwrap().weakness();
        assert_eq!(weakness.unwrap(), "the signing key has 31 bytes and can be guessed: use at least 32");
        assert_eq!(Key::new(&[0; 32]).unwrap().weakness(), None);
        assert_eq!(Key::new(&[]).unwrap_err(), EmptyKey);
    }

    #[test]
    fn tokens_of_the_operator_are_told_from_others() {
        let token = mint(&key(), &claims(900)).expose().to_owned();
        assert!(resembles(&token, "root") && !resembles(&token, "alice"));
        let foreign = sign(&key(), "{}", r#"{"jti":"","iss":"me","iat":0,"nbf":0,"exp":9,"sun":"root"}"#);
        assert!(!resembles(&foreign, "root") && !resembles("rubbish", "root") && !resembles("a.b.c", "root"));
    }

    #[test]
    fn takes_tokens_of_others() {
        for text in ["a.b.c", " a.b.c\n", "SLURM_JWT=a.b.c\n"] {
            assert_eq!(Token::from_text(text).unwrap().expose(), "a.b.c", "{text}");
        }
        for text in ["", "\n", "SLURM_JWT=", "a b", "a\nb", "ä"] {
            assert_eq!(Token::from_text(text).unwrap_err(), NotAToken, "{text}");
        }
    }

    #[test]
    fn debug_shows_no_secret() {
        let token = mint(&key(), &claims(900));
        assert_eq!(format!("{:?} {:?}", key(), token), "Key(redacted) Token(redacted)");
        let forged = format!("{}x", token.expose());
        let error = format!("{:?}", verify(&key(), &forged, at(NOW)).unwrap_err());
        assert!(!error.contains(token.expose()), "{error}");
    }
}
