//! Cache of serialized node records: most polls of ten thousand nodes find only a few changed.

use std::collections::BTreeMap;

use super::cluster::Cluster;
use super::node::Node;
use super::records::Records;
use super::render::node_field;

/// Cache for one REST version.
#[derive(Debug, Default)]
pub(super) struct NodeTexts {
    texts: BTreeMap<String, (u64, Vec<u8>)>,
    /// All records concatenated, and the revision of the cluster that they show.
    all: Option<(u64, Vec<u8>)>,
}

impl NodeTexts {
    /// The records of all nodes, concatenated.
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
        // Clone the name only for new nodes.
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
