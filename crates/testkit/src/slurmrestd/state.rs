//! The state of a node: one base state and any number of flags.

use std::fmt;

/// Base state of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Base {
    /// Configured, but never registered.
    Unknown,
    /// Runs no jobs.
    Down,
    /// No CPUs are allocated.
    Idle,
    /// All CPUs are allocated.
    Allocated,
    /// Some CPUs are allocated.
    Mixed,
    /// Not yet part of the cluster.
    Future,
}

impl Base {
    fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Down => "DOWN",
            Self::Idle => "IDLE",
            Self::Allocated => "ALLOCATED",
            Self::Mixed => "MIXED",
            Self::Future => "FUTURE",
        }
    }
}

/// Flags of a node state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Flag {
    /// In a reservation that is not for maintenance.
    Reserved,
    /// Accepts no new jobs.
    Drain,
    /// A job is being cleaned up.
    Completing,
    /// slurmd does not respond.
    NotResponding,
    /// Marked as failing by an admin.
    Fail,
    /// In a maintenance reservation.
    Maintenance,
    /// Registered with less than configured.
    InvalidReg,
    /// A dynamic node (`slurmd -Z`).
    DynamicNorm,
}

impl Flag {
    /// In the order of slurmrestd.
    const ALL: [Self; 8] = [
        Self::Reserved,
        Self::Drain,
        Self::Completing,
        Self::NotResponding,
        Self::Fail,
        Self::Maintenance,
        Self::InvalidReg,
        Self::DynamicNorm,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "RESERVED",
            Self::Drain => "DRAIN",
            Self::Completing => "COMPLETING",
            Self::NotResponding => "NOT_RESPONDING",
            Self::Fail => "FAIL",
            Self::Maintenance => "MAINTENANCE",
            Self::InvalidReg => "INVALID_REG",
            Self::DynamicNorm => "DYNAMIC_NORM",
        }
    }

    fn bit(self) -> u16 {
        match self {
            Self::Reserved => 1,
            Self::Drain => 1 << 1,
            Self::Completing => 1 << 2,
            Self::NotResponding => 1 << 3,
            Self::Fail => 1 << 4,
            Self::Maintenance => 1 << 5,
            Self::InvalidReg => 1 << 6,
            Self::DynamicNorm => 1 << 7,
        }
    }
}

/// A base state with its flags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State {
    pub base: Base,
    flags: u16,
}

impl State {
    /// With exactly these flags.
    #[must_use]
    pub fn new(base: Base, flags: &[Flag]) -> Self {
        Self { base, flags: flags.iter().fold(0, |all, flag| all | flag.bit()) }
    }

    #[must_use]
    pub fn has(self, flag: Flag) -> bool {
        self.flags & flag.bit() != 0
    }

    /// Sets or clears the flag.
    pub fn set(&mut self, flag: Flag, on: bool) {
        if on {
            self.flags |= flag.bit();
        } else {
            self.flags &= !flag.bit();
        }
    }

    /// State words, base state first.
    #[must_use]
    pub fn words(self) -> Vec<&'static str> {
        let flags = Flag::ALL.into_iter().filter(|flag| self.has(*flag)).map(Flag::as_str);
        std::iter::once(self.base.as_str()).chain(flags).collect()
    }

    /// Whether the scheduler may start a job there, if CPUs are free.
    #[must_use]
    pub fn takes_jobs(self) -> bool {
        let barred = [Flag::Drain, Flag::NotResponding, Flag::Fail, Flag::Maintenance, Flag::Reserved];
        matches!(self.base, Base::Idle | Base::Mixed) && !barred.into_iter().any(|flag| self.has(flag))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join("+"))
    }
}
