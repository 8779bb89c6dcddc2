//! SVG curves: cost by number of workers.

use std::fmt::Write as _;

use crate::{
    bars, phases,
    report::{Phase, Report, Run, Size},
};

/// Number of workers and cost.
type Point = (f64, f64);

/// Title and cost of a panel.
type Panel = (&'static str, fn(&Size) -> Option<f64>);

const PANELS: [Panel; 4] = [
    ("seconds until all are registered", |size| scale_out(&size.median, |phase| phase.seconds)),
    ("CPU seconds until all are registered", |size| scale_out(&size.median, |phase| Some(phase.cpu_seconds))),
    ("peak memory in MB", |size| size.median.phases.iter().map(|phase| phase.peak_rss_mb).reduce(f64::max)),
    ("CPU seconds of an idle minute", |size| Some(size.median.phase(phases::IDLE)?.cpu_seconds)),
];

/// One for each report.
pub const COLOURS: [&str; 4] = ["#0b6e99", "#c2410c", "#3f7d20", "#7c3aed"];

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 30.0;
const RIGHT: f64 = 28.0;

/// Time or cost until registration, without the pause at the end.
fn scale_out(run: &Run, of: impl Fn(&Phase) -> Option<f64>) -> Option<f64> {
    let names = phases::SCALE_OUT.iter().filter(|name| **name != phases::SETTLED);
    names.map(|name| of(run.phase(name)?)).sum()
}

/// Draws all reports: a curve each, or bars where no report has a second size.
pub fn draw(reports: &[Report]) -> String {
    if reports.iter().all(|report| report.sizes.len() <= 1) {
        return bars::draw(reports);
    }
    let (columns, rows) = (2.0, 2.0);
    let (width, height) = (WIDTH * columns, HEIGHT * rows + 24.0);
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">
<rect width="{width}" height="{height}" fill="white"/>
"#
    );
    let places = [(0.0, 0.0), (WIDTH, 0.0), (0.0, HEIGHT), (WIDTH, HEIGHT)];
    for ((title, of), (x, y)) in PANELS.iter().zip(places) {
        let curves: Vec<Vec<Point>> = reports.iter().map(|report| points(report, *of)).collect();
        let _ = write!(svg, "<g transform=\"translate({x} {y})\">\n{}</g>\n", panel(title, &curves));
    }
    svg + &legend(reports, LEFT, HEIGHT * rows + 14.0) + "</svg>\n"
}

/// The names of the reports in their colours, from a position on.
pub fn legend(reports: &[Report], x: f64, y: f64) -> String {
    let mut svg = String::new();
    for (number, (report, colour)) in (0_u8..).zip(reports.iter().zip(COLOURS.iter().cycle())) {
        let x = x + f64::from(number) * WIDTH / 2.0;
        let _ = writeln!(svg, r#"<text x="{x}" y="{y}" fill="{colour}">● {}</text>"#, escape(short(&report.operator)));
    }
    svg
}

/// A command without its options, or a name without what follows a comma.
fn short(operator: &str) -> &str {
    let end = [" -", ","].iter().filter_map(|end| operator.find(end)).min();
    end.and_then(|end| operator.get(..end)).unwrap_or(operator)
}

/// Text as SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

/// The points with a logarithm.
fn points(report: &Report, of: fn(&Size) -> Option<f64>) -> Vec<Point> {
    let all = report.sizes.iter().filter_map(|size| Some((f64::from(size.workers), of(size)?)));
    all.filter(|(workers, cost)| *workers > 0.0 && *cost > 0.0).collect()
}

/// A logarithmic axis over whole powers of ten.
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone, start: f64, end: f64) -> Option<Self> {
        let least = values.clone().reduce(f64::min)?.log10().floor();
        let most = values.reduce(f64::max)?.log10().ceil();
        Some(Self { from: least, to: most.max(least + 1.0), start, end })
    }

    fn at(&self, value: f64) -> f64 {
        self.start + (value.log10() - self.from) / (self.to - self.from) * (self.end - self.start)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let (first, last) = (self.from, self.to);
        std::iter::successors(Some(first), |power| Some(power + 1.0))
            .take_while(move |power| *power <= last)
            .map(|power| 10_f64.powf(power))
    }
}

fn panel(title: &str, curves: &[Vec<Point>]) -> String {
    let mut svg = format!("<text x=\"{LEFT}\" y=\"20\" font-size=\"13\">{title}</text>\n");
    let all = || curves.iter().flatten();
    let across = Axis::over(all().map(|point| point.0), LEFT, WIDTH - RIGHT);
    let up = Axis::over(all().map(|point| point.1), HEIGHT - BOTTOM, TOP);
    let (Some(across), Some(up)) = (across, up) else { return svg };
    for value in across.ticks() {
        let (x, bottom, label) = (across.at(value), HEIGHT - BOTTOM, HEIGHT - BOTTOM + 15.0);
        let _ = writeln!(svg, r##"<path d="M{x:.1} {TOP}V{bottom}" stroke="#ddd"/>"##);
        let _ = writeln!(svg, r#"<text x="{x:.1}" y="{label}" text-anchor="middle">{value}</text>"#);
    }
    for value in up.ticks() {
        let (y, right, label) = (up.at(value), WIDTH - RIGHT, LEFT - 6.0);
        let _ = writeln!(svg, r##"<path d="M{LEFT} {y:.1}H{right}" stroke="#ddd"/>"##);
        let _ = writeln!(svg, r#"<text x="{label}" y="{:.1}" text-anchor="end">{value}</text>"#, y + 4.0);
    }
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let places: Vec<(f64, f64)> = curve.iter().map(|(x, y)| (across.at(*x), up.at(*y))).collect();
        let line: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ =
            writeln!(svg, r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#, line.join(" "));
        for (x, y) in places {
            let _ = writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#);
        }
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::{phase, size};

    #[test]
    fn each_power_of_ten_is_a_tick() {
        let axis = Axis::over([100.0, 9_000.0].into_iter(), 0.0, 200.0).unwrap();
        assert_eq!(axis.ticks().collect::<Vec<_>>(), [100.0, 1000.0, 10_000.0]);
        assert!((axis.at(1000.0) - 100.0).abs() < 1e-9);
        let single = Axis::over([100.0].into_iter(), 0.0, 10.0).unwrap();
        assert!(single.at(100.0).abs() < 1e-9, "one value still has an axis");
        assert!(Axis::over(std::iter::empty(), 0.0, 1.0).is_none());
    }

    #[test]
    fn each_report_is_a_curve_through_its_sizes() {
        let mut report = Report { operator: "oper<tor manager --verbose".into(), ..Report::default() };
        for workers in [100, 1000, 10_000] {
            let cost = f64::from(workers) / 500.0;
            let names = [phases::CREATED, phases::READY, phases::REGISTERED, phases::IDLE];
            let phases = names.map(|name| phase(name, cost, cost)).to_vec();
            report.put(size(workers, Run { phases, ..Run::default() }));
        }
        let svg = draw(&[report]);
        assert_eq!(svg.matches("<circle").count(), 12, "three sizes in four panels");
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(svg.contains("● oper&lt;tor manager<"), "{svg}");
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }

    #[test]
    fn missing_times_are_not_drawn() {
        let mut created = phase(phases::CREATED, 1.0, 1.0);
        created.seconds = None;
        let mut report = Report::default();
        for workers in [100, 1000] {
            report.put(size(workers, Run { phases: vec![created.clone()], ..Run::default() }));
        }
        assert_eq!(draw(&[report]).matches("<circle").count(), 2, "only its memory is known");
    }

    #[test]
    fn the_legend_has_the_program_or_the_name() {
        assert_eq!(short("slurm-operator manager --leader-elect --metrics-addr 0"), "slurm-operator manager");
        assert_eq!(short("Go operator, main of 2026-08-20"), "Go operator");
        assert_eq!(short("manager"), "manager");
    }
}
