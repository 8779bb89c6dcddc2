//! Host lists compared with the output of scontrol of Slurm 24.11.5 and 26.05.5, and round trips.

use std::collections::BTreeSet;

use proptest::prelude::*;
use slurm::hostlist::{HostlistError, MAX_HOSTS, MAX_NAME_LEN, count, expand, fold};

fn fold_all(names: &[String]) -> Result<String, HostlistError> {
    fold(names.iter().map(String::as_str))
}

/// The columns of the table that e2e feeds to the real scontrol.
fn cases(kind: &str) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    let table = include_str!("hostlist_cases.txt");
    let rows = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let columns = rows.filter_map(move |row| row.strip_prefix(kind)?.trim_start().strip_prefix('|')?.split_once('|'));
    columns.map(|(input, output)| (input.trim(), output.split_whitespace().collect()))
}

#[test]
fn expands_as_scontrol_show_hostnames() {
    assert!(cases("expand").count() > 30 && cases("unordered").count() > 1);
    for (list, names) in cases("expand").chain([("", vec![]), (" \t\n", vec![])]) {
        assert_eq!(expand(list).unwrap(), names, "{list}");
        assert_eq!(count(list).unwrap(), names.len(), "{list}");
    }
    for (list, mut names) in cases("unordered") {
        let mut ours = expand(list).unwrap();
        ours.sort_unstable();
        names.sort_unstable();
        assert_eq!(ours, names, "{list}");
    }
}

#[test]
fn folds_as_scontrol_show_hostlistsorted() {
    assert!(cases("fold").count() > 20);
    for (names, list) in cases("fold") {
        assert_eq!(fold(names.split_whitespace()).unwrap(), list.concat(), "{names}");
    }
}

#[test]
fn refuses_where_scontrol_guesses() {
    assert!(cases("refused").count() > 10);
    for (list, _) in cases("refused").chain([("a{1-2}", vec![]), ("{a}[1]", vec![])]) {
        assert!(expand(list).is_err(), "{list}");
        assert!(count(list).is_err(), "{list}");
    }
}

#[test]
fn says_what_is_wrong_and_where() {
    let not_a_range = |text: &str, at| HostlistError::NotARange { text: text.into(), at };
    let reversed = |text: &str, at| HostlistError::Reversed { text: text.into(), at };
    let table = [
        ("a[1", HostlistError::Unclosed { at: 1 }),
        ("b,a[1-2],c[3,d", HostlistError::Unclosed { at: 10 }),
        ("a[", HostlistError::Unclosed { at: 1 }),
        ("a]1", HostlistError::Unopened { at: 1 }),
        ("b,a[1]]", HostlistError::Unopened { at: 6 }),
        ("a[]", not_a_range("", 2)),
        ("a[1,]", not_a_range("", 4)),
        ("a[1-]", not_a_range("1-", 2)),
        ("a[-1]", not_a_range("-1", 2)),
        ("a[x]", not_a_range("x", 2)),
        ("a[1-2-3]", not_a_range("1-2-3", 2)),
        ("a[[1]]", not_a_range("[1", 2)),
        ("a[1, 2]", not_a_range(" 2", 4)),
        ("a[+1]", not_a_range("+1", 2)),
        ("a[١]", not_a_range("١", 2)),
        ("b a[1,3-1]", reversed("3-1", 6)),
        ("a[1000000000000000000]", HostlistError::NumberTooLong { at: 2 }),
        ("a[1-00000000000000000002]", HostlistError::NumberTooLong { at: 4 }),
        ("a[1-65537]", HostlistError::TooManyHosts),
        ("a[0-999999999999999999]", HostlistError::TooManyHosts),
        ("a[1-65536],b", HostlistError::TooManyHosts),
        ("a[1-300]b[1-300]", HostlistError::TooManyHosts),
        ("a[1-60000,1-60000]", HostlistError::TooManyHosts),
    ];
    for (list, error) in table {
        assert_eq!(expand(list), Err(error.clone()), "{list}");
        assert_eq!(count(list), Err(error), "{list}");
    }
    assert_eq!(expand("n[2-1]").unwrap_err().to_string(), "the range `2-1` at byte 2 has its end before its start");
}

#[test]
fn a_small_text_cannot_fill_the_memory() {
    let brackets = "[0-9]".repeat(64);
    assert_eq!(count(&brackets), Err(HostlistError::TooManyHosts));

    let longest = "a".repeat(MAX_NAME_LEN - 5);
    assert_eq!(count(&format!("{longest}[00001-65536]")), Ok(MAX_HOSTS));
    assert_eq!(count(&format!("x,{longest}[000001]")), Err(HostlistError::NameTooLong { at: 2 }));
    assert_eq!(count(&format!("{longest}[9-100000]")), Err(HostlistError::TooManyHosts));
    assert_eq!(count(&format!("{longest}[99999-100000]")), Err(HostlistError::NameTooLong { at: 0 }));
}

#[test]
fn folds_without_duplicates_into_what_scontrol_reads() {
    let table = [
        ("", ""),
        ("a1 a1", "a1"),
        // scontrol writes n[9-10,09], and reads both.
        ("n9 n10 n09", "n[9,09-10]"),
        // Too many digits to fold.
        ("a1000000000000000001 a1000000000000000002", "a1000000000000000001,a1000000000000000002"),
    ];
    for (names, list) in table {
        assert_eq!(fold(names.split_whitespace()).unwrap(), list, "{names}");
    }
}

#[test]
fn fold_refuses_what_no_list_can_carry() {
    for name in ["", "a,b", "a b", "a[1]", "a]", "a{b}", "a\n", &"a".repeat(MAX_NAME_LEN + 1)] {
        assert!(matches!(fold([name]), Err(HostlistError::NotAName { .. })), "{name:?}");
    }
    let names: Vec<String> = (0..=MAX_HOSTS).map(|n| format!("n{n}")).collect();
    assert_eq!(fold_all(&names), Err(HostlistError::TooManyHosts));
    assert_eq!(fold_all(&names[1..]).unwrap(), "n[1-65536]");
}

proptest! {
    #[test]
    fn folding_keeps_every_name(names in prop::collection::vec("[ab]{0,2}(-|[0-3])?[01289]{0,4}x?", 0..60)) {
        let names: BTreeSet<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
        let list = fold(names.iter().map(String::as_str)).unwrap();
        let back = expand(&list).unwrap();
        prop_assert_eq!(back.len(), names.len(), "{}", list);
        prop_assert_eq!(back.iter().cloned().collect::<BTreeSet<_>>(), names, "{}", list);
        // Order and duplicates of the input do not matter.
        prop_assert_eq!(fold(back.iter().rev().chain(&back).map(String::as_str)).unwrap(), list);
    }

    #[test]
    fn numbers_of_any_width_survive(numbers in prop::collection::vec((any::<u64>(), 0_usize..20), 0..40)) {
        let names: BTreeSet<String> = numbers.iter().map(|(n, width)| format!("n{n:0width$}")).collect();
        let list = fold(names.iter().map(String::as_str)).unwrap();
        prop_assert_eq!(expand(&list).unwrap().into_iter().collect::<BTreeSet<_>>(), names);
    }

    #[test]
    fn counting_agrees_with_expanding(list in r"([a-c\[\],0-9 -]|\[[0-9]{1,3}-[0-9]{1,5}(,[0-9]{1,2})?\]){0,12}") {
        prop_assert_eq!(count(&list), expand(&list).map(|names| names.len()));
    }

    #[test]
    fn no_text_panics(list in any::<String>()) {
        if let Ok(names) = expand(&list) {
            prop_assert!(names.len() <= MAX_HOSTS);
            fold_all(&names).unwrap();
        }
    }
}
