//! The commands of the documentation.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// The shell commands of a section of a page, `docs/<page>.md`. An empty heading stands for the beginning of the page.
pub fn commands(page: &str, heading: &str) -> Result<String> {
    let path = checkout().join("docs").join(format!("{page}.md"));
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let (mut section, mut is_command, mut commands) = (String::new(), false, String::new());
    for line in text.lines() {
        match line {
            "```sh" => is_command = true,
            "```" => is_command = false,
            _ if is_command && section == heading => {
                commands.push_str(line);
                commands.push('\n');
            }
            _ => {
                if let Some(title) = line.strip_prefix("## ") {
                    title.clone_into(&mut section);
                }
            }
        }
    }
    ensure!(!commands.is_empty(), "{} has no commands in the section `{heading}`", path.display());
    Ok(commands)
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder to run commands in, as in a checkout, with kubectl, its plugin and helm for the cluster under test.
pub struct Shell {
    folder: PathBuf,
}

impl Shell {
    pub fn new(name: &str) -> Result<Self> {
        let folder = env::temp_dir().join(format!("slurm-operator-{name}"));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.join("bin"))?;
        for program in ["kubectl", "helm"] {
            let file = folder.join("bin").join(program);
            fs::write(&file, format!("#!/bin/sh\nexec \"$XTASK\" cluster {program} \"$@\"\n"))?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        }
        let operator = env::var_os("OPERATOR").context("OPERATOR is not set: run `cargo xtask test --e2e`")?;
        symlink(operator, folder.join("bin/kubectl-slurm"))?;
        symlink(checkout().canonicalize()?.join("charts"), folder.join("charts"))?;
        Ok(Self { folder })
    }

    /// Where the commands run.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a file that the commands use.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(fs::write(self.folder.join(name), text)?)
    }

    /// Runs commands until one fails, and returns their output.
    pub async fn run(&self, commands: &str) -> Result<String> {
        let path = env::var("PATH").unwrap_or_default();
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-xc", commands])
            .current_dir(&self.folder)
            .env("PATH", format!("{}:{path}", self.folder.join("bin").display()))
            .stdin(Stdio::null())
            .output()
            .await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        ensure!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
        Ok(text(&output.stdout))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.folder));
    }
}
