//! Slurm clusters that the operator creates: start, scaling, and recovery from faults.
//!
//! One program, so that tests that mostly wait run in parallel. Tests that disturb others (a killed operator, broken nodes)
//! are separate programs.

mod accounting;
mod bad_input;
mod complete_example;
mod daemon_mode;
mod documented;
mod edits;
mod examples;
mod exporter;
mod first_cluster;
mod gpus;
mod host_network;
mod hybrid;
mod keys;
mod metrics;
mod outage;
mod quiet;
mod repair;
mod rest;
mod restricted;
mod scale;
mod trial;
mod troubleshooting;
