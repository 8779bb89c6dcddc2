//! `AdmissionReview`: what the API server asks, and what it is told.
//!
//! Not the types of kube: they need an object with valid metadata to find the request at all, and here anything may come.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Deserialize;
use serde_json::{Value, json};

/// The part of an `AdmissionReview` that we read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Review {
    /// `admission.k8s.io/v1`, or v1beta1, as the webhook configurations of the Go operator ask for.
    pub api_version: String,
    pub request: Request,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub uid: String,
    #[serde(default)]
    pub namespace: String,
    /// Null for a deletion.
    #[serde(default)]
    pub object: Value,
    /// Null for a creation.
    #[serde(default)]
    pub old_object: Value,
}

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Why it is refused; empty if it is allowed.
    pub errors: Vec<String>,
    pub warnings: Vec<String>,
    /// A JSON patch.
    pub patch: Option<Value>,
}

impl Answer {
    pub fn refused(error: String) -> Self {
        Self { errors: vec![error], ..Self::default() }
    }

    /// For metrics.
    pub fn result(&self) -> &'static str {
        match (self.errors.is_empty(), self.warnings.is_empty()) {
            (false, _) => "refused",
            (true, false) => "warned",
            (true, true) => "allowed",
        }
    }

    /// The answer as an `AdmissionReview`.
    pub fn into_review(self, api_version: &str, uid: &str) -> Value {
        let mut response = json!({"uid": uid, "allowed": self.errors.is_empty()});
        let Some(fields) = response.as_object_mut() else { return response };
        if !self.errors.is_empty() {
            let status = json!({"code": 422, "reason": "Invalid", "message": self.errors.join("; ")});
            fields.insert("status".to_owned(), status);
        }
        if !self.warnings.is_empty() {
            fields.insert("warnings".to_owned(), self.warnings.into());
        }
        if let Some(patch) = self.patch {
            fields.insert("patchType".to_owned(), "JSONPatch".into());
            fields.insert("patch".to_owned(), STANDARD.encode(patch.to_string()).into());
        }
        json!({"apiVersion": api_version, "kind": "AdmissionReview", "response": response})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_what_the_api_server_reads() {
        let allowed = Answer::default().into_review("admission.k8s.io/v1", "7");
        let expected = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": "7", "allowed": true},
        });
        assert_eq!(allowed, expected);
        let answer = Answer {
            errors: vec!["spec.a: wrong".into(), "spec.b: wrong".into()],
            warnings: vec!["odd".into()],
            patch: Some(json!([])),
        };
        assert_eq!(answer.result(), "refused");
        let expected = json!({
            "uid": "7", "allowed": false, "warnings": ["odd"], "patchType": "JSONPatch", "patch": "W10=",
            "status": {"code": 422, "reason": "Invalid", "message": "spec.a: wrong; spec.b: wrong"},
        });
        assert_eq!(answer.into_review("admission.k8s.io/v1beta1", "7")["response"], expected);
    }
}
