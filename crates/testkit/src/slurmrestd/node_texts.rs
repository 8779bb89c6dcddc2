//! The nodes' records as text, kept until a node changes: most polls of ten thousand nodes find few of them changed.

use std::collections::BTreeMap;

use super::cluster::Cluster;
use super::node::Node;
use super::records::Records;
use super::render::node_field;

/// Kept texts for one REST version.
#[derive(Debug, Default)]
pub(super) struct NodeTexts {
    texts: BTreeMap<String, (u64, Vec<u8>)>,
    /// All of them in a row, and the revision of the cluster that they show.
    all: Option<(u64, Vec<u8>)>,
}

impl NodeTexts {
    /// The records of all nodes, one after the other.
    pub(super) fn all(&mut self, records: &Records, cluster: &Cluster) -> &[u8] {
        let current = self.all.as_ref().is_some_and(|(revision, _)| *revision == cluster.revision);
        if !current {
            self.all = Some((cluster.revision, self.assemble(records, cluster)));
        }
        self.all.as_ref().map(|(_, text)| text.as_slice()).unwrap_or_default()
    }

    fn assemble(&mut self, records: &Records, cluster: &Cluster) -> Vec<u8> {
        let old = self.all.take().map(|(_, text)| text);
        let mut all = Vec::with_capacity(old.map_or(0, |text| text.len() + 4096));
        for node in cluster.nodes() {
            all.extend_from_slice(if all.is_empty() { b"\n    " } else { b",\n    " });
            all.extend_from_slice(self.text(records, cluster, node));
        }
        if self.texts.len() > cluster.nodes().len() {
            self.texts.retain(|name, _| cluster.node(name).is_some());
        }
        all
    }

    /// The record of one node.
    pub(super) fn text(&mut self, records: &Records, cluster: &Cluster, node: &Node) -> &[u8] {
        let render = || records.node.render(|field| node_field(cluster, node, field));
        // A clone of the name only for nodes that are new.
        if !self.texts.contains_key(&node.name) {
            self.texts.insert(node.name.clone(), (node.revision, render()));
        }
        let Some((revision, text)) = self.texts.get_mut(&node.name) else { return &[] };
        if *revision != node.revision {
            (*revision, *text) = (node.revision, render());
        }
        text
    }
}
