//! Which Slurm is this, and what can it do: the only place that knows what came with which release.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// A release of Slurm such as 24.11.5. The micro number is not always known (an image tag may leave it out).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlurmVersion {
    /// The year: 24 in 24.11.5.
    pub major: u16,
    /// The month: 11 in 24.11.5.
    pub minor: u16,
    /// The patch: 5 in 24.11.5.
    pub micro: Option<u16>,
}

/// A text that does not start like a Slurm release.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a Slurm version such as 24.11 or 26.05.5")]
pub struct NotAVersion(String);

impl SlurmVersion {
    /// A release without its patch number.
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor, micro: None }
    }

    /// What the tag of an image says: `24.11`, `26.05.5`, `25.05-ubuntu24.04`. `latest` and the like say nothing.
    pub fn from_image_tag(tag: &str) -> Option<Self> {
        let tag = tag.strip_prefix('v').unwrap_or(tag);
        // What a base image or a build adds comes behind a dash or a plus and has numbers of its own.
        let release = tag.split(['-', '+', '_']).next()?;
        release.parse().ok()
    }

    /// What a whole image reference says: `registry:5000/slurmd:26.05-ubuntu26.04@sha256:…`.
    pub fn from_image(image: &str) -> Option<Self> {
        let name = image.split('@').next()?;
        // A colon before the last slash is the port of the registry.
        let (_, tag) = name.rsplit('/').next()?.split_once(':')?;
        Self::from_image_tag(tag)
    }

    /// Whether this release has it. Releases newer than we know have all that the newest known one has.
    pub fn supports(self, feature: Feature) -> bool {
        RELEASES.iter().take_while(|release| release.is_at_most(self)).any(|release| release.brought.contains(&feature))
    }

    /// The REST versions that slurmrestd of this release serves and that we speak, oldest first.
    pub fn rest_versions(self) -> &'static [RestVersion] {
        let known = RELEASES.iter().take_while(|release| release.is_at_most(self)).last();
        known.or(RELEASES.first()).map_or(&[], |release| release.rest)
    }

    fn release(self) -> (u16, u16) {
        (self.major, self.minor)
    }
}

/// What a Slurm of possibly unknown version has: an unknown one counts as the oldest, so that nothing is asked of it
/// that it may not have.
pub fn supports(version: Option<SlurmVersion>, feature: Feature) -> bool {
    version.is_some_and(|version| version.supports(feature))
}

impl fmt::Display for SlurmVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}.{:02}", self.major, self.minor)?;
        self.micro.map_or(Ok(()), |micro| write!(f, ".{micro}"))
    }
}

impl FromStr for SlurmVersion {
    type Err = NotAVersion;

    /// Reads `24.11`, `24.11.5` and the pre-releases `26.05.0-0rc1`, `26.05.0rc1`.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let fail = || NotAVersion(text.chars().take(64).collect());
        let mut parts = text.split('.');
        let mut two_digits = || {
            let part = parts.next().ok_or_else(fail)?;
            // Slurm writes year and month with two digits each; `3.10` is the version of something else.
            let plain = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            if plain { part.parse::<u16>().map_err(|_| fail()) } else { Err(fail()) }
        };
        let (major, minor) = (two_digits()?, two_digits()?);
        let micro = match parts.next() {
            None => None,
            Some(part) => {
                let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
                let digits = part.get(..end).unwrap_or_default();
                // Slurm's have no leading zero: this is a date.
                if digits.len() > 1 && digits.starts_with('0') {
                    return Err(fail());
                }
                Some(digits.parse().map_err(|_| fail())?)
            }
        };
        if parts.next().is_some() || !(1..=12).contains(&minor) {
            return Err(fail());
        }
        Ok(Self { major, minor, micro })
    }
}

/// The versions of slurmrestd's interface that this crate speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RestVersion {
    /// v0.0.41, of Slurm 24.05
    V41,
    /// v0.0.42, of Slurm 24.11
    V42,
    /// v0.0.43, of Slurm 25.05
    V43,
    /// v0.0.44, of Slurm 25.11
    V44,
    /// v0.0.45, of Slurm 26.05
    V45,
    /// v0.0.46, of Slurm 26.11
    V46,
}

impl RestVersion {
    /// All of them, oldest first.
    pub const ALL: [Self; 6] = [Self::V41, Self::V42, Self::V43, Self::V44, Self::V45, Self::V46];

    /// As it stands in a path: `v0.0.41`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V41 => "v0.0.41",
            Self::V42 => "v0.0.42",
            Self::V43 => "v0.0.43",
            Self::V44 => "v0.0.44",
            Self::V45 => "v0.0.45",
            Self::V46 => "v0.0.46",
        }
    }
}

impl fmt::Display for RestVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A REST version that we do not speak.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a REST version from v0.0.41 to v0.0.46")]
pub struct UnknownRestVersion(String);

impl FromStr for RestVersion {
    type Err = UnknownRestVersion;

    fn from_str(text: &str) -> Result<Self, UnknownRestVersion> {
        let unknown = || UnknownRestVersion(text.chars().take(64).collect());
        Self::ALL.into_iter().find(|version| version.as_str() == text).ok_or_else(unknown)
    }
}

/// Something that not every supported release has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// `Topology=` on a node line, on `slurmd --conf` and in a node update.
    NodeTopology,
    /// Reservations can be made, changed and removed by REST.
    RestReservations,
    /// `/livez` and `/readyz` on the ports of slurmctld and slurmd.
    HealthEndpoints,
    /// The group of slurmdbd may read slurmdbd.conf; older releases refuse to start with such a file.
    GroupReadableSlurmdbdConf,
    /// `MetricsType=metrics/openmetrics` and `/metrics/*`; older releases refuse to start with that key.
    Metrics,
    /// `SlurmctldParameters=reconfig_on_restart`.
    ReconfigOnRestart,
    /// Nodes can be made by REST.
    RestNewNode,
    /// slurmctld's configuration can be read by REST.
    RestConf,
    /// Jobs can be put back into the queue by REST.
    RestRequeue,
    /// Partitions can be made and removed by REST.
    RestPartitions,
    /// `/livez` and `/readyz` on slurmrestd, too.
    RestdHealthEndpoints,
    /// `AutoDetect=full` in gres.conf.
    GresAutoDetectFull,
    /// A node list asked for with `update_time` comes back also when nodes changed and partitions did not.
    NodeUpdateTime,
}

/// One line of the table: a release, what its slurmrestd serves (of what we speak) and what it brought.
struct Release {
    version: SlurmVersion,
    rest: &'static [RestVersion],
    brought: &'static [Feature],
}

impl Release {
    fn is_at_most(&self, version: SlurmVersion) -> bool {
        self.version.release() <= version.release()
    }
}

/// Oldest first. The first line is also what is assumed of a Slurm that is even older.
const RELEASES: [Release; 5] = [
    Release { version: SlurmVersion::new(24, 11), rest: &[RestVersion::V41, RestVersion::V42], brought: &[] },
    Release {
        version: SlurmVersion::new(25, 5),
        rest: &[RestVersion::V41, RestVersion::V42, RestVersion::V43],
        brought: &[Feature::NodeTopology, Feature::RestReservations],
    },
    Release {
        version: SlurmVersion::new(25, 11),
        rest: &[RestVersion::V41, RestVersion::V42, RestVersion::V43, RestVersion::V44],
        brought: &[
            Feature::HealthEndpoints,
            Feature::GroupReadableSlurmdbdConf,
            Feature::Metrics,
            Feature::ReconfigOnRestart,
            Feature::RestNewNode,
        ],
    },
    Release {
        version: SlurmVersion::new(26, 5),
        rest: &[RestVersion::V42, RestVersion::V43, RestVersion::V44, RestVersion::V45],
        brought: &[
            Feature::RestConf,
            Feature::RestRequeue,
            Feature::RestPartitions,
            Feature::RestdHealthEndpoints,
            Feature::GresAutoDetectFull,
            Feature::NodeUpdateTime,
        ],
    },
    Release {
        version: SlurmVersion::new(26, 11),
        rest: &[RestVersion::V43, RestVersion::V44, RestVersion::V45, RestVersion::V46],
        brought: &[],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_tags_say() {
        let table = [
            ("24.11", Some("24.11")),
            ("24.11.5", Some("24.11.5")),
            ("v25.05", Some("25.05")),
            ("26.05-ubuntu26.04", Some("26.05")),
            ("26.05.2-rockylinux9", Some("26.05.2")),
            ("25.11.0-0rc1", Some("25.11.0")),
            ("25.11.0rc1", Some("25.11.0")),
            ("25.11_dev", Some("25.11")),
            ("latest", None),
            ("", None),
            ("3.10", None),
            ("26.13", None),
            ("26.00", None),
            ("26.5", None),
            ("26", None),
            ("26.05.", None),
            ("26.05.1.2", None),
            ("26.05.99999999", None),
            ("26.05.0", Some("26.05.0")),
            ("25.11.03", None),
            ("25.11.03-1", None),
            ("ubuntu24.04", None),
            ("٢٦.٠٥", None),
        ];
        for (tag, expected) in table {
            let read = SlurmVersion::from_image_tag(tag).map(|version| version.to_string());
            assert_eq!(read.as_deref(), expected, "{tag}");
        }
    }

    #[test]
    fn reads_what_images_say() {
        let digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let table = [
            ("registry.example/slinkyproject/slurmctld:25.11-ubuntu24.04".to_owned(), Some("25.11")),
            ("localhost:5000/slurmd:24.11".to_owned(), Some("24.11")),
            ("localhost:5000/slurmd".to_owned(), None),
            ("slurmd".to_owned(), None),
            ("slurmd:latest".to_owned(), None),
            (format!("slurmd{digest}"), None),
            (format!("slurmd:26.05{digest}"), Some("26.05")),
        ];
        for (image, expected) in table {
            let read = SlurmVersion::from_image(&image).map(|version| version.to_string());
            assert_eq!(read.as_deref(), expected, "{image}");
        }
    }

    #[test]
    fn features_by_release() {
        use Feature::{HealthEndpoints, Metrics, NodeTopology, RestConf, RestNewNode, RestRequeue, RestReservations};
        let cumulative: [(&str, &[Feature], &[Feature]); 7] = [
            ("23.02", &[], &[NodeTopology]),
            ("24.11.9", &[], &[NodeTopology, RestReservations, HealthEndpoints]),
            ("25.05", &[NodeTopology, RestReservations], &[HealthEndpoints, Metrics, RestNewNode]),
            ("25.11", &[NodeTopology, HealthEndpoints, Metrics, RestNewNode], &[RestConf, RestRequeue]),
            ("26.05.5", &[NodeTopology, Metrics, RestConf, RestRequeue, Feature::GresAutoDetectFull], &[]),
            ("26.11", &[NodeTopology, RestConf], &[]),
            ("30.01", &[RestRequeue], &[]),
        ];
        for (version, has, lacks) in cumulative {
            let version = Some(version.parse().unwrap());
            assert!(has.iter().all(|feature| supports(version, *feature)), "{version:?}");
            assert!(!lacks.iter().any(|feature| supports(version, *feature)), "{version:?}");
        }
        assert!(!supports(None, NodeTopology), "an unknown version has the lowest features");
    }

    #[test]
    fn rest_versions_by_release() {
        let of = |text: &str| text.parse::<SlurmVersion>().unwrap().rest_versions();
        assert_eq!(of("23.02"), of("24.11"));
        assert_eq!(of("24.11"), [RestVersion::V41, RestVersion::V42]);
        assert_eq!(of("25.05.3").last(), Some(&RestVersion::V43));
        assert_eq!(of("26.05"), &RestVersion::ALL[1..5]);
        assert_eq!(of("26.11.0"), &RestVersion::ALL[2..]);
        assert_eq!(of("27.05"), of("26.11"), "an unknown newer release counts as the newest known one");
    }

    #[test]
    fn rest_versions_read_back() {
        for version in RestVersion::ALL {
            assert_eq!(version.to_string().parse(), Ok(version));
        }
        for text in ["", "v0.0.40", "v0.0.47", "0.0.41", "v0.0.041"] {
            text.parse::<RestVersion>().unwrap_err();
        }
    }
}
