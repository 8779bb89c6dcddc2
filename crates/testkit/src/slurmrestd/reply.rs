//! Responses in the format of slurmrestd.

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use super::routes::Endpoint;

/// A response to send.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub status: StatusCode,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    None,
    Text(&'static str),
    Json(Bytes),
}

impl Reply {
    /// A JSON response with the fields that every response has.
    pub(super) fn json(status: StatusCode, mut fields: Value, meta: Value, diagnostics: Diagnostics) -> Self {
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("meta".to_owned(), meta);
            fields.insert("errors".to_owned(), Value::Array(diagnostics.errors));
            fields.insert("warnings".to_owned(), Value::Array(diagnostics.warnings));
        }
        let text = serde_json::to_vec_pretty(&fields).unwrap_or_default();
        Self { status, content: Content::Json(text.into()) }
    }

    /// The same with a long list of already serialized records.
    pub(super) fn list(key: &str, records: &[u8], fields: &Map<String, Value>) -> Self {
        let tail = serde_json::to_vec_pretty(fields).unwrap_or_default();
        let mut text = Vec::with_capacity(records.len() + tail.len() + 64);
        text.extend_from_slice(b"{\n  \"");
        text.extend_from_slice(key.as_bytes());
        text.extend_from_slice(b"\": [");
        text.extend_from_slice(records);
        text.extend_from_slice(if records.is_empty() { b"]," } else { b"\n  ]," });
        text.extend_from_slice(tail.strip_prefix(b"{").unwrap_or(&tail));
        Self { status: StatusCode::OK, content: Content::Json(text.into()) }
    }

    pub(super) fn text(status: StatusCode, text: &'static str) -> Self {
        Self { status, content: Content::Text(text) }
    }

    /// Whether this is the response after slurmrestd has tried for a while to reach slurmctld.
    pub(super) fn waited_for_slurmctld(&self) -> bool {
        matches!(self.status, StatusCode::BAD_GATEWAY | StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// 304: nothing changed.
    pub(super) fn unchanged() -> Self {
        Self { status: StatusCode::NOT_MODIFIED, content: Content::None }
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let (kind, body) = match self.content {
            Content::None => (None, Body::empty()),
            Content::Text(text) => (Some("text/plain"), Body::from(text)),
            Content::Json(text) => (Some("application/json"), Body::from(text)),
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if let Some(kind) = kind {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        // The real slurmrestd closes the connection after each error.
        if self.status.is_client_error() || self.status.is_server_error() {
            headers.insert(header::CONNECTION, HeaderValue::from_static("Close"));
        }
        response
    }
}

/// Errors and warnings of a response.
#[derive(Clone, Debug, Default)]
pub(super) struct Diagnostics {
    pub errors: Vec<Value>,
    pub warnings: Vec<Value>,
}

impl Diagnostics {
    pub(super) fn error(number: i32, error: &str, description: &str, source: &str) -> Self {
        let error = json!({
            "description": description, "error_number": number, "error": error, "source": source,
        });
        Self { errors: vec![error], warnings: Vec::new() }
    }

    pub(super) fn warning(description: &str, source: &str) -> Self {
        let warning = json!({"description": description, "source": source});
        Self { errors: Vec::new(), warnings: vec![warning] }
    }

    pub(super) fn and_warn(mut self, description: &str, source: &str) -> Self {
        self.warnings.push(json!({"description": description, "source": source}));
        self
    }
}

/// The token is invalid.
pub(super) const UNAUTHENTICATED: Refusal = Refusal { number: 1007, text: "Protocol authentication error" };

/// Description and source function that slurmrestd reports for a failed call.
pub(super) fn failure(endpoint: Endpoint, newer: bool, parameter: &str) -> (String, &'static str) {
    let (text, source) = match endpoint {
        Endpoint::Diag => ("slurm_get_statistics() failed to get slurmctld statistics", "op_handler_diag"),
        Endpoint::Conf => ("slurm_load_ctl_conf() failed", "_dump_config"),
        Endpoint::Reconfigure => ("slurm_reconfigure() failed", "op_handler_reconfigure"),
        Endpoint::Nodes => ("Failure to query nodes", "_dump_nodes"),
        Endpoint::Node => ("Failure to query node {}", "_dump_nodes"),
        Endpoint::UpdateNodes => ("Failure to update node {}", "_update_nodes"),
        Endpoint::UpdateNode => ("Failure to update node {}", "_update_node"),
        Endpoint::DeleteNode if newer => ("Failure to delete node {}", "op_handler_node"),
        Endpoint::DeleteNode => ("Failure to update node {}", "op_handler_node"),
        Endpoint::NewNode => ("Failure to create node", "_create_node"),
        Endpoint::Jobs => ("Unable to query jobs", "slurm_load_jobs()"),
        Endpoint::JobStates => ("Unable to query job states", "slurm_load_job_state()"),
        Endpoint::Job => ("Unable to query JobId={}", "_handle_job_get"),
        Endpoint::Cancel => ("Signal request failed", "slurm_kill_jobs()"),
        Endpoint::Submit => ("Batch job submission failed", "slurm_submit_batch_job()"),
        Endpoint::Requeue => ("Requeue JobID={} failed", "op_handler_job_requeue"),
        Endpoint::RequeueMany => ("Query missing JobIds", "op_handler_jobs_requeue"),
        Endpoint::Partition if newer => ("Unable to query partitions", "_partition_get"),
        Endpoint::Partition | Endpoint::Partitions => ("Unable to query partitions", "op_handler_partition"),
        Endpoint::DeleteReservation => ("Error deleting reservation {}", "slurm_delete_reservation"),
        // The two spaces are slurmrestd's.
        Endpoint::Reserve | Endpoint::ReserveMany => ("Error creating reservation  {}", "slurm_create_reservation"),
        Endpoint::Reservation | Endpoint::Reservations => ("Unable to query reservations", "slurm_load_reservations()"),
        Endpoint::OpenApi | Endpoint::Ping => ("", ""),
        _ => ("Failed to open slurmdbd connection", "openapi_get_db_conn"),
    };
    (text.replace("{}", parameter), source)
}

/// Fields of a response to a failed call, apart from the errors.
pub(super) fn empty(endpoint: Endpoint) -> Value {
    let zero = super::render::number(0);
    match endpoint {
        Endpoint::Jobs | Endpoint::Job => json!({"jobs": [], "last_backfill": zero, "last_update": zero}),
        Endpoint::JobStates => json!({"jobs": null}),
        Endpoint::Cancel | Endpoint::Requeue => json!({"status": []}),
        _ => json!({}),
    }
}
