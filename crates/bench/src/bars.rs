//! SVG bars: cost by phase, for reports of one size.

use std::fmt::Write as _;

use crate::{
    phases,
    plot::{COLOURS, escape, legend},
    report::{Phase, Report, Run},
    table::number,
};

/// A panel. An unfinished phase has a cost, but no time.
struct Panel {
    title: &'static str,
    of: fn(&Phase) -> Option<f64>,
    is_cost: bool,
}

const PANELS: [Panel; 4] = [
    // The length of the idle phase is fixed.
    Panel { title: "seconds", of: |phase| phase.seconds.filter(|_| phase.name != phases::IDLE), is_cost: false },
    Panel { title: "CPU seconds", of: |phase| Some(phase.cpu_seconds), is_cost: true },
    Panel { title: "peak memory in MB", of: |phase| Some(phase.peak_rss_mb), is_cost: true },
    Panel { title: "writes to the API server", of: |phase| Some(f64::from(phase.writes())), is_cost: true },
];

const WIDTH: f64 = 400.0;
const LEFT: f64 = 76.0;
const TOP: f64 = 34.0;
/// Where a value is written beside the longest bar.
const RIGHT: f64 = 60.0;
const BAR: f64 = 8.0;
const GAP: f64 = 6.0;

/// Draws the first size of each report.
pub fn draw(reports: &[Report]) -> String {
    let runs: Vec<&Run> = reports.iter().filter_map(|report| Some(&report.sizes.first()?.median)).collect();
    let names: Vec<&str> = runs.first().map(|run| names(run)).unwrap_or_default();
    let group = BAR * f64::from(u8::try_from(runs.len()).unwrap_or(u8::MAX)) + GAP;
    let height = TOP + group * f64::from(u8::try_from(names.len()).unwrap_or(u8::MAX)) + 12.0;
    let (all_wide, all_high) = (WIDTH * 2.0, height * 2.0 + 40.0);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {all_wide} {all_high}" font-family="sans-serif" font-size="10">
<rect width="{all_wide}" height="{all_high}" fill="white"/>
"#
    );
    let places = [(0.0, 0.0), (WIDTH, 0.0), (0.0, height), (WIDTH, height)];
    for (content, (x, y)) in PANELS.iter().zip(places) {
        let drawn = panel(content, &names, &runs, group);
        let _ = write!(svg, "<g transform=\"translate({x} {y})\">\n{drawn}</g>\n");
    }
    svg += &legend(reports, LEFT, height * 2.0 + 14.0);
    let workers = reports.iter().find_map(|report| report.sizes.first()).map_or(0, |size| size.workers);
    let note = format!("{workers} workers. *: the phase did not end within its limit; cost until then.");
    let _ = writeln!(svg, r#"<text x="{LEFT}" y="{}">{note}</text>"#, height * 2.0 + 30.0);
    svg + "</svg>\n"
}

fn names(run: &Run) -> Vec<&str> {
    run.phases.iter().map(|phase| phase.name.as_str()).collect()
}

fn panel(panel: &Panel, names: &[&str], runs: &[&Run], group: f64) -> String {
    let mut svg = format!("<text x=\"{LEFT}\" y=\"20\" font-size=\"13\">{}</text>\n", panel.title);
    let all = names.iter().flat_map(|name| runs.iter().filter_map(|run| (panel.of)(run.phase(name)?)));
    let longest = all.reduce(f64::max).filter(|value| *value > 0.0).unwrap_or(1.0);
    let mut y = TOP;
    for name in names {
        let label = y + (group - GAP) / 2.0 + 3.0;
        let _ = writeln!(svg, r#"<text x="{}" y="{label:.1}" text-anchor="end">{}</text>"#, LEFT - 6.0, escape(name));
        for (number, (run, colour)) in (0_u8..).zip(runs.iter().zip(COLOURS.iter().cycle())) {
            let top = y + f64::from(number) * BAR;
            svg += &bar(panel, run.phase(name), longest, top, colour);
        }
        y += group;
    }
    svg
}

fn bar(panel: &Panel, phase: Option<&Phase>, longest: f64, top: f64, colour: &str) -> String {
    let Some(phase) = phase else { return String::new() };
    let finished = phase.seconds.is_some();
    let Some(value) = (panel.of)(phase) else {
        let text = if finished { "" } else { "never" };
        return label(LEFT, top, text, colour);
    };
    let width = value / longest * (WIDTH - LEFT - RIGHT);
    let marked = panel.is_cost && !finished;
    let opacity = if marked { 0.5 } else { 1.0 };
    let text = number(value) + if marked { "*" } else { "" };
    format!(
        "<rect x=\"{LEFT}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\" opacity=\"{opacity}\"/>\n",
        BAR - 1.0
    ) + &label(LEFT + width, top, &text, colour)
}

fn label(x: f64, top: f64, text: &str, colour: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let (x, y) = (x + 3.0, top + BAR - 1.0);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"8\" fill=\"{colour}\">{text}</text>\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{phase, size};

    fn report(name: &str, roll_seconds: Option<f64>) -> Report {
        let roll = Phase { seconds: roll_seconds, ..phase(phases::ROLL, 1.0, 4.0) };
        let mut report = Report { operator: name.into(), ..Report::default() };
        report.put(size(100, Run { phases: vec![phase(phases::IDLE, 60.0, 0.5), roll], ..Run::default() }));
        report
    }

    #[test]
    fn each_report_is_a_bar_for_each_phase() {
        let svg = draw(&[report("a", Some(9.0)), report("b <c>, d", Some(3.0))]);
        assert_eq!(svg.matches("<rect x=").count(), 14, "two phases of two reports in four panels, one without idle");
        assert!(svg.contains("● b &lt;c></text>"), "{svg}");
        assert!(svg.contains("100 workers."));
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn a_phase_that_did_not_end_has_a_cost_and_no_time() {
        let svg = draw(&[report("a", None)]);
        assert!(svg.contains(">never</text>") && svg.contains(">4.00*</text>"), "{svg}");
        assert_eq!(svg.matches("opacity=\"0.5\"").count(), 3);
        assert!(draw(&[]).contains("0 workers"));
    }
}
