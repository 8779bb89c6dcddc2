//! `cargo bench -p slurm --bench hostlist`: expands and folds the host names of a large cluster.

use divan::{Bencher, black_box};
use slurm::hostlist::{HostlistError, count, expand, fold};

const HOSTS: usize = 10_000;

fn main() {
    divan::main();
}

fn list() -> String {
    format!("gpu-[00001-{HOSTS:05}]")
}

/// The list that Slurm prints for a cluster with one kind of node.
#[divan::bench]
fn expand_one_range() -> Result<Vec<String>, HostlistError> {
    expand(black_box(&list()))
}

/// The nodes of many small jobs.
#[divan::bench]
fn expand_many_entries(bencher: Bencher) {
    let entries: Vec<String> = (0..HOSTS).map(|n| format!("gpu-{n}")).collect();
    let list = entries.join(",");
    bencher.bench(|| expand(black_box(&list)));
}

#[divan::bench]
fn count_one_range() -> Result<usize, HostlistError> {
    count(black_box(&list()))
}

#[divan::bench]
fn fold_one_run(bencher: Bencher) {
    let names: Vec<String> = (0..HOSTS).map(|n| format!("gpu-{n}")).collect();
    bencher.bench(|| fold(black_box(&names).iter().map(String::as_str)));
}

/// No two names form a range.
#[divan::bench]
fn fold_with_gaps(bencher: Bencher) {
    let names: Vec<String> = (0..HOSTS).map(|n| format!("pool{}-{}", n % 7, n * 2)).collect();
    bencher.bench(|| fold(black_box(&names).iter().map(String::as_str)));
}
