//! What a human wants to see in the events: one for each kind of deed, not one for each worker.

use super::{
    cases::{scale_in_reason, update_reason},
    decision::{Cause, Deed},
    model::Model,
    status::fold,
};
use crate::machine::Note;

/// Tells the deeds.
pub(super) fn tell(model: &Model, deeds: &[Deed]) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut note = |is_warning, reason, text| notes.push(Note { is_warning, reason, text });
    let created = pods(deeds, |deed| match deed {
        Deed::Create(identity) => Some(&identity.name),
        _ => None,
    });
    if let Some((number, names)) = created {
        note(false, "ScalingUp", format!("making {number} workers: {names}"));
    }
    for deed in deeds {
        match deed {
            Deed::Drain { nodes, reason } => {
                let names = fold(nodes.iter().map(String::as_str));
                note(false, occasion(model, reason), format!("draining {names}: {reason}"));
            }
            Deed::Undrain { nodes } | Deed::Resume { nodes } => {
                let names = fold(nodes.iter().map(String::as_str));
                note(false, "Undraining", format!("{names} may run jobs again"));
            }
            Deed::Requeue { job } => note(true, "DrainTimeout", format!("requeueing job {job}: it outlasts the drain")),
            Deed::Kill { job } => note(true, "DrainTimeout", format!("ending job {job}: it outlasts the drain")),
            _ => {}
        }
    }
    for (reason, causes) in REMOVALS {
        let removed = pods(deeds, |deed| match deed {
            Deed::Delete(removal) if causes.contains(&removal.why) => Some(&removal.name),
            _ => None,
        });
        if let Some((number, names)) = removed {
            note(*reason == "FailedDaemonPod", reason, format!("removing {number} pods: {names}"));
        }
    }
    let forgotten = pods(deeds, |deed| match deed {
        Deed::Forget { node } => Some(node),
        _ => None,
    });
    if let Some((_, names)) = forgotten {
        note(false, "DefunctSlurmNodePruned", format!("removing the records of workers that are gone: {names}"));
    }
    notes
}

/// Event reasons of the Go operator where it has one.
const REMOVALS: &[(&str, &[Cause])] = &[
    (
        "ScalingDown",
        &[Cause::ScaleIn, Cause::Mode, Cause::Misplaced, Cause::Vanished, Cause::Duplicate, Cause::Deleted],
    ),
    ("RollingUpdate", &[Cause::Update]),
    ("HostnameMismatch", &[Cause::Renamed]),
    ("FailedDaemonPod", &[Cause::Finished]),
];

fn occasion(model: &Model, reason: &str) -> &'static str {
    if reason == update_reason(model) {
        "RollingUpdate"
    } else if reason == scale_in_reason(model) {
        "ScalingDown"
    } else {
        "NodeCordon"
    }
}

fn pods<'a>(deeds: &'a [Deed], name: impl Fn(&'a Deed) -> Option<&'a String>) -> Option<(usize, String)> {
    let names: Vec<&str> = deeds.iter().filter_map(name).map(String::as_str).collect();
    (!names.is_empty()).then(|| (names.len(), fold(names.iter().copied())))
}
