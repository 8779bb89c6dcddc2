//! No input makes the parsers panic, and parsed input keeps its meaning when written again.
//!
//! Each target gets a small corpus (`tests/fuzz`, `tests/golden`) and then mutations of it. It runs with the other
//! tests on a stable toolchain; `PROPTEST_CASES=1000000 cargo test -p slurm --release --test fuzz` runs longer. Inputs
//! that fail are minimized by proptest and added to the corpus.

use std::{fs, io, path::Path};

use proptest::{collection::vec, prelude::*, sample::Index, test_runner::TestRunner};
use slurm::{
    conf::{self, Conf, ConfBuilder, Extra, NodeConf, Options, Record},
    hostlist::{self, MAX_HOSTS},
    token::{self, Key, Token},
    version::{RestVersion, SlurmVersion},
    wire::{self, Body, DecodeError, Envelope, JobId, Records},
};

/// One change to an input. Offsets are taken modulo its length.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize, usize),
    Cut(Index),
}

impl Mutation {
    /// `tokens` are the building blocks of the target's syntax.
    fn any(tokens: &'static [&'static str]) -> impl Strategy<Value = Self> {
        let token = prop::sample::select(tokens).prop_map(|token| token.as_bytes().to_vec());
        prop_oneof![
            2 => (any::<Index>(), any::<u8>()).prop_map(|(at, bits)| Self::Flip(at, bits)),
            6 => (any::<Index>(), token).prop_map(|(at, token)| Self::Insert(at, token)),
            1 => (any::<Index>(), vec(any::<u8>(), 0..8)).prop_map(|(at, bytes)| Self::Insert(at, bytes)),
            3 => (any::<Index>(), 1..20_usize).prop_map(|(at, length)| Self::Remove(at, length)),
            2 => (any::<Index>(), 1..40_usize, 1..5_usize).prop_map(|(at, length, times)| Self::Repeat(at, length, times)),
            1 => any::<Index>().prop_map(Self::Cut),
        ]
    }

    fn apply(&self, input: &mut Vec<u8>) {
        let offset = |at: &Index| at.index(input.len() + 1);
        match self {
            Self::Flip(at, bits) => {
                let at = offset(at);
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= bits;
                }
            }
            Self::Insert(at, bytes) => {
                let at = offset(at);
                input.splice(at..at, bytes.iter().copied());
            }
            Self::Remove(at, length) => {
                let at = offset(at);
                input.drain(at..input.len().min(at + length));
            }
            Self::Repeat(at, length, times) => {
                let at = offset(at);
                let piece: Vec<u8> = input.iter().skip(at).take(*length).copied().collect();
                input.splice(at..at, piece.repeat(*times));
            }
            Self::Cut(at) => {
                let at = offset(at);
                input.truncate(at);
            }
        }
    }
}

/// All files in a directory, recursively.
fn corpus(folder: &str) -> io::Result<Vec<Vec<u8>>> {
    fn collect(folder: &Path, found: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                collect(&path, found)?;
            } else {
                found.push((path.display().to_string(), fs::read(&path)?));
            }
        }
        Ok(())
    }
    let mut found = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder), &mut found)?;
    // Directory order is random; a seed must lead to the same input everywhere.
    found.sort();
    Ok(found.into_iter().map(|(_, bytes)| bytes).collect())
}

/// Runs a target; proptest prints the smallest failing input.
fn fuzz(
    folder: &str,
    tokens: &'static [&'static str],
    target: impl Fn(&[u8]) -> Result<(), TestCaseError>,
) -> Result<(), String> {
    let corpus = corpus(folder).map_err(|error| format!("{folder}: {error}"))?;
    for input in &corpus {
        target(input).map_err(|error| format!("{error} with {}", input.escape_ascii()))?;
    }
    let inputs = (prop::sample::select(corpus), vec(Mutation::any(tokens), 1..8)).prop_map(|(mut input, mutations)| {
        for mutation in &mutations {
            mutation.apply(&mut input);
        }
        input
    });
    let inputs = prop_oneof![9 => inputs, 1 => vec(any::<u8>(), 0..200)];
    let mut runner = TestRunner::default();
    runner.run(&inputs, |input| target(&input)).map_err(|error| error.to_string())
}

#[test]
fn host_lists() {
    let tokens = &["[", "]", "[1-9]", "[0-65535]", ",", "-", " ", "0", "007", "999999999999999999", "{", "}", "ü", "n"];
    let result = fuzz("fuzz/hostlist", tokens, |input| {
        let list = String::from_utf8_lossy(input);
        let names = hostlist::expand(&list);
        prop_assert_eq!(hostlist::count(&list), names.as_ref().map(Vec::len).map_err(Clone::clone));
        let Ok(mut names) = names else { return Ok(()) };
        prop_assert!(names.len() <= MAX_HOSTS);
        // Whatever can be parsed can be written, and gives the same names.
        let folded = hostlist::fold(names.iter().map(String::as_str)).unwrap();
        names.sort_unstable();
        names.dedup();
        let mut again = hostlist::expand(&folded).unwrap();
        again.sort_unstable();
        prop_assert_eq!(again, names);
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn configurations() {
    let tokens = &[
        "\n",
        "\r\n",
        "\\",
        "\\\n",
        "\\#",
        "#",
        "\"",
        " ",
        "\t",
        "=",
        "+=",
        "A=1",
        "\nInclude x",
        "\nNodeName=n",
        "=\"a b\"",
        "ä",
        "\0",
        ",",
    ];
    let result = fuzz("fuzz/conf", tokens, |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(read) = Conf::parse(&text) {
            let written = read.to_string();
            let again = Conf::parse(&written).unwrap();
            prop_assert_eq!(&again.to_string(), &written);
            for (one, other) in read.lines().iter().zip(again.lines()) {
                prop_assert_eq!((&one.item, &one.comment), (&other.item, &other.comment));
            }
            prop_assert_eq!(read.lines().len(), again.lines().len());
        }
        let found = conf::check("slurm.conf", &text, None);
        prop_assert!(Conf::parse(&text).is_ok() || found.iter().any(conf::Finding::is_error));

        // As a value, as options of a line, and as the user's part: the text after it is never affected.
        let mut ours = ConfBuilder::new();
        let accepted = ours.text("Key", &text).is_ok();
        let options = Options::parse(&text);
        let record = Record::new("PartitionName", "p").unwrap();
        let record = options.clone().and_then(|options| record.options(&options));
        let added = record.map(|record| ours.record(record)).is_ok();
        ours.list("After", ["a=1", "b"]).unwrap();
        let lines = Conf::parse(&ours.to_string()).unwrap();
        prop_assert_eq!(lines.lines().len(), usize::from(accepted) + usize::from(added) + 1);
        prop_assert_eq!(lines.get("Key"), accepted.then_some(&*text));
        prop_assert_eq!(lines.get("After"), Some("a=1,b"));

        let extra = Extra::new(&format!("{text}\nAfter=A=2,c"));
        if let Ok(rendered) = ours.render(&extra) {
            let expected = if extra.get("After") == Some("A=2,c") { "a=1,b,c" } else { "a=1,b" };
            let rendered = Extra::new(&rendered);
            prop_assert_eq!(rendered.get("After"), Some(expected));
        }
        ours.overrides(&extra);

        if let Ok(node) = NodeConf::parse(&text) {
            prop_assert!(!node.to_string().contains(['\n', '\r']));
            prop_assert_eq!(NodeConf::parse(&node.to_string()), Ok(node));
        }
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

/// Decodes, and describes the error if that fails.
fn decode<B: Body>(json: &[u8]) -> Result<Envelope<B::Output>, DecodeError> {
    let decoded = wire::decode::<B>(json).and_then(Envelope::finish);
    decoded.inspect_err(|error| assert!(!error.to_string().is_empty()))
}

#[test]
fn answers() {
    let tokens = &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "null",
        "true",
        "-1",
        "1e400",
        "18446744073709551616",
        "\"",
        "\\u0000",
        "\"nodes\":",
        "\"jobs\":[",
        "{\"set\":true,\"infinite\":false,\"number\":",
        "\"errors\":null,",
        "\"state\":[\"IDLE\"],",
        "-",
        "\u{fffd}",
    ];
    let result = fuzz("golden", tokens, |input| {
        if let Ok(nodes) = decode::<Records<wire::Node>>(input) {
            for node in &nodes.body {
                let busy = node.state.is_busy() && node.state.is_drained();
                prop_assert!(!busy, "busy and drained: {:?}", node.state);
                node.state.is_down_unresponsive(&node.reason);
            }
        }
        if let Ok(jobs) = decode::<Records<wire::Job>>(input) {
            for job in &jobs.body {
                let _ = job.deadline();
            }
        }
        drop(decode::<Records<wire::JobStateEntry>>(input));
        drop(decode::<Records<wire::Partition>>(input));
        drop(decode::<Records<wire::Reservation>>(input));
        drop(decode::<Records<wire::Ping>>(input));
        drop(decode::<Records<wire::Account>>(input));
        drop(decode::<Records<wire::User>>(input));
        drop(decode::<Records<wire::Cluster>>(input));
        drop(decode::<Records<wire::AccountedJob>>(input));
        drop(decode::<wire::DiagAnswer>(input));
        drop(decode::<wire::ConfAnswer>(input));
        drop(decode::<wire::SubmitAnswer>(input));
        drop(decode::<wire::StepStatuses>(input));
        drop(decode::<wire::Nothing>(input));
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

/// Short external texts: versions, job ids, tokens.
#[test]
fn words() {
    let key = Key::new(&[7; 32]).unwrap();
    let now = jiff::Timestamp::from_second(1_800_000_000).unwrap();
    let tokens =
        &[".", "-", ":", "/", "@", "_", "[", "]", "+", "0", "99999999999999999999", "eyJ", "=", "ü", "v0.0.", "latest"];
    let result = fuzz("fuzz/words", tokens, |input| {
        let text = String::from_utf8_lossy(input);
        let _ = SlurmVersion::from_image_tag(&text);
        let _ = SlurmVersion::from_image(&text);
        if let Ok(version) = text.parse::<SlurmVersion>() {
            prop_assert_eq!(version.to_string().parse(), Ok(version));
        }
        if let Ok(version) = text.parse::<RestVersion>() {
            prop_assert_eq!(version.to_string().parse(), Ok(version));
        }
        if let Ok(id) = text.parse::<JobId>() {
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }
        prop_assert!(token::verify(&key, &text, now).is_err(), "a random text must not verify");
        if let Ok(token) = Token::from_text(&text) {
            let shown = format!("{token:?}");
            prop_assert!(token.expose().len() < 16 || !shown.contains(token.expose()), "the token is visible");
        }
        Ok(())
    });
    assert_eq!(result, Ok(()));
}
