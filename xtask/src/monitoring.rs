//! Dashboards and alerts of the chart: Prometheus' own tool parses every expression, and runs the tests of the alerts.

use std::{collections::BTreeMap, fs, path::Path, process};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{cache, charts, shell::Cmd, tools};

/// Tests of the alerts, in the format of promtool.
const TESTS: &str = "charts/slurm-operator/tests/alerts.yaml";

/// The file of the rules that they are about.
const RULES: &str = "rules.yaml";

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    rules: Vec<Alert>,
}

#[derive(Deserialize)]
struct Alert {
    #[serde(rename = "alert")]
    name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Tests {
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    #[serde(default)]
    alert_rule_test: Vec<AlertTest>,
}

#[derive(Deserialize)]
struct AlertTest {
    alertname: String,
    exp_alerts: Vec<Value>,
}

pub fn check(checkout: &Path) -> Result<()> {
    let objects = charts::monitoring(checkout)?;
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| text(object, "/kind") == kind);
    let rules = of_kind("PrometheusRule").find_map(|rule| rule.get("spec")).context("the chart has no alerts")?;
    let tests = fs::read_to_string(checkout.join(TESTS)).with_context(|| format!("cannot read {TESTS}"))?;
    let alerts = serde_json::from_value::<Rules>(rules.clone()).context("the rules of the chart")?;
    tested(&alerts, &serde_saphyr::from_str(&tests).context(TESTS)?)?;
    for alert in alerts.groups.iter().flat_map(|group| &group.rules) {
        explained(alert, |page| Ok(fs::read_to_string(checkout.join(page))?))
            .with_context(|| format!("the alert {}", alert.name))?;
    }
    let mut groups = Vec::new();
    for (file, dashboard) in of_kind("ConfigMap").filter_map(|map| map.get("data")?.as_object()).flatten() {
        let dashboard = serde_json::from_str(dashboard.as_str().unwrap_or_default()).with_context(|| file.clone())?;
        ensure!(*file == format!("{}.json", text(&dashboard, "/uid")), "{file} has another uid");
        let rule = |(number, expr): (usize, String)| {
            let record = format!("expression:{number}");
            json!({"record": record, "labels": {"dashboard": file}, "expr": expr})
        };
        let rules: Vec<Value> = expressions(&dashboard).into_iter().enumerate().map(rule).collect();
        ensure!(!rules.is_empty(), "{file} has no expressions");
        groups.push(json!({"name": file, "rules": rules}));
    }
    ensure!(!groups.is_empty(), "the chart has no dashboards");

    let promtool = tools::promtool()?;
    // JSON is YAML, too.
    let folder = std::env::temp_dir().join(format!("slurm-operator-alerts-{}", process::id()));
    let files =
        [(RULES, rules.to_string()), ("dashboards.yaml", json!({"groups": groups}).to_string()), ("tests.yaml", tests)];
    fs::create_dir_all(&folder)?;
    for (name, text) in files {
        fs::write(folder.join(name), text)?;
    }
    let run = |args: &[&str]| Cmd::new(&promtool).args(args).dir(&folder).text().map(drop);
    let result = run(&["check", "rules", "--lint-fatal", RULES, "dashboards.yaml"])
        .and_then(|()| run(&["test", "rules", "tests.yaml"]));
    cache::remove(&folder)?;
    result
}

/// Each alert has a test in which it fires, and one in which it does not.
fn tested(rules: &Rules, tests: &Tests) -> Result<()> {
    for Alert { name, .. } in rules.groups.iter().flat_map(|group| &group.rules) {
        let tests = || tests.tests.iter().flat_map(|test| &test.alert_rule_test).filter(|test| test.alertname == *name);
        ensure!(tests().any(|test| !test.exp_alerts.is_empty()), "{TESTS}: no test in which {name} fires");
        ensure!(tests().any(|test| test.exp_alerts.is_empty()), "{TESTS}: no test in which {name} does not fire");
    }
    Ok(())
}

/// An alert says what is wrong, and where to read on: in a section of a page that has a line for it.
fn explained(alert: &Alert, page: impl Fn(&str) -> Result<String>) -> Result<()> {
    let annotation = |name: &str| alert.annotations.get(name).with_context(|| format!("it has no annotation {name}"));
    annotation("summary")?;
    let severity = alert.labels.get("severity").map(String::as_str);
    ensure!(matches!(severity, Some("critical" | "warning")), "its severity is {severity:?}");
    let runbook = annotation("runbook")?;
    let (path, anchor) = runbook.split_once('#').with_context(|| format!("{runbook} names no section"))?;
    let text = page(path).with_context(|| format!("cannot read {path}"))?;
    let mut sections = text.split("\n## ");
    let section = sections.find(|section| section.lines().next().is_some_and(|title| anchor_of(title) == anchor));
    let section = section.with_context(|| format!("{path} has no section #{anchor}"))?;
    ensure!(section.contains(&format!("\n| `{}` |", alert.name)), "the table in {runbook} has no line for it");
    Ok(())
}

/// What a link to a heading ends with.
fn anchor_of(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The expressions of a dashboard as Grafana sends them if everything is chosen; those of its variables, too.
fn expressions(dashboard: &Value) -> Vec<String> {
    let list = |at: &str| dashboard.pointer(at).and_then(Value::as_array).into_iter().flatten();
    let targets = list("/panels").filter_map(|panel| panel.get("targets")?.as_array()).flatten();
    let panels = targets.map(|target| text(target, "/expr").to_owned());
    let queries = list("/templating/list").map(|variable| text(variable, "/query"));
    let values = queries.filter_map(|query| {
        let (selector, label) = query.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")?;
        Some(format!("group by ({label}) ({selector})"))
    });
    panels.chain(values).map(|expression| chosen(&expression)).collect()
}

/// An expression with something for each variable.
fn chosen(expression: &str) -> String {
    let expression = expression.replace("$__rate_interval", "5m");
    let mut parts = expression.split('$');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + ".*" + part.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    value.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_expressions() {
        let dashboard = json!({
            "templating": {"list": [
                {"type": "datasource", "query": "prometheus"},
                {"type": "query", "query": "label_values(up{namespace=~\"$namespace\"}, job)"},
            ]},
            "panels": [{"targets": [{"expr": "sum(rate(a{job=~\"$job\"}[$__rate_interval]))"}, {"expr": "b"}]}],
        });
        let expected =
            ["sum(rate(a{job=~\".*\"}[5m]))", "b", "group by (job) (up{namespace=~\".*\"})"].map(str::to_owned);
        assert_eq!(expressions(&dashboard), expected);
    }

    fn alert(runbook: &str) -> Alert {
        let map = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        Alert {
            name: "Down".to_owned(),
            labels: map(&[("severity", "warning")]),
            annotations: map(&[("summary", "It is down."), ("runbook", runbook)]),
        }
    }

    #[test]
    fn every_alert_is_explained() {
        let page = |_: &str| {
            Ok("# A\n\n## What to do: alerts\n\n| alert | what |\n|---|---|\n| `Down` | up |\n\n## B\n".to_owned())
        };
        explained(&alert("page.md#what-to-do-alerts"), page).unwrap();
        for runbook in ["page.md", "page.md#b", "page.md#gone"] {
            assert!(explained(&alert(runbook), page).is_err(), "{runbook}");
        }
        let nameless = Alert { annotations: BTreeMap::new(), ..alert("") };
        assert!(explained(&nameless, page).is_err());
    }

    #[test]
    fn every_alert_is_tested() {
        let rules = Rules { groups: vec![Group { rules: vec![alert("")] }] };
        let test = |exp_alerts| AlertTest { alertname: "Down".to_owned(), exp_alerts };
        let tests = |alert_rule_test| Tests { tests: vec![Test { alert_rule_test }] };
        tested(&rules, &tests(vec![test(vec![json!({})]), test(Vec::new())])).unwrap();
        assert!(tested(&rules, &tests(vec![test(vec![json!({})])])).is_err());
        assert!(tested(&rules, &tests(vec![test(Vec::new())])).is_err());
    }
}
