//! Parts of pods of a cluster whose jobs share a root file system (the jail): where they run, and what they mount.
//!
//! Such a cluster names its sets of Kubernetes nodes and its volumes once, and its daemons refer to them. What is wrong is said
//! for all of it at once, each with the field to correct.

pub mod filters;
pub mod volumes;

use slurm_operator_api::common::validation::FieldError;

/// The entry with this name.
fn find<'a, T>(
    entries: &'a [T],
    name_of: impl Fn(&T) -> &str,
    wanted: &str,
    path: &str,
    list: &str,
) -> Result<&'a T, FieldError> {
    entries.iter().find(|entry| name_of(entry) == wanted).ok_or_else(|| {
        let names: Vec<&str> = entries.iter().map(&name_of).collect();
        let known =
            if names.is_empty() { "which is empty".to_owned() } else { format!("which has {}", names.join(", ")) };
        FieldError::new(path, format!("`{wanted}` is not in {list}, {known}"))
    })
}

/// What is wrong with names in a list of the spec: each must be there once.
fn repeated<'a>(names: impl Iterator<Item = &'a str>, list: &str) -> Vec<FieldError> {
    let names: Vec<&str> = names.collect();
    let earlier = |(at, name): (usize, &&str)| {
        let first = names.iter().position(|other| other == name).filter(|first| *first < at)?;
        Some(FieldError::new(format!("{list}[{at}].name"), format!("`{name}` is the name of {list}[{first}], too")))
    };
    names.iter().enumerate().filter_map(earlier).collect()
}
