//! How many workers there should be: who is made, who goes.

use std::collections::{BTreeMap, HashSet};

use jiff::SignedDuration;

use super::{
    cases::{Case, by_home},
    daemon::fit,
    decision::{Cause, Identity},
    identity,
    model::{Mode, Model, Scaling},
    order,
    pass::{Draft, Pass},
    seen::{KubeNode, Phase, Seen},
    status::Troubles,
};

/// A pod that ended is replaced after so long, so that one that always fails is no hot loop.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

/// What the number of workers asks for.
#[derive(Debug, Default)]
pub(super) struct Scale {
    /// How many there should be.
    pub(super) desired: u32,
    /// Workers to make.
    pub(super) create: Vec<Identity>,
    /// How many of the desired ones have no pod that stays.
    pub(super) missing: u32,
}

/// Decides who goes because of the number of workers, and who is made.
pub(super) fn decide(pass: &Pass<'_>, cases: &mut [Case<'_>], draft: &mut Draft) -> Scale {
    let mode = pass.model.scaling.mode();
    // While no worker can be created, none is removed that would only be replaced.
    let is_other_mode = |case: &Case<'_>| case.worker.mode() != mode && pass.model.blocked.is_none();
    for case in cases.iter_mut().filter(|case| case.is_alive() && is_other_mode(case)) {
        case.goes = Some(Cause::Mode);
    }
    for case in cases.iter_mut().filter(|case| case.stays() && case.worker.phase.is_over()) {
        match case.worker.created.map(|created| created + RETRY).filter(|ripe| pass.now < *ripe) {
            Some(ripe) => draft.wake(ripe),
            None => case.goes = Some(Cause::Finished),
        }
    }
    let mut scale = match pass.model.scaling {
        Scaling::Numbered { replicas, padding } => numbered(pass, cases, draft, replicas, padding),
        Scaling::PerNode => per_node(pass, cases, draft),
    };
    if is_switching(pass) {
        scale.create.clear();
    }
    scale
}

/// Whether workers of the other mode are on their way: which Slurm nodes they will be, nobody knows before they show.
fn is_switching(pass: &Pass<'_>) -> bool {
    let (model, seen) = (pass.model, pass.seen);
    if seen.creating.is_empty() {
        return false;
    }
    match model.scaling {
        Scaling::Numbered { .. } => seen.creating.iter().any(|name| identity::ordinal_of_name(model, name).is_none()),
        Scaling::PerNode => {
            let ours: HashSet<String> = seen.nodes.keys().map(|node| identity::pod_name_on(model, node)).collect();
            !seen.creating.iter().all(|name| ours.contains(name))
        }
    }
}

fn numbered(pass: &Pass<'_>, cases: &mut [Case<'_>], draft: &mut Draft, replicas: u32, padding: u8) -> Scale {
    let seen = pass.seen;
    let wanted = usize::try_from(replicas).unwrap_or(usize::MAX);
    let is_numbered = |case: &Case<'_>| case.worker.mode() == Mode::Numbered;
    let full = full(pass.model, cases);
    // It waits for its Kubernetes node, and another worker has that now: it must look for another one.
    let waits_in_vain = |case: &Case<'_>| {
        let target = case.worker.target.as_deref().filter(|_| case.worker.node.is_none());
        target.is_some_and(|target| full.contains(target))
    };
    for case in cases.iter_mut().filter(|case| is_numbered(case) && case.stays() && waits_in_vain(case)) {
        case.goes = Some(Cause::Duplicate);
    }
    let there = cases.iter().filter(|case| is_numbered(case)).count() + seen.creating.len();
    let living: Vec<usize> = indexes(cases, |case| is_numbered(case) && case.is_alive());
    let excess = (living.len() + seen.creating.len()).saturating_sub(wanted);
    for index in order::pick(pass, cases, living.clone(), excess, draft) {
        if let Some(case) = cases.get_mut(index) {
            case.goes = Some(Cause::ScaleIn);
        }
    }
    // One that has ended is replaced under its own name, so it fills no place.
    let staying = living.iter().filter_map(|index| cases.get(*index)).filter(|case| case.stays()).count();
    let slots = wanted.saturating_sub(there).min(pass.model.burst);
    Scale {
        desired: replicas,
        create: fill(pass, cases, &full, draft, slots, padding),
        missing: count(wanted.saturating_sub(staying)),
    }
}

/// Kubernetes nodes that have a worker and take no other one.
fn full<'a>(model: &Model, cases: &[Case<'a>]) -> HashSet<&'a str> {
    if !model.pins_to_node || model.oversubscribes {
        return HashSet::new();
    }
    let living = cases.iter().filter(|case| case.is_alive()).map(|case| case.worker);
    living.filter_map(|worker| worker.node.as_deref()).collect()
}

/// The free numbers from zero on. A number whose name or claim is still in use is waited for, not skipped.
fn fill(
    pass: &Pass<'_>,
    cases: &[Case<'_>],
    full: &HashSet<&str>,
    draft: &mut Draft,
    slots: usize,
    padding: u8,
) -> Vec<Identity> {
    let (model, seen) = (pass.model, pass.seen);
    if slots == 0 {
        return Vec::new();
    }
    let names = Names::of(seen, cases);
    let creating = seen.creating.iter().filter_map(|name| identity::ordinal_of_name(model, name));
    let used: HashSet<u32> = cases.iter().filter_map(|case| case.ordinal).chain(creating).collect();
    let free = (0..=u32::MAX).filter(|ordinal| !used.contains(ordinal)).take(slots);
    let identities = free.map(|ordinal| {
        let node = seen.recall.pinned.get(&ordinal).filter(|_| model.pins_to_node);
        let node = node.filter(|node| !full.contains(node.as_str())).and_then(|node| seen.nodes.get(node));
        let node = node.filter(|node| continues(model, node));
        identity::numbered(model, seen, ordinal, padding, node.map(|node| node.name.as_str()))
    });
    let ready = identities.filter(|identity| {
        let is_hostname_free = model.naming.host_network || !names.hosts.contains(identity.hostname.as_str());
        is_hostname_free && names.is_free(identity) && has_claims(seen, identity, &mut draft.troubles)
    });
    ready.collect()
}

/// Whether a worker that runs on this node may go on there, or come back to it.
pub(super) fn continues(model: &Model, node: &KubeNode) -> bool {
    fit(&model.placement, model.naming.host_network, node).continues
}

fn per_node(pass: &Pass<'_>, cases: &mut [Case<'_>], draft: &mut Draft) -> Scale {
    let (model, seen) = (pass.model, pass.seen);
    let mut scale = Scale::default();
    if seen.nodes.is_empty() {
        // No cluster is without nodes: nobody has told us yet.
        return scale;
    }
    let names = Names::of(seen, cases);
    let homes = by_home(cases, Mode::PerNode);
    let mut planned: HashSet<String> = HashSet::new();
    for node in seen.nodes.values() {
        let fit = fit(&model.placement, model.naming.host_network, node);
        let here = homes.get(node.name.as_str()).map_or(&[][..], Vec::as_slice);
        let keeper = sort_out(pass, cases, here, node, fit.continues);
        scale.desired += u32::from(fit.runs);
        scale.missing += u32::from(fit.runs && !keeper);
        if !fit.runs || !here.is_empty() || scale.create.len() >= model.burst {
            continue;
        }
        let hostname = identity::hostname_on(node);
        if !identity::is_hostname(hostname) {
            draft.troubles.bad_hostnames.push(node.name.clone());
            continue;
        }
        let identity = identity::for_node(model, seen, node);
        if seen.creating.contains(&identity.name) {
            continue;
        }
        if names.hosts.contains(hostname) || !names.is_free(&identity) || !planned.insert(hostname.to_owned()) {
            draft.troubles.shared_hostnames.insert(hostname.to_owned());
        } else if has_claims(seen, &identity, &mut draft.troubles) {
            scale.create.push(identity);
        }
    }
    let is_strange = |case: &&mut Case<'_>| case.stays() && case.worker.mode() == Mode::PerNode && case.node.is_none();
    for case in cases.iter_mut().filter(is_strange) {
        case.goes = Some(if case.worker.home().is_some() { Cause::Vanished } else { Cause::Misplaced });
    }
    scale
}

/// Says who of the workers on a node goes, and whether one stays.
fn sort_out(pass: &Pass<'_>, cases: &mut [Case<'_>], here: &[usize], node: &KubeNode, continues: bool) -> bool {
    let expected = identity::hostname_on(node);
    for index in here {
        let Some(case) = cases.get_mut(*index).filter(|case| case.stays()) else { continue };
        if !continues {
            case.goes = Some(Cause::Misplaced);
        } else if case.worker.hostname.as_deref() != Some(expected) && pass.model.blocked.is_none() {
            case.goes = Some(Cause::Renamed);
        }
    }
    let rank = |case: &Case<'_>| (!case.worker.is_healthy(), case.worker.created, case.worker.name.clone());
    let staying = || here.iter().copied();
    let best =
        staying().filter_map(|index| cases.get(index).filter(|case| case.stays()).map(|case| (rank(case), index)));
    let Some((_, best)) = best.min() else { return false };
    for index in staying().filter(|index| *index != best) {
        if let Some(case) = cases.get_mut(index).filter(|case| case.stays()) {
            case.goes = Some(Cause::Duplicate);
        }
    }
    true
}

/// Names that are in use.
struct Names<'a> {
    /// Of pods, also of those on their way.
    pods: HashSet<&'a str>,
    /// Of Slurm nodes.
    hosts: HashSet<&'a str>,
}

impl<'a> Names<'a> {
    fn of(seen: &'a Seen, cases: &[Case<'a>]) -> Self {
        let pods = cases.iter().map(|case| case.worker.name.as_str());
        Self {
            pods: pods.chain(seen.creating.iter().map(String::as_str)).collect(),
            hosts: cases.iter().filter_map(|case| case.name).collect(),
        }
    }

    fn is_free(&self, identity: &Identity) -> bool {
        !self.pods.contains(identity.name.as_str())
    }
}

/// Whether none of its claims is on its way out.
fn has_claims(seen: &Seen, identity: &Identity, troubles: &mut Troubles) -> bool {
    let leaving = |claim: &str| seen.claims.get(claim).is_some_and(|claim| claim.deleting);
    match identity.claims.iter().find(|usage| leaving(&usage.claim)) {
        None => true,
        Some(usage) => {
            troubles.leaving_claims.push(usage.claim.clone());
            false
        }
    }
}

/// The Kubernetes node of every worker that is bound to one.
pub(super) fn pins(pass: &Pass<'_>, cases: &[Case<'_>]) -> BTreeMap<u32, String> {
    let (model, seen) = (pass.model, pass.seen);
    if !model.pins_to_node || model.scaling == Scaling::PerNode {
        return BTreeMap::new();
    }
    let still = |node: &String| seen.nodes.get(node).is_some_and(|node| continues(model, node));
    let mut pins = seen.recall.pinned.clone();
    pins.retain(|_, node| still(node));
    for case in cases.iter().filter(|case| case.is_alive() && case.worker.phase == Phase::Running) {
        if let (Some(ordinal), Some(node)) = (case.ordinal, &case.worker.node) {
            pins.insert(ordinal, node.clone());
        }
    }
    pins
}

/// The places of the cases for which it holds.
pub(super) fn indexes(cases: &[Case<'_>], holds: impl Fn(&Case<'_>) -> bool) -> Vec<usize> {
    cases.iter().enumerate().filter(|(_, case)| holds(case)).map(|(index, _)| index).collect()
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
