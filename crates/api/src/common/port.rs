//! The ports that Slurm's daemons listen on.

/// slurmctld
pub const SLURMCTLD: i32 = 6817;
/// slurmd
pub const SLURMD: i32 = 6818;
/// slurmdbd
pub const SLURMDBD: i32 = 6819;
/// slurmrestd
pub const SLURMRESTD: i32 = 6820;
/// sshd
pub const SSH: i32 = 22;
