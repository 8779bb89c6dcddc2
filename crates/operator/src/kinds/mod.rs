//! The front end of `slinky.slurm.net`: one folder per kind.

pub mod controller;
pub mod nodeset;
mod read;
pub mod restapi;
pub mod token;
