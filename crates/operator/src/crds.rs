//! Custom resource definitions as text.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;
use thiserror::Error;

/// A CRD cannot be serialised.
#[derive(Debug, Error)]
pub enum RenderError {
    #[error("cannot serialise a CustomResourceDefinition as YAML")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
    #[error("cannot serialise the CustomResourceDefinitions as JSON")]
    Json(#[from] serde_json::Error),
}

/// One CRD as a YAML document, without the document separator.
pub fn yaml(crd: &CustomResourceDefinition) -> Result<String, RenderError> {
    Ok(serde_saphyr::to_string(crd)?)
}

/// All CRDs as YAML documents.
pub fn all_yaml(crds: &[CustomResourceDefinition]) -> Result<String, RenderError> {
    crds.iter().map(|crd| Ok(format!("---\n{}", yaml(crd)?))).collect()
}

/// All CRDs as one JSON List, so that kubectl can apply it.
pub fn all_json(crds: &[CustomResourceDefinition]) -> Result<String, RenderError> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": crds});
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use slurm_operator_api::{nebius, slinky};

    fn crds() -> Vec<CustomResourceDefinition> {
        slinky::crds().into_iter().chain(nebius::crds()).collect()
    }

    #[test]
    fn yaml_reads_back_as_the_same_definitions() {
        for crd in crds() {
            let text = yaml(&crd).unwrap();
            assert!(text.ends_with('\n') && !text.starts_with("---"), "{text}");
            assert_eq!(serde_saphyr::from_str::<CustomResourceDefinition>(&text).unwrap(), crd);
        }
        let all = all_yaml(&crds()).unwrap();
        assert_eq!(serde_saphyr::from_multiple::<CustomResourceDefinition>(&all).unwrap(), crds());
    }

    #[test]
    fn json_reads_back_as_the_same_definitions() {
        let mut list: serde_json::Value = serde_json::from_str(&all_json(&crds()).unwrap()).unwrap();
        assert_eq!(list["kind"], "List");
        assert_eq!(serde_json::from_value::<Vec<CustomResourceDefinition>>(list["items"].take()).unwrap(), crds());
    }

    #[test]
    fn rendering_is_stable() {
        assert_eq!(all_yaml(&crds()).unwrap(), all_yaml(&crds()).unwrap());
    }
}
