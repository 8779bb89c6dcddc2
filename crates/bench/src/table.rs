//! Tables of text, as the terminal and Markdown both show them.

use std::fmt::Write as _;

use crate::{
    budget::{Verdict, ratio},
    report::{Phase, Report, Run, Size, is_slurm_write, sum},
};

/// Rows of equal length, the first one the heading.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        text += &line(row);
        if number == 0 {
            text += &line(&rule);
        }
    }
    text
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.into_iter().map(str::to_owned).collect()
}

/// Two digits are enough below ten, none are needed above a hundred.
fn number(value: f64) -> String {
    let digits = if value.abs() < 10.0 { 2 } else { usize::from(value.abs() < 100.0) };
    format!("{value:.digits$}")
}

fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "never".to_owned(), number)
}

/// The phases of a run, with what each took and cost.
pub fn phases(size: &Size) -> String {
    let per_worker = |count: u32| number(f64::from(count) / f64::from(size.workers.max(1)));
    let mut rows = vec![row([
        "phase",
        "seconds",
        "CPU s",
        "peak MB",
        "API reads",
        "API writes",
        "writes/worker",
        "Slurm reads",
        "Slurm writes",
    ])];
    rows.extend(size.median.phases.iter().map(|phase| {
        vec![
            phase.name.clone(),
            maybe(phase.seconds),
            number(phase.cpu_seconds),
            number(phase.peak_rss_mb),
            phase.reads().to_string(),
            phase.writes().to_string(),
            per_worker(phase.writes()),
            sum(&phase.slurm, |what| !is_slurm_write(what)).to_string(),
            sum(&phase.slurm, is_slurm_write).to_string(),
        ]
    }));
    table(&rows)
}

/// The calls of a run by verb and resource.
pub fn calls(run: &Run) -> String {
    let mut text = String::new();
    for phase in &run.phases {
        for (what, count) in phase.api.iter().chain(&phase.slurm) {
            let _ = writeln!(text, "{:<12} {count:>7}  {what}", phase.name);
        }
    }
    text
}

/// What the budgets say.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    let mut rows = vec![row(["budget", "limit", "measured", ""])];
    rows.extend(verdicts.iter().map(|verdict| {
        let unit = |text: String| format!("{text} {}", verdict.unit).trim_end().to_owned();
        vec![
            verdict.budget.clone(),
            verdict.limit.map_or_else(|| "–".to_owned(), |limit| unit(number(limit))),
            verdict.value.map_or_else(|| "never".to_owned(), |value| unit(number(value))),
            match verdict.limit {
                None => "",
                Some(_) if verdict.is_met() => "✓",
                Some(_) => "✗",
            }
            .to_owned(),
        ]
    }));
    table(&rows)
}

/// What of a phase is compared, and how to get it.
type Measure = (&'static str, fn(&Phase) -> Option<f64>);

const MEASURES: [Measure; 5] = [
    ("seconds", |phase| phase.seconds),
    ("CPU s", |phase| Some(phase.cpu_seconds)),
    ("peak MB", |phase| Some(phase.peak_rss_mb)),
    ("API calls", |phase| Some(f64::from(phase.reads() + phase.writes()))),
    ("Slurm calls", |phase| Some(f64::from(sum(&phase.slurm, |_| true)))),
];

/// Two reports side by side, each size that both have; without one, the first of each.
pub fn compare(a: &Report, b: &Report) -> String {
    let mut pairs: Vec<(&Size, &Size)> =
        a.sizes.iter().filter_map(|size| Some((size, b.size(size.workers)?))).collect();
    if pairs.is_empty() {
        pairs.extend(a.sizes.first().zip(b.sizes.first()));
    }
    let heading = format!("A: {}\nB: {}\n", a.operator, b.operator);
    pairs.iter().fold(heading, |text, (a, b)| text + "\n" + &side_by_side(a, b))
}

fn side_by_side(a: &Size, b: &Size) -> String {
    let mut rows = vec![row(["phase", "what", "A", "B", "A/B"])];
    for phase in &a.median.phases {
        let Some(other) = b.median.phase(&phase.name) else { continue };
        for (what, of) in MEASURES {
            let (left, right) = (of(phase), of(other));
            let times = left.zip(right).and_then(|(left, right)| ratio(left, right));
            let times = times.map_or_else(|| "–".to_owned(), number);
            rows.push(vec![phase.name.clone(), what.to_owned(), maybe(left), maybe(right), times]);
        }
    }
    let workers = if a.workers == b.workers {
        format!("{} workers", a.workers)
    } else {
        format!("{} workers (A), {} workers (B)", a.workers, b.workers)
    };
    format!("{workers}\n\n{}", table(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{counts, phase, size};

    #[test]
    fn budgets_show_whether_they_are_kept() {
        let verdict = |value, limit, unit: &str| Verdict { budget: "memory".into(), value, limit, unit: unit.into() };
        let some = Some(60.0);
        let text = verdicts(&[
            verdict(Some(31.25), some, "MB"),
            verdict(Some(61.0), some, ""),
            verdict(None, some, "MB"),
            verdict(Some(61.0), None, "MB"),
        ]);
        let expected = "\
| budget |   limit | measured |   |
| ------ | ------- | -------- | - |
| memory | 60.0 MB |  31.2 MB | ✓ |
| memory |    60.0 |     61.0 | ✗ |
| memory | 60.0 MB |    never | ✗ |
| memory |       – |  61.0 MB |   |
";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_phase_is_a_row() {
        let mut created = phase("created", 1.234, 0.5);
        created.api = counts(&[("create pods", 200), ("list pods", 1), ("update leases", 1)]);
        created.slurm = counts(&[("GET /a", 3), ("POST /a", 2)]);
        let text = phases(&size(100, Run { phases: vec![created], ..Run::default() }));
        let cells: Vec<&str> = text.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells, ["", "created", "1.23", "0.50", "30.0", "1", "200", "2.00", "3", "2", ""]);
    }

    #[test]
    fn reports_are_compared_where_they_meet() {
        let report = |name: &str, sizes: &[(u32, f64)]| {
            let mut report = Report { operator: name.into(), ..Report::default() };
            for (workers, seconds) in sizes {
                report.put(size(*workers, Run { phases: vec![phase("created", *seconds, 0.0)], ..Run::default() }));
            }
            report
        };
        let ours = report("ours", &[(100, 1.0), (1000, 2.0)]);
        let text = compare(&ours, &report("theirs", &[(1000, 160.0)]));
        assert!(text.starts_with("A: ours\nB: theirs\n\n1000 workers\n"), "{text}");
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert!(rows.contains(&vec!["", "created", "seconds", "2.00", "160", "0.01", ""]), "{text}");
        assert!(rows.contains(&vec!["", "created", "CPU s", "0.00", "0.00", "–", ""]), "{text}");
        let apart = compare(&ours, &report("theirs", &[(300, 4.0)]));
        assert!(apart.contains("100 workers (A), 300 workers (B)"), "{apart}");
    }
}
