//! scontrol expands host lists as the table of the unit tests says, and reads what we write.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use e2e::{Scene, script_pod, slurm_image};
use slurm::{conf::shell_word, hostlist};

/// The table of the unit tests; its header explains the format.
const TABLE: &str = include_str!("../../crates/slurm/tests/hostlist_cases.txt");

/// A question to scontrol, and the expected answer on one line.
struct Case {
    question: String,
    answer: String,
}

fn cases() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let mut ask = |what: &str, input: &str, answer: &str| {
        let question = format!("{what} {}", shell_word(input));
        cases.push(Case { question, answer: answer.split_whitespace().collect::<Vec<_>>().join(" ") });
    };
    for row in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut columns = row.split('|').map(str::trim);
        let (Some(kind), Some(input), Some(output), None) =
            (columns.next(), columns.next(), columns.next(), columns.next())
        else {
            anyhow::bail!("not a row of three columns: {row}");
        };
        match kind {
            "expand" | "unordered" => ask("hostnames", input, output),
            "refused" => ask("hostnames", input, if output == "error" { "" } else { output }),
            "fold" => {
                ask("hostlistsorted", &input.replace(' ', ","), output);
                let ours = hostlist::fold(input.split_whitespace())?;
                ask("hostnames", &ours, &hostlist::expand(&ours)?.join(" "));
            }
            _ => anyhow::bail!("an unknown kind: {row}"),
        }
    }
    Ok(cases)
}

#[tokio::test]
async fn scontrol_agrees_about_host_lists() -> Result<()> {
    let scene = Scene::start("hostlist").await?;
    let cases = cases()?;
    // scontrol needs a configuration. It reports errors on stderr, and still exits with 0.
    let mut script = "export SLURM_CONF=/tmp/slurm.conf
        printf 'ClusterName=x\\nSlurmctldHost=localhost\\nAuthType=auth/slurm\\n' > $SLURM_CONF
        ask() { scontrol show \"$@\" 2> /dev/null | tr '\\n' ' '; echo; }\n"
        .to_owned();
    for case in &cases {
        writeln!(script, "ask {}", case.question)?;
    }
    scene.pod("scontrol", script_pod(&slurm_image("slurmctld")?, &script)).await?;
    let output = scene.output("scontrol").await?;
    let mut answers = output.lines();
    for case in &cases {
        let answer = answers.next().with_context(|| format!("no answer to {}", case.question))?;
        ensure!(answer.trim_end() == case.answer, "{}: {answer} instead of {}", case.question, case.answer);
    }
    ensure!(answers.next().is_none(), "more answers than questions: {output}");
    scene.finish().await
}
