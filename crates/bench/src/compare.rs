//! Two reports side by side.

use crate::{
    budget::ratio,
    phases,
    report::{Phase, Report, Run, Size, is_slurm_write, sum},
    table::{maybe, number, row, table},
};

/// Stands after a cost that includes a phase which was given up on at its limit.
const MARK: &str = "*";

/// What it means.
const UNFINISHED: &str = "\n*: includes a phase that did not end within its limit; measured until then.\n";

/// One number by which two operators are compared.
struct Figure {
    value: Option<f64>,
    /// Whether each phase that it includes came to its end.
    finished: bool,
}

impl Figure {
    /// A time, which has no value unless its end was reached.
    fn time(value: Option<f64>) -> Self {
        Self { value, finished: true }
    }

    /// Adds up a cost of some phases; no value if one of them is missing.
    fn cost(run: &Run, names: &[&str], of: impl Fn(&Phase) -> f64) -> Self {
        let phases: Option<Vec<&Phase>> = names.iter().map(|name| run.phase(name)).collect();
        let finished = phases.iter().flatten().all(|phase| phase.seconds.is_some());
        Self { value: phases.map(|phases| phases.into_iter().map(of).sum()), finished }
    }

    fn text(&self) -> String {
        maybe(self.value) + if self.finished { "" } else { MARK }
    }
}

/// What is compared of a whole run, and how to get it.
type Measure = (&'static str, fn(&Size) -> Figure);

const FIGURES: [Measure; 20] = [
    ("peak memory, MB", |size| Figure::time(size.median.phases.iter().map(|phase| phase.peak_rss_mb).reduce(f64::max))),
    ("CPU, created, s", |size| cpu(size, &[phases::CREATED])),
    ("CPU, created to settled, s", |size| cpu(size, &phases::SCALE_OUT)),
    ("CPU, idle minute, s", |size| cpu(size, &[phases::IDLE])),
    ("CPU, roll, s", |size| cpu(size, &[phases::ROLL])),
    ("CPU, scale-in, s", |size| cpu(size, &[phases::SCALE_IN])),
    ("CPU, all phases, s", |size| {
        let names: Vec<&str> = size.median.phases.iter().map(|phase| phase.name.as_str()).collect();
        cpu(size, &names)
    }),
    ("all pods created after, s", |size| seconds(size, &[phases::CREATED])),
    ("all pods registered after, s", |size| seconds(size, &[phases::CREATED, phases::READY, phases::REGISTERED])),
    ("status after the last pod is ready, s", |size| Figure::time(size.median.ready_lag_seconds)),
    ("busy workers protected after, s", |size| seconds(size, &[phases::JOBS_START])),
    ("roll, s", |size| seconds(size, &[phases::ROLL])),
    ("scale-in, s", |size| seconds(size, &[phases::SCALE_IN])),
    ("creation against a bare loop", |size| against(size.median.create_seconds, size.median.bare_create_seconds)),
    ("scale-in against a bare loop", |size| against(size.median.delete_seconds, size.median.bare_delete_seconds)),
    ("API writes per worker, created to settled", |size| per_worker(size, &phases::SCALE_OUT, Phase::writes)),
    ("API writes per worker, roll", |size| per_worker(size, &[phases::ROLL], Phase::writes)),
    ("API writes per worker, scale-in", |size| per_worker(size, &[phases::SCALE_IN], Phase::writes)),
    ("API writes, idle minute", |size| Figure::cost(&size.median, &[phases::IDLE], |phase| f64::from(phase.writes()))),
    ("Slurm calls per worker, created to settled", |size| per_worker(size, &phases::SCALE_OUT, slurm_calls)),
];

fn cpu(size: &Size, names: &[&str]) -> Figure {
    Figure::cost(&size.median, names, |phase| phase.cpu_seconds)
}

fn seconds(size: &Size, names: &[&str]) -> Figure {
    Figure::time(names.iter().map(|name| size.median.phase(name)?.seconds).sum())
}

fn per_worker(size: &Size, names: &[&str], of: fn(&Phase) -> u32) -> Figure {
    Figure::cost(&size.median, names, |phase| f64::from(of(phase)) / f64::from(size.workers.max(1)))
}

fn against(value: Option<f64>, reference: Option<f64>) -> Figure {
    Figure::time(value.zip(reference).and_then(|(value, reference)| ratio(value, reference)))
}

fn slurm_calls(phase: &Phase) -> u32 {
    sum(&phase.slurm, |_| true)
}

/// Compares each size that both reports have; without one, the first of each.
pub fn compare(a: &Report, b: &Report) -> String {
    let mut pairs: Vec<(&Size, &Size)> =
        a.sizes.iter().filter_map(|size| Some((size, b.size(size.workers)?))).collect();
    if pairs.is_empty() {
        pairs.extend(a.sizes.first().zip(b.sizes.first()));
    }
    let heading = format!("A: {}\nB: {}\n", a.operator, b.operator);
    pairs.iter().fold(heading, |text, (a, b)| text + "\n" + &sizes(a, b))
}

/// Compares two sizes: figures of the whole run with their ratios, then phase by phase.
pub fn sizes(a: &Size, b: &Size) -> String {
    let (a, b) = (&with_phases_of(a, b), &with_phases_of(b, a));
    let workers = if a.workers == b.workers {
        format!("{} workers", a.workers)
    } else {
        format!("{} workers (A), {} workers (B)", a.workers, b.workers)
    };
    format!("{workers}\n\n{}\n{}", figures(a, b), by_phase(a, b))
}

/// Leaves out phases that only one of them has, such as `noise`.
fn with_phases_of(size: &Size, other: &Size) -> Size {
    let mut size = size.clone();
    size.median.phases.retain(|phase| other.median.phase(&phase.name).is_some());
    size
}

fn figures(a: &Size, b: &Size) -> String {
    let mut rows = vec![row(["figure", "A", "B", "A/B"])];
    let mut note = "";
    for (name, of) in FIGURES {
        let (left, right) = (of(a), of(b));
        if left.value.is_none() && right.value.is_none() {
            continue;
        }
        let mut times = times(left.value, right.value);
        if !(left.finished && right.finished) {
            note = UNFINISHED;
            times += MARK;
        }
        rows.push(vec![name.to_owned(), left.text(), right.text(), times]);
    }
    table(&rows) + note
}

/// How many times the right one, unless that is shown as zero.
fn times(left: Option<f64>, right: Option<f64>) -> String {
    let times = left.zip(right).filter(|(_, right)| *right >= 0.005).and_then(|(left, right)| ratio(left, right));
    times.map_or_else(|| "–".to_owned(), number)
}

/// What is compared of each phase, and how to get it.
type OfPhase = (&'static str, fn(&Phase) -> Option<f64>);

/// These are shown with their ratio.
const WITH_RATIO: [OfPhase; 3] = [
    ("seconds", |phase| phase.seconds),
    ("CPU s", |phase| Some(phase.cpu_seconds)),
    ("peak MB", |phase| Some(phase.peak_rss_mb)),
];

const COUNTS: [OfPhase; 3] = [
    ("API writes", |phase| Some(f64::from(phase.writes()))),
    ("Slurm reads", |phase| Some(f64::from(sum(&phase.slurm, |what| !is_slurm_write(what))))),
    ("Slurm writes", |phase| Some(f64::from(sum(&phase.slurm, is_slurm_write)))),
];

fn by_phase(a: &Size, b: &Size) -> String {
    let mut heading = vec!["phase".to_owned()];
    heading.extend(WITH_RATIO.iter().flat_map(|(name, _)| [format!("{name} A"), "B".to_owned(), "A/B".to_owned()]));
    heading.extend(COUNTS.iter().flat_map(|(name, _)| [format!("{name} A"), "B".to_owned()]));
    let mut rows = vec![heading];
    for phase in &a.median.phases {
        let Some(other) = b.median.phase(&phase.name) else { continue };
        let mut cells = vec![phase.name.clone()];
        for (_, of) in WITH_RATIO {
            cells.extend([maybe(of(phase)), maybe(of(other)), times(of(phase), of(other))]);
        }
        for (_, of) in COUNTS {
            cells.extend([of(phase), of(other)].map(|count| format!("{:.0}", count.unwrap_or_default())));
        }
        rows.push(cells);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{counts, phase, size};

    fn report(name: &str, sizes: &[(u32, f64)]) -> Report {
        let mut report = Report { operator: name.into(), ..Report::default() };
        for (workers, seconds) in sizes {
            report.put(size(*workers, Run { phases: vec![phase("created", *seconds, 0.0)], ..Run::default() }));
        }
        report
    }

    fn cells(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split('|').map(str::trim).collect()).collect()
    }

    #[test]
    fn reports_are_compared_where_they_meet() {
        let ours = report("ours", &[(100, 1.0), (1000, 2.0)]);
        let text = compare(&ours, &report("theirs", &[(1000, 160.0)]));
        assert!(text.starts_with("A: ours\nB: theirs\n\n1000 workers\n"), "{text}");
        assert!(cells(&text).contains(&vec!["", "all pods created after, s", "2.00", "160", "0.01", ""]), "{text}");
        let created = ["", "created", "2.00", "160", "0.01", "0.00", "0.00", "–", "30.0", "30.0", "1.00"];
        assert!(cells(&text).iter().any(|row| row.starts_with(&created)), "{text}");
        let apart = compare(&ours, &report("theirs", &[(300, 4.0)]));
        assert!(apart.contains("100 workers (A), 300 workers (B)"), "{apart}");
    }

    #[test]
    fn a_cost_until_the_limit_is_marked_as_such() {
        let run = |seconds| {
            let roll = Phase { seconds, api: counts(&[("create pods", 300)]), ..phase(phases::ROLL, 1.0, 4.0) };
            Run { phases: vec![roll], ..Run::default() }
        };
        let text = sizes(&size(100, run(Some(9.0))), &size(100, run(None)));
        for row in [
            ["", "CPU, roll, s", "4.00", "4.00*", "1.00*", ""],
            ["", "roll, s", "9.00", "never", "–", ""],
            ["", "API writes per worker, roll", "3.00", "3.00*", "1.00*", ""],
        ] {
            assert!(cells(&text).contains(&row.to_vec()), "{text}");
        }
        assert!(text.contains(UNFINISHED));
        assert!(!text.contains("idle"), "what neither has is left out: {text}");
        assert!(!sizes(&size(100, run(Some(9.0))), &size(100, run(Some(9.0)))).contains(UNFINISHED));
    }

    #[test]
    fn only_phases_that_both_have_are_added_up() {
        let run =
            |names: &[&str]| Run { phases: names.iter().map(|name| phase(name, 1.0, 2.0)).collect(), ..Run::default() };
        let text = sizes(&size(100, run(&[phases::IDLE, phases::NOISE])), &size(100, run(&[phases::IDLE])));
        assert!(cells(&text).contains(&vec!["", "CPU, all phases, s", "2.00", "2.00", "1.00", ""]), "{text}");
    }
}
