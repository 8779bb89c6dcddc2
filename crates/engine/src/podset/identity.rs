//! The identity of a worker: name, hostname, labels and claims.

use slurm_operator_api::common::vocabulary::Vocabulary;

use super::{
    decision::{ClaimUse, Identity},
    facts::{Facts, KubeNode, Worker},
    model::{Mode, Model},
};

/// Maximum length of a label value; the pod name is used as one.
const MAX_LABEL: usize = 63;

/// The ordinal of a worker. Padding is ignored: it may have changed since the worker was created.
pub(super) fn ordinal(model: &Model, worker: &Worker) -> Option<u32> {
    if worker.mode() == Mode::PerNode {
        return None;
    }
    let label = worker.index.as_deref().and_then(number);
    label.or_else(|| ordinal_of_name(model, &worker.name))
}

/// The ordinal in the name of a worker pod.
pub(super) fn ordinal_of_name(model: &Model, pod: &str) -> Option<u32> {
    pod.strip_prefix(&model.name)?.strip_prefix('-').and_then(number)
}

/// The ordinal in the hostname of a numbered worker.
pub(super) fn ordinal_of_hostname(model: &Model, hostname: &str) -> Option<u32> {
    match &model.naming.hostname_prefix {
        Some(prefix) => hostname.strip_prefix(prefix.as_str()).and_then(number),
        None => ordinal_of_name(model, hostname),
    }
}

fn number(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_plain { text.parse().ok() } else { None }
}

/// An ordinal with at least `padding` digits.
fn padded(ordinal: u32, padding: u8) -> String {
    format!("{ordinal:0width$}", width = usize::from(padding))
}

/// The name of a numbered worker, as in a `StatefulSet`.
fn pod_name(model: &Model, ordinal: u32, padding: u8) -> String {
    format!("{}-{}", model.name, padded(ordinal, padding))
}

/// The name of a claim, as in a `StatefulSet`; `of` is the padded ordinal or the hostname of the worker.
fn claim_name(model: &Model, volume: &str, of: &str) -> String {
    format!("{volume}-{}-{of}", model.name)
}

/// The hostname of a numbered worker.
pub(super) fn numbered_hostname(model: &Model, ordinal: u32, padding: u8) -> String {
    match &model.naming.hostname_prefix {
        Some(prefix) => format!("{prefix}{}", padded(ordinal, padding)),
        None => pod_name(model, ordinal, padding),
    }
}

/// The identity of a numbered worker.
pub(super) fn numbered(model: &Model, facts: &Facts, ordinal: u32, padding: u8, node: Option<&str>) -> Identity {
    let index = padded(ordinal, padding);
    let name = pod_name(model, ordinal, padding);
    let hostname = numbered_hostname(model, ordinal, padding);
    let mut identity = Identity {
        claims: claims(model, facts, &index),
        ordinal: Some(ordinal),
        node: node.map(str::to_owned),
        ..identity(model, name, hostname, Mode::Numbered)
    };
    identity.labels.insert(model.vocabulary.label.pod_index, index);
    identity
}

/// The identity of the worker on a Kubernetes node.
pub(super) fn for_node(model: &Model, facts: &Facts, node: &KubeNode) -> Identity {
    let hostname = hostname_on(model.vocabulary, node).to_owned();
    let mut identity = Identity {
        claims: claims(model, facts, &hostname),
        node: Some(node.name.clone()),
        ..identity(model, pod_name_on(model, &node.name), hostname, Mode::PerNode)
    };
    let key = model.vocabulary.annotation.topology;
    if let Some(topology) = node.annotations.get(key) {
        identity.annotations.insert(key, topology.clone());
    }
    identity
}

fn identity(model: &Model, name: String, hostname: String, mode: Mode) -> Identity {
    let label = &model.vocabulary.label;
    let labels = [
        (label.pod_name, name.clone()),
        (label.pod_hostname, hostname.clone()),
        (label.scaling_mode, mode.as_str().to_owned()),
    ];
    Identity { name, hostname, labels: labels.into(), ..Identity::default() }
}

/// The hostname of the worker on a Kubernetes node: that of the node, without its domain.
pub(super) fn hostname_on<'a>(vocabulary: &Vocabulary, node: &'a KubeNode) -> &'a str {
    let key = vocabulary.annotation.hostname_override;
    let override_ = node.annotations.get(key).filter(|text| !text.is_empty());
    override_.map_or_else(|| node.name.split('.').next().unwrap_or(&node.name), String::as_str)
}

/// Whether the API server accepts the text as a hostname.
pub(super) fn is_hostname(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = (1..=MAX_LABEL).contains(&text.len()) && text.bytes().all(inner);
    fits && !text.starts_with('-') && !text.ends_with('-')
}

/// The name of the pod on a Kubernetes node: deterministic, so that two pods cannot be created by mistake.
pub(super) fn pod_name_on(model: &Model, node: &str) -> String {
    let name = format!("{}-{node}", model.name);
    if name.len() <= MAX_LABEL {
        return name;
    }
    let hash = fnv(name.as_bytes());
    let head: String = name.chars().take(MAX_LABEL - 9).collect();
    format!("{}-{hash:08x}", head.trim_end_matches(['-', '.']))
}

/// FNV-1a: short and stable across releases.
fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The claims of a worker; `of` is its padded ordinal or its hostname.
pub(super) fn claims(model: &Model, facts: &Facts, of: &str) -> Vec<ClaimUse> {
    let uses = model.claims.iter().map(|volume| {
        let claim = claim_name(model, volume, of);
        let is_missing = !facts.claims.contains_key(&claim);
        ClaimUse { volume: volume.clone(), claim, is_missing, by_set: model.retention.with_set }
    });
    uses.collect()
}

/// The claims of an existing worker.
pub(super) fn claims_of(model: &Model, facts: &Facts, worker: &Worker) -> Vec<ClaimUse> {
    let of = match worker.mode() {
        Mode::PerNode => worker.hostname.as_deref(),
        Mode::Numbered => worker.index.as_deref().or_else(|| worker.name.strip_prefix(&model.name)?.strip_prefix('-')),
    };
    of.map(|of| claims(model, facts, of)).unwrap_or_default()
}
