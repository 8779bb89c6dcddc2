//! Slurm's own parser reads what our writer writes, and parses text as our parser does.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use e2e::{Scene, script_pod, slurm_image};
use slurm::conf::{Conf, ConfBuilder, shell_word};

/// Values that need quoting.
const VALUES: &[&str] =
    &["/plain", "/a b", "/a#b", "/a #b", r"/a\b", r"/a\\", "/a\"b", "/a=b,c=d", "/ü", "/a\tb", "/it's $HOME", "/ "];

/// Lines as users write them.
const TEXTS: &[&str] = &[
    "PluginDir = /a ",
    "pluginDIR=/1\nPluginDir=/2",
    "PluginDir=/a # comment",
    "PluginDir=/a#b",
    r"PluginDir=/a\#b",
    r"PluginDir=/a\\",
    "PluginDir=\"/a b\"",
    "PluginDir=\\\n/a",
    "PluginDir=/a\\\nb",
    "PluginDir=/a \\ # the comment goes first\n",
    "PluginDir=/a # no continuation \\\n",
    "PluginDir= ClusterName=z",
    "PluginDir+=/a",
    "PluginDir=/a\r",
];

#[tokio::test]
async fn scontrol_reads_values_as_we_do() -> Result<()> {
    let scene = Scene::start("conf").await?;
    let mut cases = Vec::new();
    for value in VALUES {
        let mut conf = ConfBuilder::new();
        conf.text("PluginDir", value)?;
        cases.push((conf.to_string(), (*value).to_owned()));
    }
    for text in TEXTS {
        let value = Conf::parse(text)?.get("PluginDir").with_context(|| format!("no value in {text}"))?.to_owned();
        cases.push(((*text).to_owned(), value));
    }
    // scontrol rejects a directory that does not exist, and prints its name as parsed.
    let mut script = "export SLURM_CONF=/tmp/slurm.conf
        ask() {
          printf 'ClusterName=x\\nSlurmctldHost=localhost\\nAuthType=auth/slurm\\n%s\\n' \"$1\" > $SLURM_CONF
          scontrol show hostnames x 2>&1 | sed -n 's/^scontrol: error: Bad value \\(.*\\) for PluginDir$/\\1/p'
        }\n"
    .to_owned();
    for (text, _) in &cases {
        writeln!(script, "ask {}", shell_word(text))?;
    }
    scene.pod("scontrol", script_pod(&slurm_image("slurmctld")?, &script)).await?;
    let output = scene.output("scontrol").await?;
    let mut answers = output.lines();
    for (text, value) in &cases {
        let answer = answers.next().with_context(|| format!("no answer to {text}"))?;
        ensure!(answer == format!("\"{value}\""), "scontrol parses {text} as {answer}, and we as \"{value}\"");
    }
    ensure!(answers.next().is_none(), "more answers than questions: {output}");
    scene.finish().await
}
