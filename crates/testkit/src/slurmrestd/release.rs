//! What the releases of Slurm differ in, as far as REST shows it.

use std::fmt;

pub use slurm::version::RestVersion;

/// A release of Slurm that the fake can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Release {
    /// 24.11: reservations can only be looked at by REST; without accounting, reasons outlive their drain.
    V24_11,
    /// 25.05: reservations and topology by REST.
    V25_05,
    /// 25.11: new nodes by REST.
    V25_11,
    /// 26.05: configuration and requeue by REST.
    V26_05,
    /// 26.11: no REST version of 24.11 any more.
    V26_11,
}

impl Release {
    /// All of them, oldest first.
    pub const ALL: [Self; 5] = [Self::V24_11, Self::V25_05, Self::V25_11, Self::V26_05, Self::V26_11];

    /// Major, minor and micro version, as `meta.slurm.version` has them.
    #[must_use]
    pub fn parts(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::V24_11 => ("24", "11", "5"),
            Self::V25_05 => ("25", "05", "3"),
            Self::V25_11 => ("25", "11", "2"),
            Self::V26_05 => ("26", "05", "5"),
            Self::V26_11 => ("26", "11", "0"),
        }
    }

    /// The full version, as in `meta.slurm.release`.
    #[must_use]
    pub fn version(self) -> String {
        let (major, minor, micro) = self.parts();
        format!("{major}.{minor}.{micro}")
    }

    /// The REST versions that its slurmrestd serves.
    ///
    /// The real ones also serve v0.0.40 (up to 25.05). Nothing of ours speaks it, so the fake does not either.
    #[must_use]
    pub fn rest_versions(self) -> &'static [RestVersion] {
        use RestVersion::{V41, V42, V43, V44, V45, V46};
        match self {
            Self::V24_11 => &[V41, V42],
            Self::V25_05 => &[V41, V42, V43],
            Self::V25_11 => &[V41, V42, V43, V44],
            Self::V26_05 => &[V42, V43, V44, V45],
            Self::V26_11 => &[V43, V44, V45, V46],
        }
    }

    /// Undraining and resuming clear the reason by themselves. Before, only accounting does it on its way.
    #[must_use]
    pub fn clears_reason(self) -> bool {
        self >= Self::V26_05
    }

    /// What slurmctld refuses is answered 422 or 404. Before, most of it is answered 500.
    #[must_use]
    pub fn blames_client(self) -> bool {
        self >= Self::V26_05
    }

    /// With `update_time`, nodes that changed while no partition did are answered with an error. Mended in 26.05.4.
    #[must_use]
    pub fn stumbles_over_partitions(self) -> bool {
        self < Self::V26_05
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, _) = self.parts();
        write!(f, "{major}.{minor}")
    }
}
