//! Images of the daemons of a `SlurmCluster` (`slurm.nebius.ai`), whose jobs run in a shared root file system.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{
    image::{self, Image, Profile, SlurmRelease},
    paths,
};

/// The targets of images/nebius/Containerfile that clusters run.
const TARGETS: &[&str] = &["munge", "slurmctld", "slurmd", "slurmrestd", "populate-jail"];

/// The program in these images.
const PROGRAM: &str = "slurm-jail";

/// Where the files of the images and the program lie side by side.
fn context() -> PathBuf {
    paths::cache().join("nebius")
}

fn images(release: &SlurmRelease) -> impl Iterator<Item = Image> {
    let image = |target: &&'static str| release.image_called(&format!("nebius-{target}"), &context(), target);
    TARGETS.iter().map(image).collect::<Vec<_>>().into_iter()
}

/// Builds the images for a release of Slurm; the archives with them.
pub fn build(release: &SlurmRelease) -> Result<Vec<PathBuf>> {
    let program = image::compile("jail", PROGRAM, Profile::Release)?;
    let context = context();
    crate::cache::remove(&context)?;
    copy(&paths::checkout()?.join("images/nebius"), &context)?;
    fs::copy(&program, context.join(PROGRAM)).with_context(|| format!("cannot copy {}", program.display()))?;
    release.build_images(images(release))
}

/// Builds the images for all releases of Slurm.
pub fn build_all() -> Result<Vec<PathBuf>> {
    let mut archives = build(&SlurmRelease::stable())?;
    archives.extend(build(&SlurmRelease::newest()?)?);
    Ok(archives)
}

/// The archives that were built before.
pub fn cached(release: &SlurmRelease) -> Result<Vec<PathBuf>> {
    if !context().exists() {
        return Ok(Vec::new());
    }
    images(release).filter_map(|image| image.cached().transpose()).collect()
}

/// Copies a folder with all below it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let from = entry?.path();
        let to = to.join(from.file_name().unwrap_or_default());
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    Ok(())
}
