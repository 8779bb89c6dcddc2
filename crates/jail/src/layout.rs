//! What lies where in a jail: pure.

use std::path::{Path, PathBuf};

/// The jail is populated once this file is there. soperator writes the same one.
pub const SENTINEL: &str = "etc/soperator-jail-populated";

/// The sentinel of soperator's first versions.
pub const OLD_SENTINEL: &str = ".populated";

/// Where a worker shows its own programs and libraries in the jail, relative to it. Links of the jail lead there, so that each
/// worker runs those of its image.
pub const OWN: &str = "run/slurm-jail";

/// Slurm's commands.
pub const COMMANDS: &[&str] = &[
    "sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol", "scrontab", "sdiag",
    "sh5util", "sinfo", "sprio", "squeue", "sreport", "sshare", "sstat", "srun", "strigger",
];

/// Where slurm.conf looks for Slurm's plugins.
pub const PLUGINS: &str = "/usr/lib/slurm";

/// Files of the container that are also those of jobs.
pub const FILES: &[&str] = &["etc/hosts", "etc/resolv.conf"];

/// A name in the jail that leads to what the worker has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Relative to the jail.
    pub at: PathBuf,
    /// As seen in the jail.
    pub to: PathBuf,
    /// The same thing in the worker's container.
    pub from: PathBuf,
}

/// All links of a jail for workers of this architecture, as `std::env::consts::ARCH` names it.
pub fn links(arch: &str) -> Vec<Link> {
    let own = Path::new("/").join(OWN);
    let commands = COMMANDS.iter().map(|command| Link {
        at: Path::new("usr/bin").join(command),
        to: own.join("bin").join(command),
        from: Path::new("/usr/bin").join(command),
    });
    // slurm.conf names the first one; the second one is where the commands of Debian's packages find their library.
    let plugins = ["usr/lib/slurm".to_owned(), format!("usr/lib/{arch}-linux-gnu/slurm-wlm")].map(|at| Link {
        at: at.into(),
        to: own.join("lib"),
        from: PLUGINS.into(),
    });
    let files = FILES.iter().map(|file| Link { at: file.into(), to: own.join(file), from: Path::new("/").join(file) });
    commands.chain(plugins).chain(files).collect()
}

/// How something of the container is shown in the jail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// With everything that is mounted below it.
    Folder,
    /// A folder, which cannot be written there.
    ReadOnlyFolder,
    /// A file, which cannot be written there.
    ReadOnlyFile,
}

/// Something of the container that is mounted in the jail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// In the container.
    pub from: PathBuf,
    /// Relative to the jail.
    pub at: PathBuf,
    pub show: Show,
    /// Whether the container must have it.
    pub needed: bool,
}

/// Folders of the container that are those of jobs. Not all of /run: the token of the pod is there.
const FOLDERS: &[(&str, bool)] = &[
    ("proc", true),
    ("sys", true),
    ("dev", true),
    ("tmp", true),
    ("run/munge", true),
    // slurmstepd and slurmd meet here, and job scripts lie here.
    ("var/spool/slurmd", false),
    // Logs of a node are its own.
    ("var/log", false),
];

/// What is mounted in the jail, after a file system of its own on `run`. `upper` has the volumes that are mounted in the
/// jail, with the mount points below it as `mounted`.
pub fn mounts(upper: &Path, mounted: &[PathBuf]) -> Vec<Mount> {
    let root = Path::new("/");
    let folders = FOLDERS.iter().map(|(path, needed)| Mount {
        from: root.join(path),
        at: path.into(),
        show: Show::Folder,
        needed: *needed,
    });
    let own = Path::new(OWN);
    let commands = COMMANDS.iter().map(|command| Mount {
        from: Path::new("/usr/bin").join(command),
        at: own.join("bin").join(command),
        show: Show::ReadOnlyFile,
        needed: false,
    });
    let plugins = Mount { from: PLUGINS.into(), at: own.join("lib"), show: Show::ReadOnlyFolder, needed: true };
    let files = FILES.iter().map(|file| Mount {
        from: root.join(file),
        at: own.join(file),
        show: Show::ReadOnlyFile,
        needed: false,
    });
    let volumes = outermost(upper, mounted).into_iter().map(|path| Mount {
        from: upper.join(&path),
        at: path,
        show: Show::Folder,
        needed: true,
    });
    folders.chain(commands).chain([plugins]).chain(files).chain(volumes).collect()
}

/// The mount points below a folder, relative to it, without those that lie below another one.
fn outermost(folder: &Path, mounted: &[PathBuf]) -> Vec<PathBuf> {
    let mut below: Vec<&Path> = mounted.iter().filter_map(|path| path.strip_prefix(folder).ok()).collect();
    below.retain(|path| !path.as_os_str().is_empty());
    below.sort();
    let mut outermost: Vec<PathBuf> = Vec::new();
    for path in below {
        // Sorted by their parts, so that everything below a folder follows it.
        if outermost.last().is_none_or(|last| !path.starts_with(last)) {
            outermost.push(path.to_owned());
        }
    }
    outermost
}

/// The mount points in `/proc/self/mountinfo`.
pub fn mount_points(mountinfo: &[u8]) -> Vec<PathBuf> {
    use std::{ffi::OsString, os::unix::ffi::OsStringExt};
    let point = |line: &[u8]| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescape(field))))
    };
    mountinfo.split(|byte| *byte == b'\n').filter_map(point).collect()
}

/// Spaces and backslashes of paths are octal numbers there, such as `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let octal = match (first, after) {
            (b'\\', [a, b, c, ..]) => [a, b, c].iter().try_fold(0_u8, |number, digit| {
                let digit = (**digit).checked_sub(b'0').filter(|digit| *digit < 8)?;
                number.checked_mul(8)?.checked_add(digit)
            }),
            _ => None,
        };
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_what_is_mounted() {
        let mounts = mounts(Path::new("/mnt/jail.upper"), &[]);
        for link in links("x86_64") {
            let to = link.to.strip_prefix("/").unwrap();
            let mount = mounts.iter().find(|mount| mount.at == to).unwrap();
            assert_eq!(mount.from, link.from, "{}", link.at.display());
        }
    }

    #[test]
    fn the_plugins_are_where_slurm_and_debian_look() {
        let at: Vec<_> = links("aarch64").into_iter().filter(|link| link.from == Path::new(PLUGINS)).collect();
        let at: Vec<_> = at.iter().map(|link| link.at.to_str().unwrap()).collect();
        assert_eq!(at, ["usr/lib/slurm", "usr/lib/aarch64-linux-gnu/slurm-wlm"]);
    }

    #[test]
    fn the_token_of_the_pod_is_not_shown() {
        let mounts = mounts(Path::new("/mnt/jail.upper"), &[]);
        let token = Path::new("/run/secrets/kubernetes.io/serviceaccount/token");
        let shown: Vec<_> = mounts.iter().filter(|mount| token.starts_with(&mount.from)).collect();
        assert_eq!(shown, Vec::<&Mount>::new());
    }

    #[test]
    fn volumes_are_mounted_once_and_after_the_rest() {
        let mounted =
            ["/mnt/jail.upper/home", "/mnt/jail.upper", "/mnt/jail.upper/home/a", "/mnt/jail.upper/home-2", "/"];
        let mounts = mounts(Path::new("/mnt/jail.upper"), &mounted.map(PathBuf::from));
        let last: Vec<_> = mounts.iter().rev().take(2).map(|mount| mount.at.to_str().unwrap()).collect();
        assert_eq!(last, ["home-2", "home"]);
        assert_eq!(mounts.iter().filter(|mount| mount.from.starts_with("/mnt/jail.upper")).count(), 2);
    }

    #[test]
    fn reads_mount_points() {
        let mountinfo = b"36 35 98:0 / /mnt/a\\040b\\134c rw,noatime master:1 - ext3 /dev/root rw\n\
                          37 35 0:5 / /d\\9 rw - tmpfs tmpfs rw\nbroken\n";
        assert_eq!(mount_points(mountinfo), [PathBuf::from("/mnt/a b\\c"), PathBuf::from("/d\\9")]);
    }

    #[test]
    fn an_octal_number_that_is_no_byte_stays() {
        assert_eq!(unescape(b"\\777\\101\\"), b"\\777A\\");
    }
}
