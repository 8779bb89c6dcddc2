//! What the derived schemas still need before a cluster gets them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Takes an explicit `null` as the Go operator's definitions do: the API server fills in the default where there is one,
/// and refuses the null elsewhere.
///
/// The derive marks every optional field as nullable. The API server then keeps a null: it gets no default, and to CEL
/// it is a field that is there, so that `jwtKeyRef: null` would pass for a key reference.
pub(crate) fn without_null(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let schemas = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut()).for_each(clear);
    crd
}

fn clear(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(clear);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => clear(item),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(clear),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &mut schema.additional_properties {
        clear(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn null_is_allowed_nowhere() {
        let nullable = json!({"type": "string", "nullable": true});
        let mut schema: JSONSchemaProps = serde_json::from_value(json!({
            "type": "object",
            "nullable": true,
            "properties": {
                "list": {"type": "array", "items": nullable},
                "map": {"type": "object", "additionalProperties": nullable},
                "object": {"type": "object", "properties": {"nullable": nullable}},
            },
        }))
        .unwrap();
        clear(&mut schema);
        let plain = json!({"type": "string"});
        let expected = json!({
            "type": "object",
            "properties": {
                "list": {"type": "array", "items": plain},
                "map": {"type": "object", "additionalProperties": plain},
                "object": {"type": "object", "properties": {"nullable": plain}},
            },
        });
        assert_eq!(serde_json::to_value(schema).unwrap(), expected);
    }
}
