//! Which lists are read when: pure.

use std::collections::BTreeMap;

/// A list that is read on its own: one that fails does not keep the others from being shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Nodes,
    Jobs,
    Diag,
}

impl Part {
    pub(super) const ALL: [Self; 3] = [Self::Nodes, Self::Jobs, Self::Diag];

    /// The value of the label `collector`.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Jobs => "jobs",
            Self::Diag => "diag",
        }
    }
}

/// The reads that are under way. Each round begins one of each part, unless too many are still under way.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    number: u64,
    /// Reads under way, by round: the parts that have not ended, and whether another one has failed.
    under_way: BTreeMap<u64, (Vec<Part>, bool)>,
    /// The round of the newest answer of each part.
    newest: BTreeMap<Part, u64>,
}

/// What a new round does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Round {
    pub number: u64,
    pub begin: Vec<Part>,
    pub skip: Vec<Part>,
}

/// What follows from the end of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Whether its answer is newer than what there is: one that took long can be older.
    pub is_news: bool,
    /// If this was the last read of its round: whether all of it succeeded.
    pub round: Option<bool>,
}

impl Rounds {
    /// Begins a round.
    pub(super) fn begin(&mut self, most: usize) -> Round {
        self.number += 1;
        let (skip, begin): (Vec<Part>, Vec<Part>) = Part::ALL.into_iter().partition(|part| self.count(*part) >= most);
        if !begin.is_empty() {
            self.under_way.insert(self.number, (begin.clone(), false));
        }
        Round { number: self.number, begin, skip }
    }

    /// The number of reads of a part that are under way.
    pub(super) fn count(&self, part: Part) -> usize {
        self.under_way.values().filter(|(parts, _)| parts.contains(&part)).count()
    }

    /// A read has ended.
    pub(super) fn end(&mut self, number: u64, part: Part, succeeded: bool) -> Ended {
        let mut round = None;
        if let Some((parts, has_failed)) = self.under_way.get_mut(&number) {
            parts.retain(|other| *other != part);
            *has_failed |= !succeeded;
            if parts.is_empty() {
                round = Some(!*has_failed);
                self.under_way.remove(&number);
            }
        }
        let newest = self.newest.entry(part).or_default();
        let is_news = number > *newest;
        if succeeded && is_news {
            *newest = number;
        }
        Ended { is_news, round }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_takes_long_is_not_asked_for_again() {
        let mut rounds = Rounds::default();
        assert_eq!(rounds.begin(1), Round { number: 1, begin: Part::ALL.to_vec(), skip: vec![] });
        assert_eq!(rounds.end(1, Part::Nodes, true), Ended { is_news: true, round: None });
        assert_eq!(rounds.end(1, Part::Diag, true), Ended { is_news: true, round: None });
        let second = rounds.begin(1);
        assert_eq!((second.begin, second.skip), (vec![Part::Nodes, Part::Diag], vec![Part::Jobs]));
        assert_eq!(rounds.end(1, Part::Jobs, true).round, Some(true));
        assert_eq!(rounds.end(2, Part::Nodes, false).round, None);
        assert_eq!(rounds.end(2, Part::Diag, true).round, Some(false), "the nodes have failed");
        assert_eq!(rounds.count(Part::Jobs), 0);
        assert_eq!(rounds.begin(1).skip, []);
    }

    #[test]
    fn a_late_answer_replaces_no_newer_one() {
        let mut rounds = Rounds::default();
        rounds.begin(2);
        rounds.begin(2);
        assert_eq!((rounds.count(Part::Jobs), rounds.begin(2).begin), (2, vec![]));
        assert!(rounds.end(2, Part::Jobs, true).is_news);
        assert!(!rounds.end(1, Part::Jobs, true).is_news);
        assert!(rounds.end(1, Part::Nodes, false).is_news, "there is nothing newer");
    }
}
