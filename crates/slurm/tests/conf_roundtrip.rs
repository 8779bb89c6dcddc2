//! Whatever is written is parsed back unchanged, and nothing that is written can turn into something else.

use proptest::prelude::*;
use slurm::conf::{Conf, ConfBuilder, Extra, Item, Line, NodeConf, Options, Record, merge_options};

/// Lines as users write them, valid and invalid.
fn file() -> impl Strategy<Value = String> {
    let word = r#"[a-zA-Z0-9_./,:=\[\]-]{0,6}|\\#|\\\\|"[a-z ]{0,4}"|""#;
    let line = prop_oneof![
        4 => (r"[A-Za-z_.]{1,6}", r" ?[+*/-]?= ?", word).prop_map(|(key, sign, value)| format!("{key}{sign}{value}")),
        2 => Just(" \\\n".to_owned()),
        1 => "#[ -~]{0,8}",
        1 => "[Ii]nclude [a-z/%.]{0,6}",
        1 => any::<String>(),
        2 => Just("\n".to_owned()),
        2 => Just(" ".to_owned()),
    ];
    prop::collection::vec(line, 0..16).prop_map(|lines| lines.concat())
}

fn contents(conf: &Conf) -> Vec<(Item, Option<String>)> {
    conf.lines().iter().map(|Line { item, comment, .. }| (item.clone(), comment.clone())).collect()
}

proptest! {
    #[test]
    fn what_was_read_is_written_and_read_again(text in file()) {
        if let Ok(conf) = Conf::parse(&text) {
            let written = conf.to_string();
            let again = Conf::parse(&written).unwrap();
            prop_assert_eq!(contents(&again), contents(&conf), "{}", written);
            prop_assert_eq!(again.to_string(), written);
        }
    }

    #[test]
    fn a_value_arrives_or_is_refused(value in any::<String>(), kind in 0..3) {
        let mut conf = ConfBuilder::new();
        conf.word("Before", "1").unwrap();
        let set = match kind {
            0 => conf.word("Key", &value),
            1 => conf.name("Key", &value),
            _ => conf.text("Key", &value),
        };
        let accepted = set.is_ok();
        conf.word("After", "2").unwrap();
        let read = Conf::parse(&conf.to_string()).unwrap();
        prop_assert_eq!(read.lines().len(), if accepted { 3 } else { 2 });
        prop_assert_eq!(read.get("Key"), accepted.then_some(value.as_str()));
        prop_assert_eq!((read.get("Before"), read.get("After")), (Some("1"), Some("2")));
    }

    #[test]
    fn most_texts_can_be_values(value in r"[ -!#-~äöü]{1,20}") {
        let mut conf = ConfBuilder::new();
        conf.text("Key", &value).unwrap();
        let read = Conf::parse(&conf.to_string()).unwrap();
        prop_assert_eq!(read.get("Key"), Some(value.as_str()));
    }

    #[test]
    fn options_stay_on_their_line(text in file()) {
        let Ok(options) = Options::parse(&text) else { return Ok(()) };
        let Ok(record) = Record::new("PartitionName", "p").unwrap().options(&options) else { return Ok(()) };
        let mut conf = ConfBuilder::new();
        conf.record(record).word("After", "2").unwrap();
        let read = Conf::parse(&conf.to_string()).unwrap();
        prop_assert_eq!(read.lines().len(), 2);
        let pairs: Vec<_> = read.records("PartitionName").flatten().cloned().collect();
        prop_assert_eq!(&pairs[1..], options.pairs());
        prop_assert_eq!(read.get("After"), Some("2"));
    }

    #[test]
    fn node_options_are_read_back(text in file()) {
        if let Ok(conf) = NodeConf::parse(&text) {
            prop_assert_eq!(NodeConf::parse(&conf.to_string()).unwrap(), conf);
        }
    }

    /// The user's part may be anything, but ends before the operator's part continues, and the lists are merged exactly
    /// once.
    #[test]
    fn the_user_s_part_cannot_reach_the_united_lists(text in file()) {
        let mut conf = ConfBuilder::new();
        conf.list("List", ["b=1", "a"]).unwrap();
        let extra = Extra::new(&format!("{text}\nlist=C=/Path,B=2\n{text}"));
        let Ok(rendered) = conf.render(&extra) else { return Ok(()) };
        let ours = Extra::new(&rendered);
        // A backslash at the end of the text makes the user's own list part of another line.
        let united = |theirs| merge_options(["b=1", "a"], theirs).join(",");
        let expected = extra.get("List").map_or("b=1,a".to_owned(), united);
        prop_assert_eq!(ours.get("List"), Some(expected.as_str()), "{}", rendered);
        prop_assert!(rendered.contains(text.trim_matches(['\n', '\r'])));
        prop_assert_eq!(conf.render(&extra).unwrap(), rendered);
    }
}
