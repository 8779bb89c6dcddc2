//! Decodes a long list while it arrives, so that it is never in memory as a whole: ten thousand nodes are 27 MB of
//! text.

use crate::wire::Record;

/// How much must have arrived before records are decoded. A record that is cut off at the end is parsed twice.
const CHUNK: usize = 256 << 10;

/// Consumes the body of a response as it arrives.
pub(super) trait StreamDecoder: Send {
    /// Called when a response starts.
    fn begin(&mut self) {}

    /// Called with the bytes not consumed so far. Consumed bytes are removed so that the rest is still a valid
    /// response.
    fn take(&mut self, _: &mut Vec<u8>) {}

    /// Whether the records decoded so far take more memory than they may.
    fn is_too_large(&self) -> bool {
        false
    }
}

/// Consumes nothing.
impl StreamDecoder for () {}

/// Consumes the records of a list that is the first key of its response, as in slurmrestd's; others are left unchanged.
pub(super) struct Records<T> {
    taken: Vec<T>,
    /// The memory that they take.
    size: usize,
    /// Offset where the list begins.
    start: Option<usize>,
    /// Minimum length of the body before the next attempt.
    enough: usize,
}

impl<T> Default for Records<T> {
    fn default() -> Self {
        Self { taken: Vec::new(), size: 0, start: None, enough: CHUNK }
    }
}

impl<T> Records<T> {
    pub(super) fn into_taken(self) -> Vec<T> {
        self.taken
    }
}

impl<T: Record + Send> StreamDecoder for Records<T> {
    fn begin(&mut self) {
        *self = Self::default();
    }

    fn take(&mut self, body: &mut Vec<u8>) {
        if body.len() < self.enough {
            return;
        }
        self.start = self.start.or_else(|| beginning(body, T::KEY));
        if let Some(start) = self.start {
            let length = self.read(body.get(start..).unwrap_or_default());
            body.drain(start..start + length);
        }
        // What is no record yet is parsed again only after as much again has arrived.
        self.enough = body.len() + CHUNK.max(body.len());
    }

    fn is_too_large(&self) -> bool {
        self.size > T::MOST
    }
}

impl<T: Record> Records<T> {
    /// Decodes complete records and returns how many bytes they took. Invalid input is left for the final decoding,
    /// which reports the error.
    fn read(&mut self, bytes: &[u8]) -> usize {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            // The input ends within a UTF-8 character.
            Err(error) => {
                bytes.get(..error.valid_up_to()).and_then(|whole| std::str::from_utf8(whole).ok()).unwrap_or("")
            }
        };
        let mut rest = text;
        loop {
            let mut records = serde_json::Deserializer::from_str(rest).into_iter::<T>();
            let Some(Ok(record)) = records.next() else { break };
            // Consume a record only together with the comma after it: a list cannot begin with a comma.
            let behind = rest.get(records.byte_offset()..).unwrap_or_default().trim_ascii_start();
            let Some(next) = behind.strip_prefix(',') else { break };
            self.size += record.size();
            self.taken.push(record);
            rest = next;
            if self.size > T::MOST {
                break;
            }
        }
        text.len() - rest.len()
    }
}

/// Offset of the list with that key, if it is the first thing in the response.
fn beginning(body: &[u8], key: &str) -> Option<usize> {
    let rest = body.trim_ascii_start().strip_prefix(b"{")?.trim_ascii_start().strip_prefix(b"\"")?;
    let rest = rest.strip_prefix(key.as_bytes())?.strip_prefix(b"\"")?.trim_ascii_start().strip_prefix(b":")?;
    let rest = rest.trim_ascii_start().strip_prefix(b"[")?;
    Some(body.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::wire::{self, decode};

    #[derive(Debug, Deserialize, PartialEq)]
    struct Thing {
        name: String,
    }

    impl Record for Thing {
        const KEY: &'static str = "things";
    }

    /// Decodes a response in pieces of this size; returns the records and the maximum number of bytes kept.
    fn piecewise(answer: &str, piece: usize) -> (Vec<Thing>, usize) {
        let (mut decoder, mut body, mut most) = (Records::default(), Vec::new(), 0);
        decoder.begin();
        for chunk in answer.as_bytes().chunks(piece) {
            body.extend_from_slice(chunk);
            most = most.max(body.len());
            decoder.take(&mut body);
        }
        let left = decode::<wire::Records<Thing>>(&body).unwrap().finish().unwrap().body;
        assert_eq!(left.last_update, 7);
        let mut all = decoder.into_taken();
        all.extend(left.items);
        (all, most)
    }

    fn answer(count: usize, first: &str) -> (String, Vec<Thing>) {
        let name = |number: usize| format!("wörker, \"{number}\" ]}}");
        let things: Vec<Thing> = (0..count).map(|number| Thing { name: name(number) }).collect();
        let items =
            things.iter().map(|thing| serde_json::json!({"ports": [1, {"a": 2}], "name": thing.name}).to_string());
        let list = items.collect::<Vec<_>>().join(" ,\n ");
        let end = r#""last_update": {"set": true, "infinite": false, "number": 7}, "errors": []"#;
        (format!("\n{{ {first} \"things\" : [ {list} ], {end} }}\n"), things)
    }

    #[test]
    fn a_list_in_pieces_is_the_same_list() {
        for count in [0, 1, 2, 20_000] {
            let (text, things) = answer(count, "");
            for piece in [1_000, 4_099, 65_536, text.len()] {
                let (read, most) = piecewise(&text, piece);
                assert!(read == things, "{count} things in pieces of {piece}");
                assert!(most <= CHUNK + piece + 200, "{most} bytes kept for {count} things in pieces of {piece}");
            }
        }
    }

    #[test]
    fn a_list_that_is_not_first_is_left_alone() {
        let (text, things) = answer(20_000, r#""meta": {"things": []},"#);
        let (read, most) = piecewise(&text, 65_536);
        assert!(read == things && most == text.len());
    }

    #[test]
    fn invalid_input_is_left_for_the_final_decoding() {
        let (text, _) = answer(20_000, "");
        let text = text.replacen("\"name\":", "\"name\":0,\"x\":", 1);
        let (mut decoder, mut body) = (Records::<Thing>::default(), text.clone().into_bytes());
        decoder.take(&mut body);
        assert!(body == text.as_bytes() && decoder.into_taken().is_empty());
        assert_eq!(decode::<wire::Records<Thing>>(&body).unwrap_err().path, "things[0].name");
    }

    #[test]
    fn another_attempt_begins_anew() {
        let (text, things) = answer(20_000, "");
        let (mut decoder, mut body) = (Records::<Thing>::default(), text.into_bytes());
        decoder.take(&mut body);
        assert_eq!(decoder.taken.len(), things.len() - 1);
        decoder.begin();
        assert!(decoder.into_taken().is_empty());
    }
}
