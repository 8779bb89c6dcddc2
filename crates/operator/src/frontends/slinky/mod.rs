//! The kinds of `slinky.slurm.net`, one directory each.

pub mod controller;
pub mod nodeset;
pub mod restapi;
pub mod token;
