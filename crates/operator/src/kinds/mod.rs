//! The kinds of `slinky.slurm.net`, one directory each.

pub mod controller;
pub mod nodeset;
mod read;
pub mod restapi;
pub mod token;
