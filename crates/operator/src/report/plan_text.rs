//! Removes secrets from texts: those that are known, and what looks like one. Pure.
//!
//! A text without secrets stays as it is. When in doubt, something is removed: a report may end in a public place.

use std::fmt::Write;

/// What stands for something that was removed.
pub const REMOVED: &str = "<removed>";

/// Shorter values that are known are only removed where a name says what they are: `slurm` may be a password.
const SHORTEST_KNOWN: usize = 8;

/// The length from which a text without a name counts as a key: 30 random bytes in base64.
const SHORTEST_KEY: usize = 40;

/// What kind of text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A file or a setting: what follows `password: ` or `password = ` is a value, however many words it has.
    File,
    /// A log or a message: `token: has expired` is no secret.
    Prose,
}

/// Texts that are known to be secret, the longest first, and what stands for them.
#[derive(Debug, Default)]
pub struct Known(Vec<(String, String)>);

impl Known {
    /// Adds a value, also as it looks inside a JSON text.
    pub fn add(&mut self, value: &str, instead: &str) {
        let value = value.trim();
        if value.len() < SHORTEST_KNOWN {
            return;
        }
        let quoted = serde_json::to_string(value).unwrap_or_default();
        let inside = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        for form in [value, inside] {
            if !self.0.iter().any(|(known, _)| known == form) {
                self.0.push((form.to_owned(), instead.to_owned()));
            }
        }
        // One may be a part of another one.
        self.0.sort_by(|(a, _), (b, _)| (b.len(), a).cmp(&(a.len(), b)));
    }

    /// The text without them.
    pub fn replaced(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (value, instead) in &self.0 {
            if text.contains(value.as_str()) {
                text = text.replace(value.as_str(), instead);
            }
        }
        text
    }
}

/// The text without what looks like a secret.
pub fn redacted(text: &str, form: Form) -> String {
    outside_pem(text, |part| {
        let (mut out, mut open) = (String::new(), None);
        for line in part.split_inclusive('\n') {
            match open.take() {
                Some(Open::Block(indent)) if line.trim().is_empty() || indent_of(line) > indent => {
                    open = Some(Open::Block(indent));
                    continue;
                }
                Some(Open::Quoted(mark)) => {
                    if !line.contains(mark) {
                        open = Some(Open::Quoted(mark));
                    }
                    continue;
                }
                Some(Open::Block(_)) | None => {}
            }
            let assigned = without_assigned(line, form);
            open = assigned.open.filter(|_| form == Form::File);
            out.push_str(&without_keys(&without_user_info(&assigned.text)));
        }
        out
    })
}

/// A value that goes on in the next line.
enum Open {
    /// A block of YAML, which is indented further than this.
    Block(usize),
    Quoted(char),
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// The same for what was made from redacted values: names mean nothing any more, since `token: <removed>` is what is left.
pub fn without_keys_and_tokens(text: &str) -> String {
    outside_pem(text, |part| part.split_inclusive('\n').map(|line| without_keys(&without_user_info(line))).collect())
}

/// Keeps certificates and public keys, removes other PEM blocks, and changes what is around them.
fn outside_pem(text: &str, change: impl Fn(&str) -> String) -> String {
    const BEGIN: &str = "-----BEGIN ";
    let (mut out, mut rest) = (String::new(), text);
    while let Some(start) = rest.find(BEGIN) {
        let (before, block) = rest.split_at(start);
        out.push_str(&change(before));
        let label = block.get(BEGIN.len()..).and_then(|after| after.split("-----").next()).unwrap_or_default();
        // A log may end in the middle.
        let end = block.find("-----END ").and_then(|end| {
            let after = end + "-----END ".len();
            Some(after + block.get(after..)?.find("-----")? + "-----".len())
        });
        let (pem, after) = block.split_at(end.unwrap_or(block.len()));
        let is_one = end.is_some() && pem.matches(BEGIN).count() == 1;
        let is_public = is_one && (label.ends_with("CERTIFICATE") || label.ends_with("PUBLIC KEY"));
        if is_public {
            out.push_str(pem);
        } else {
            let label: String = label.chars().take(40).filter(|c| c.is_ascii_uppercase() || *c == ' ').collect();
            let _ = write!(out, "<removed: {label}>");
        }
        rest = after;
    }
    out.push_str(&change(rest));
    out
}

// Names and values.

/// Whether the value of something with this name is secret.
pub fn is_secret_name(name: &str) -> bool {
    // What these words end with is about a secret, and none.
    const ABOUT: [&str; 34] = [
        "count",
        "dir",
        "endpoint",
        "expiration",
        "expiry",
        "file",
        "files",
        "id",
        "kind",
        "length",
        "lifespan",
        "lifetime",
        "minutes",
        "mode",
        "name",
        "names",
        "namespace",
        "path",
        "paths",
        "plugin",
        "policy",
        "ref",
        "refs",
        "seconds",
        "selector",
        "size",
        "source",
        "time",
        "ttl",
        "type",
        "types",
        "url",
        "user",
        "version",
    ];
    const ANYWHERE: [&str; 9] = [
        "authtok",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "secret",
        "secrets",
        "storagepass",
    ];
    const LAST: [&str; 10] =
        ["authorization", "bearer", "cookie", "jwks", "jwt", "pass", "passcode", "psk", "pwd", "token"];
    const BEFORE_KEY: [&str; 14] = [
        "access",
        "account",
        "api",
        "auth",
        "encryption",
        "host",
        "jwt",
        "munge",
        "private",
        "secret",
        "shared",
        "signing",
        "slurm",
        "ssh",
    ];
    // Names in lower case, such as storagepass: Slurm does not mind.
    const ENDS: [&str; 13] = [
        "accesskey",
        "apikey",
        "authtok",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "privatekey",
        "secret",
        "secretkey",
        "sharedkey",
        "storagepass",
        "token",
    ];
    let words = words(name);
    let Some(last) = words.last().map(|word| word.trim_end_matches(|c: char| c.is_ascii_digit())) else { return false };
    if ABOUT.contains(&last) {
        return false;
    }
    let before = words.len().checked_sub(2).and_then(|index| words.get(index)).map(String::as_str);
    words.iter().any(|word| ANYWHERE.contains(&word.as_str()))
        || LAST.contains(&last)
        || ENDS.iter().any(|end| last.ends_with(end))
        || (last == "key" && before.is_some_and(|before| BEFORE_KEY.contains(&before)))
}

/// The words of `AccountingStoragePass`, `SLURM_JWT` or `api-key`, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut last = ' ';
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() {
            last = ' ';
            continue;
        }
        let is_next = last == ' ' || (c.is_ascii_uppercase() && !last.is_ascii_uppercase());
        match words.last_mut() {
            Some(word) if !is_next => word.push(c.to_ascii_lowercase()),
            _ => words.push(c.to_ascii_lowercase().to_string()),
        }
        last = c;
    }
    words
}

/// Whether a value is none, although its name says so: where a secret is, or how it comes.
pub fn is_no_secret(value: &str) -> bool {
    const FOLDERS: [&str; 9] = ["etc", "home", "mnt", "opt", "root", "run", "tmp", "usr", "var"];
    const WORDS: [&str; 8] = ["auth/jwt", "auth/slurm", "auth/munge", "daemon", "false", "none", "null", "true"];
    let value = value.trim();
    let folder = value.strip_prefix('/').and_then(|path| path.split_once('/')).map(|(folder, _)| folder);
    // Of a shell, or one that Kubernetes fills in.
    let variable = value.strip_prefix('$').is_some_and(|name| {
        name.starts_with(['(', '{']) || (!name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    });
    value.is_empty()
        || variable
        || folder.is_some_and(|folder| FOLDERS.contains(&folder))
        || value.starts_with("<removed")
        || WORDS.contains(&value)
        || is_block(value)
        || ["{", "["].contains(&value)
}

/// Whether a value of YAML is in the next lines.
fn is_block(value: &str) -> bool {
    value.starts_with(['|', '>'])
        && value.len() <= 3
        && value.chars().skip(1).all(|c| matches!(c, '-' | '+' | '1'..='9'))
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// A line without the values that names stand before.
struct Line {
    text: String,
    open: Option<Open>,
}

/// Removes the values that follow names such as `StoragePass=`, `"token": "` or `--password `.
fn without_assigned(line: &str, form: Form) -> Line {
    let (mut out, mut rest, mut open) = (String::new(), line, None);
    loop {
        let Some(start) = rest.find(is_name) else {
            out.push_str(rest);
            return Line { text: out, open };
        };
        let (before, run) = rest.split_at(start);
        let (name, after) = run.split_at(run.find(|c: char| !is_name(c)).unwrap_or(run.len()));
        out.push_str(before);
        rest = after;
        let value = is_secret_name(name).then(|| Assigned::find(&out, name, after, form)).flatten();
        out.push_str(name);
        let Some(value) = value else { continue };
        out.push_str(value.before);
        let is_kept = value.is_talk || is_no_secret(value.text);
        out.push_str(if is_kept { value.text } else { REMOVED });
        rest = value.after;
        open = match value.end {
            End::Here => None,
            End::Block => Some(Open::Block(indent_of(line))),
            End::Mark(mark) => (!is_kept).then_some(Open::Quoted(mark)),
        };
    }
}

/// Where a value ends.
enum End {
    Here,
    /// Below this line, with the block.
    Block,
    /// Below this line, with this quotation mark.
    Mark(char),
}

/// A value that a name stands before.
struct Assigned<'a> {
    /// What is between the name and the value, with a quotation mark.
    before: &'a str,
    text: &'a str,
    after: &'a str,
    /// Whether it is the next word of a sentence.
    is_talk: bool,
    end: End,
}

impl<'a> Assigned<'a> {
    /// `line` is what is before the name.
    fn find(line: &str, name: &str, after: &'a str, form: Form) -> Option<Self> {
        // The name may be in quotation marks.
        let rest = after.trim_start_matches('\\');
        let rest = rest.strip_prefix(['"', '\'']).unwrap_or(rest);
        let spaced = rest.trim_start_matches([' ', '\t']);
        let separator = spaced.chars().next().filter(|c| matches!(c, '=' | ':'));
        // A path of Rust or C++.
        if spaced.starts_with("::") {
            return None;
        }
        // An option of a command line has its value in the next word.
        let is_option = name.starts_with('-') && spaced.len() < rest.len() && !spaced.starts_with('-');
        if separator.is_none() && !is_option {
            return None;
        }
        let start = spaced.trim_start_matches(['=', ':', '>']);
        let value = start.trim_start_matches([' ', '\t']);
        let is_spaced = value.len() < start.len() || spaced.len() < rest.len();
        let opened = value.trim_start_matches('\\');
        if let Some(mark) = opened.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let inside = opened.get(1..).unwrap_or_default();
            let closed = closing(inside, mark, opened.len() < value.len());
            let end = if closed.is_some() { End::Here } else { End::Mark(mark) };
            return Some(Self::cut(after, inside, closed.unwrap_or(trimmed(inside)), false, end));
        }
        let is_first = !line.chars().any(|c| c.is_ascii_alphanumeric());
        let words = value.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
        let has_scheme = ["basic", "bearer", "negotiate"].contains(&&*words);
        // A whole line of a file, or what follows the scheme of a header.
        let is_line = has_scheme || (form == Form::File && is_first && (separator == Some(':') || is_spaced));
        let until = if is_line { trimmed(value) } else { value.find(char::is_whitespace).unwrap_or(value.len()) };
        // The whole may be in quotation marks.
        let around = ['"', '\''].into_iter().find(|mark| line.matches(*mark).count() % 2 == 1);
        let until = around.and_then(|mark| closing(value, mark, false)).map_or(until, |mark| until.min(mark));
        let text = value.get(..until).unwrap_or_default();
        let is_talk =
            form == Form::Prose && separator == Some(':') && is_spaced && !is_password(name) && is_plain(text);
        let end = if is_line && is_block(text) { End::Block } else { End::Here };
        Some(Self::cut(after, value, until, is_talk, end))
    }

    /// `value` is the end of `after`.
    fn cut(after: &'a str, value: &'a str, until: usize, is_talk: bool, end: End) -> Self {
        let (before, _) = after.split_at(after.len() - value.len());
        let (text, rest) = value.split_at(until);
        Self { before, text, after: rest, is_talk, end }
    }
}

/// The length without what ends a line.
fn trimmed(text: &str) -> usize {
    text.trim_end().len()
}

/// Whether it is a word of a sentence.
fn is_plain(text: &str) -> bool {
    let word = text.trim_end_matches([',', ';', '.', ':', ')']);
    let rest = word.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or(word);
    rest.chars().all(|c| c.is_ascii_lowercase())
}

fn is_password(name: &str) -> bool {
    let words = words(name);
    words.last().is_some_and(|word| word.starts_with("pass") || word.ends_with("pass") || word == "pwd")
}

/// Where the quotation mark is that ends a value. `is_escaped`: the value is in a text that is in quotation marks itself.
fn closing(text: &str, mark: char, is_escaped: bool) -> Option<usize> {
    let mut escapes = 0_usize;
    let mut chars = text.char_indices().peekable();
    while let Some((index, c)) = chars.next() {
        // Two of them are one of YAML, and of shells an end and a beginning.
        if c == '\'' && mark == c && chars.next_if(|(_, next)| *next == mark).is_some() {
            continue;
        }
        if c == mark && (escapes % 2 == 1) == is_escaped {
            return Some(if is_escaped { index - 1 } else { index });
        }
        escapes = if c == '\\' { escapes + 1 } else { 0 };
    }
    None
}

// What shows by itself that it is secret.

/// Removes the password of `https://user:password@host`.
fn without_user_info(line: &str) -> String {
    let (mut out, mut rest) = (String::new(), line);
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + "://".len());
        out.push_str(before);
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'')).unwrap_or(after.len());
        let (url, tail) = after.split_at(end);
        rest = after;
        if let Some((info, host)) = url.rsplit_once('@').filter(|(info, _)| is_user_info(info)) {
            let user = info.split_once(':').map_or("", |(user, _)| user);
            let _ = write!(out, "{user}:{REMOVED}@{host}");
            rest = tail;
        }
    }
    out.push_str(rest);
    out
}

/// Whether what is before an `@` is a user, not a host with a path. A password may have a slash.
fn is_user_info(info: &str) -> bool {
    let Some((host, _)) = info.split_once(['/', '?', '#']) else { return true };
    let port = host.rsplit_once(':').map(|(_, port)| port);
    host.contains('@') || port.is_some_and(|port| !port.chars().all(|c| c.is_ascii_digit()))
}

/// Removes tokens and keys that have no name: by their form, or because they are long and random.
fn without_keys(line: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '_' | '-' | '.');
    let (mut out, mut rest) = (String::new(), line);
    while let Some(start) = rest.find(is_part) {
        let (before, run) = rest.split_at(start);
        out.push_str(before);
        let end = run.find(|c: char| !is_part(c)).unwrap_or(run.len());
        let (word, after) = run.split_at(end);
        rest = after;
        if is_token(word) {
            out.push_str("<removed: a token>");
        } else if word.split('.').any(|part| is_random(part, SHORTEST_KEY)) {
            out.push_str("<removed: a key>");
            rest = after.trim_start_matches('=');
        } else {
            out.push_str(word);
        }
    }
    out.push_str(rest);
    out
}

/// JSON web tokens, and tokens of services with a prefix of their own.
fn is_token(word: &str) -> bool {
    const PREFIXES: [&str; 9] = ["AKIA", "ASIA", "gho_", "ghp_", "ghs_", "github_pat_", "glpat-", "hvs.", "xoxb-"];
    let parts: Vec<&str> = word.split('.').collect();
    let is_jwt = |index: usize| {
        let at = |offset: usize| parts.get(index + offset).copied().unwrap_or_default();
        at(0).contains("eyJ") && at(1).len() >= 8 && at(0).len() >= 8
    };
    (0..parts.len()).any(is_jwt)
        || PREFIXES.iter().any(|prefix| word.strip_prefix(prefix).is_some_and(|rest| rest.len() >= 16))
}

/// Whether it looks like random bytes in base64, and is at least this long. Sums and ids in hexadecimal stay, and so do most paths and
/// names.
pub fn is_random(word: &str, least: usize) -> bool {
    let has = |text: &str, is: fn(&char) -> bool| text.chars().any(|c| is(&c));
    let is_mixed = |text: &str| {
        has(text, char::is_ascii_uppercase) && has(text, char::is_ascii_lowercase) && has(text, char::is_ascii_digit)
    };
    word.len() >= least
        && is_mixed(word)
        && word.split(['/', '-', '_']).any(is_mixed)
        && kinds(word) >= 6 + least * 3 / 10
}

/// How many different characters a text has: 40 random ones of base64 have about 30, and never as few as 18.
fn kinds(text: &str) -> usize {
    let mut found: Vec<char> = text.chars().collect();
    found.sort_unstable();
    found.dedup();
    found.len()
}
