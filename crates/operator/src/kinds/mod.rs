//! The front end of `slinky.slurm.net`: one folder per kind.

pub mod controller;
mod read;
pub mod restapi;
pub mod token;
