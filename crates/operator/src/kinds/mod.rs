//! The front end of `slinky.slurm.net`: one folder per kind.

pub mod nodeset;
pub mod token;
