//! Responses about nodes.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};

use super::dispatch::CallContext;
use super::refusal::Refusal;
use super::release::RestVersion;
use super::render::number;
use super::reply::{Diagnostics, Reply, failure};
use super::request;
use super::update::NodeUpdate;

impl CallContext<'_> {
    fn node_list(&mut self, one: Option<&str>) -> Reply {
        let fields = Map::from_iter([
            ("last_update".to_owned(), number(self.cluster.now())),
            ("meta".to_owned(), self.meta()),
            ("errors".to_owned(), json!([])),
            ("warnings".to_owned(), json!([])),
        ]);
        match one.and_then(|name| self.cluster.node(name)) {
            Some(node) => {
                let text = [b"\n    ", self.texts.text(self.records, self.cluster, node)].concat();
                Reply::list("nodes", &text, &fields)
            }
            None if self.blank => Reply::list("nodes", b"", &fields),
            None => Reply::list("nodes", self.texts.all(self.records, self.cluster), &fields),
        }
    }

    pub(super) fn nodes(&mut self) -> Reply {
        if let Some(bad) = self.bad_update_time("_dump_nodes") {
            return bad;
        }
        if self.unchanged_since(self.cluster.changed.nodes) {
            return Reply::unchanged();
        }
        if let Some(stumble) = self.stumble() {
            return stumble;
        }
        self.node_list(None)
    }

    /// The nodes changed, but the partitions, which are read with them, did not.
    fn stumble(&self) -> Option<Reply> {
        let stumbles = self.cluster.settings.release.stumbles_over_partitions();
        if !stumbles || !self.unchanged_since(self.cluster.changed.partitions) {
            return None;
        }
        let Refusal { number, text } = Refusal::UNSPECIFIED;
        let diagnostics = Diagnostics::error(number, text, "Unable to query partitions", "_dump_nodes");
        Some(Reply::json(StatusCode::INTERNAL_SERVER_ERROR, json!({}), self.meta(), diagnostics))
    }

    pub(super) fn node(&mut self) -> Reply {
        let name = self.call.parameter;
        if self.blank || self.cluster.node(name).is_none() {
            let (description, source) = failure(self.call.route.endpoint, true, name);
            return self.respond(json!({}), Diagnostics::error(0, "No error", &description, source));
        }
        if let Some(bad) = self.bad_update_time("_dump_nodes").or_else(|| self.stumble()) {
            return bad;
        }
        self.node_list(Some(name))
    }

    pub(super) fn update_node(&mut self) -> Result<Reply, Refusal> {
        let Some(fields) = request::object(&self.request.body) else { return Ok(self.bad_body()) };
        self.update(&[self.call.parameter.to_owned()], &fields, Diagnostics::default())
    }

    pub(super) fn update_nodes(&mut self) -> Result<Reply, Refusal> {
        let Some(fields) = request::object(&self.request.body) else { return Ok(self.bad_body()) };
        let name = fields.get("name").cloned().unwrap_or_default();
        self.update(&request::nodes(&name)?, &fields, Diagnostics::default())
    }

    fn update(
        &mut self,
        names: &[String],
        fields: &Map<String, Value>,
        diagnostics: Diagnostics,
    ) -> Result<Reply, Refusal> {
        let (update, diagnostics) = self.node_update(fields, expect_lists(fields, diagnostics));
        if diagnostics.errors.is_empty() {
            self.cluster.update_nodes(names, &update, &self.user)?;
            return Ok(self.respond(json!({}), diagnostics));
        }
        // An invalid state: the parser complains, and slurmctld then gets none.
        let refused = self.cluster.update_nodes(names, &NodeUpdate::state("?"), &self.user);
        let mut diagnostics = diagnostics;
        if let Err(refusal) = refused {
            let (description, source) = failure(self.call.route.endpoint, true, self.call.parameter);
            diagnostics.errors.extend(Diagnostics::error(refusal.number, refusal.text, &description, source).errors);
        }
        Ok(Reply::json(StatusCode::INTERNAL_SERVER_ERROR, json!({}), self.meta(), diagnostics))
    }

    fn node_update(&self, fields: &Map<String, Value>, mut diagnostics: Diagnostics) -> (NodeUpdate, Diagnostics) {
        let mut update = NodeUpdate::default();
        for (key, value) in fields {
            match key.as_str() {
                "state" => update.state = request::words(value),
                "reason" => update.reason = request::text(value),
                "comment" => update.comment = request::text(value),
                "extra" => update.extra = request::text(value),
                "gres" => update.gres = request::text(value),
                "features" => update.features = Some(request::words(value)),
                "features_act" => update.active_features = Some(request::words(value)),
                "topology_str" if self.call.version >= RestVersion::V43 => update.topology = request::text(value),
                "weight" => update.weight = request::number(value).and_then(|weight| u32::try_from(weight).ok()),
                "address" => update.address = request::words(value).into_iter().next(),
                "name" | "cpu_bind" | "hostname" | "resume_after" | "reason_uid" | "node_state" => {}
                _ => {
                    let type_name = request::type_name(value);
                    let text =
                        format!("Ignoring unknown field \"{key}\" of type {type_name} in DATA_PARSER_UPDATE_NODE_MSG");
                    diagnostics = diagnostics.and_warn(&text, &format!("#/{key}/"));
                }
            }
        }
        for (index, word) in update.state.iter().enumerate().filter(|(_, word)| !is_state(word)) {
            let text = format!("Unknown flag \"{word}\"");
            let source = format!("#/state[{index}]/");
            diagnostics
                .errors
                .extend(Diagnostics::error(9207, "Data parser unable to parse invalid flag", &text, &source).errors);
        }
        (update, diagnostics)
    }

    pub(super) fn delete_node(&mut self) -> Result<Reply, Refusal> {
        self.cluster.delete_node(self.call.parameter)?;
        Ok(self.done())
    }

    pub(super) fn new_node(&mut self) -> Result<Reply, Refusal> {
        let Some(fields) = request::object(&self.request.body) else { return Ok(self.bad_body()) };
        let conf = fields.get("node_conf").and_then(request::text).unwrap_or_default();
        self.cluster.new_nodes(&conf)?;
        Ok(self.done())
    }
}

/// A string instead of a list is accepted with a warning.
fn expect_lists(fields: &Map<String, Value>, diagnostics: Diagnostics) -> Diagnostics {
    let texts = ["name", "features", "features_act", "address"];
    let texts = texts.into_iter().filter_map(|key| Some((key, fields.get(key)?.as_str()?)));
    texts.fold(diagnostics, |diagnostics, (key, text)| {
        let expected = "Expected OpenAPI type=array (Slurm type=list) but got OpenAPI type=string (Slurm type=string)";
        diagnostics.and_warn(&format!("{expected}: \"{text}\""), &format!("#/{key}/"))
    })
}

/// States that an update may contain, including those that the model ignores.
fn is_state(word: &str) -> bool {
    const STATES: [&str; 14] = [
        "DRAIN",
        "UNDRAIN",
        "RESUME",
        "IDLE",
        "DOWN",
        "FAIL",
        "FUTURE",
        "POWER_DOWN",
        "POWER_UP",
        "POWER_DRAIN",
        "NOT_RESPONDING",
        "REBOOT_REQUESTED",
        "REBOOT_CANCELED",
        "MAINTENANCE",
    ];
    STATES.contains(&word.to_ascii_uppercase().as_str())
}
