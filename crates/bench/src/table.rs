//! Markdown tables, aligned for terminals.

use std::fmt::Write as _;

use crate::{
    budget::Verdict,
    report::{Run, Size, is_slurm_write, sum},
};

/// A table from rows of equal length; the first row is the heading.
pub fn table(rows: &[Vec<String>]) -> String {
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

/// Cells of one row.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.into_iter().map(str::to_owned).collect()
}

/// A number with about three significant digits.
pub fn number(value: f64) -> String {
    let digits = if value.abs() < 10.0 { 2 } else { usize::from(value.abs() < 100.0) };
    format!("{value:.digits$}")
}

/// A number, or `never` if it was not reached.
pub fn maybe(value: Option<f64>) -> String {
    value.map_or_else(|| "never".to_owned(), number)
}

/// Time and cost of each phase.
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

/// The requests of each phase by verb and resource.
pub fn calls(run: &Run) -> String {
    let mut text = String::new();
    for phase in &run.phases {
        for (what, count) in phase.api.iter().chain(&phase.slurm) {
            let _ = writeln!(text, "{:<12} {count:>7}  {what}", phase.name);
        }
    }
    text
}

/// Values with their limits.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{counts, phase, size};

    #[test]
    fn budgets_show_whether_they_are_met() {
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
}
