//! Slurm clusters that the operator makes: how they start, grow, shrink, and get over what befalls them.
//!
//! One program, so that scenes which only wait do so side by side. What harms others (a killed operator, broken nodes) has
//! a program of its own.

mod bad_input;
mod daemon_mode;
mod edits;
mod first_cluster;
mod host_network;
mod outage;
mod quiet;
mod repair;
mod scale;
