//! Updates of nodes.

use serde::{Serialize, Serializer};

use super::NoVal;
use crate::states::{NodeState, NodeStates};

/// An update of one or many nodes. Fields that are not set stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeUpdate {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<NodeStates>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    comment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "words")]
    features: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "words")]
    features_act: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topology_str: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resume_after: Option<NoVal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<NoVal>,
}

impl NodeUpdate {
    /// An empty update.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drains the node. Slurm requires a reason.
    #[must_use]
    pub fn drain(self, reason: impl Into<String>) -> Self {
        self.state(NodeState::Drain).reason(reason)
    }

    /// Lifts a drain. Some Slurm versions keep the reason.
    #[must_use]
    pub fn undrain(self) -> Self {
        self.state(NodeState::Undrain)
    }

    /// Returns a node from down or drain to service.
    #[must_use]
    pub fn resume(self) -> Self {
        self.state(NodeState::Resume)
    }

    /// Sets the node down at once; its jobs end. Slurm requires a reason.
    #[must_use]
    pub fn down(self, reason: impl Into<String>) -> Self {
        self.state(NodeState::Down).reason(reason)
    }

    /// Sets any other state that Slurm accepts.
    #[must_use]
    pub fn state(mut self, state: NodeState) -> Self {
        self.state = Some([state].into_iter().collect());
        self
    }

    /// Sets the reason; an empty text clears it.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Sets the comment; an empty text clears it.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Sets the extra text; an empty text clears it.
    #[must_use]
    pub fn extra(mut self, extra: impl Into<String>) -> Self {
        self.extra = Some(extra.into());
        self
    }

    /// Sets both the available and the active features.
    #[must_use]
    pub fn features<S: Into<String>>(mut self, features: impl IntoIterator<Item = S>) -> Self {
        let features: Vec<String> = features.into_iter().map(Into::into).collect();
        self.features_act = Some(features.clone());
        self.features = Some(features);
        self
    }

    /// Sets only the active features.
    #[must_use]
    pub fn active_features<S: Into<String>>(mut self, features: impl IntoIterator<Item = S>) -> Self {
        self.features_act = Some(features.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the location in the topology: `topo-switch:s2,topo-block:b2`. Since v0.0.43.
    #[must_use]
    pub fn topology(mut self, topology: impl Into<String>) -> Self {
        self.topology_str = Some(topology.into());
        self
    }

    /// Number of seconds after which a down or drained node resumes automatically.
    #[must_use]
    pub fn resume_after(mut self, seconds: u64) -> Self {
        self.resume_after = Some(NoVal::Is(seconds));
        self
    }

    /// Nodes with a lower weight are used first.
    #[must_use]
    pub fn weight(mut self, weight: u64) -> Self {
        self.weight = Some(NoVal::Is(weight));
        self
    }

    /// Whether the update changes the state.
    pub fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// What the update does, in one word.
    pub fn verb(&self) -> &'static str {
        let has = |state| self.state.as_ref().is_some_and(|states| states.has(state));
        if has(NodeState::Drain) {
            "drain"
        } else if has(NodeState::Undrain) {
            "undrain"
        } else if has(NodeState::Resume) {
            "resume"
        } else {
            "update"
        }
    }

    /// The reason, if this is a drain.
    pub fn drain_reason(&self) -> Option<&str> {
        self.reason.as_deref().filter(|_| self.state.as_ref().is_some_and(|state| state.has(NodeState::Drain)))
    }

    /// Whether the update sets the topology, which servers before v0.0.43 drop with only a warning.
    pub fn has_topology(&self) -> bool {
        self.topology_str.is_some()
    }

    /// The same update for these nodes.
    pub(crate) fn of(&self, names: Vec<String>) -> Self {
        Self { name: Some(names), ..self.clone() }
    }
}

/// Serializes words as a list; no words as an empty string, because slurmrestd ignores an empty list.
#[expect(clippy::ref_option, reason = "signature required by serde")]
fn words<S: Serializer>(words: &Option<Vec<String>>, serializer: S) -> Result<S::Ok, S::Error> {
    match words.as_deref() {
        None | Some([]) => serializer.serialize_str(""),
        Some(words) => words.serialize(serializer),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn says_only_what_is_to_change() {
        let table = [
            (NodeUpdate::new(), json!({})),
            (NodeUpdate::new().drain("why"), json!({"state": ["DRAIN"], "reason": "why"})),
            (NodeUpdate::new().undrain(), json!({"state": ["UNDRAIN"]})),
            (NodeUpdate::new().resume().reason(""), json!({"state": ["RESUME"], "reason": ""})),
            (NodeUpdate::new().down("why"), json!({"state": ["DOWN"], "reason": "why"})),
            (NodeUpdate::new().comment("c").extra("e"), json!({"comment": "c", "extra": "e"})),
            (NodeUpdate::new().features(["a", "b"]), json!({"features": ["a", "b"], "features_act": ["a", "b"]})),
            (NodeUpdate::new().active_features(["a"]), json!({"features_act": ["a"]})),
            (NodeUpdate::new().topology("t:x"), json!({"topology_str": "t:x"})),
            (NodeUpdate::new().weight(3), json!({"weight": {"set": true, "infinite": false, "number": 3}})),
            (NodeUpdate::new().comment("c").of(vec!["w0".into()]), json!({"name": ["w0"], "comment": "c"})),
        ];
        for (update, expected) in table {
            assert_eq!(serde_json::to_value(&update).unwrap(), expected);
        }
    }

    #[test]
    fn an_empty_list_of_features_is_sent_as_an_empty_string() {
        let update = NodeUpdate::new().features(Vec::<String>::new());
        assert_eq!(serde_json::to_value(&update).unwrap(), json!({"features": "", "features_act": ""}));
    }
}
