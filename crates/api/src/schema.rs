//! What the derived schemas still need before a cluster gets them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Takes an explicit `null` as the Go operator's definitions do: a null list or map is an empty one (its chart writes
/// such). Elsewhere the API server fills in the default where there is one; where there is none it drops the null from what
/// is created or updated, and refuses it in what is applied.
///
/// The derive marks every optional field as nullable. The API server then keeps a null: it gets no default, and to CEL
/// it is a field that is there, so that `jwtKeyRef: null` would pass for a key reference.
pub(crate) fn without_null(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    roots(&mut crd).for_each(|root| visit(root, &clear));
    crd
}

/// Joins the lines of descriptions: they end where the source does, and kubectl has its own width.
pub(crate) fn with_flowing_text(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    roots(&mut crd).for_each(|root| visit(root, &join));
    crd
}

/// Takes a null also for an object without a default: the Go operator's definitions do so here and there.
pub(crate) fn with_null_at(mut crd: CustomResourceDefinition, path: &[&str]) -> CustomResourceDefinition {
    for root in roots(&mut crd) {
        let found = path.iter().try_fold(root, |schema, field| schema.properties.as_mut()?.get_mut(*field));
        if let Some(schema) = found {
            schema.nullable = Some(true);
        }
    }
    crd
}

fn roots(crd: &mut CustomResourceDefinition) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let schemas = crd.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut());
    schemas.filter_map(|schema| schema.open_api_v3_schema.as_mut())
}

/// Changes a schema and all within it.
fn visit(schema: &mut JSONSchemaProps, change: &impl Fn(&mut JSONSchemaProps)) {
    change(schema);
    schema.properties.iter_mut().flat_map(|properties| properties.values_mut()).for_each(|field| visit(field, change));
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(item)) => visit(item, change),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(|item| visit(item, change)),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &mut schema.additional_properties {
        visit(value, change);
    }
}

fn clear(schema: &mut JSONSchemaProps) {
    schema.nullable = is_list_or_map(schema).then_some(true);
}

fn join(schema: &mut JSONSchemaProps) {
    schema.description = schema.description.take().map(|text| text.replace('\n', " "));
}

/// A list that is merged by a key is no plain list: the operator alone writes those, and never as null.
fn is_list_or_map(schema: &JSONSchemaProps) -> bool {
    let merged = schema.x_kubernetes_list_type.as_deref() == Some("map");
    (schema.type_.as_deref() == Some("array") && !merged) || schema.additional_properties.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_lists_and_maps_may_be_null() {
        let nullable = json!({"type": "string", "nullable": true});
        let mut schema: JSONSchemaProps = serde_json::from_value(json!({
            "type": "object",
            "nullable": true,
            "properties": {
                "list": {"type": "array", "items": nullable},
                "conditions": {"type": "array", "items": nullable, "x-kubernetes-list-type": "map", "nullable": true},
                "map": {"type": "object", "additionalProperties": nullable},
                "object": {"type": "object", "properties": {"nullable": nullable}},
                "opaque": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "nullable": true},
            },
        }))
        .unwrap();
        visit(&mut schema, &clear);
        let plain = json!({"type": "string"});
        let expected = json!({
            "type": "object",
            "properties": {
                "list": {"type": "array", "items": plain, "nullable": true},
                "conditions": {"type": "array", "items": plain, "x-kubernetes-list-type": "map"},
                "map": {"type": "object", "additionalProperties": plain, "nullable": true},
                "object": {"type": "object", "properties": {"nullable": plain}},
                "opaque": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
        });
        assert_eq!(serde_json::to_value(schema).unwrap(), expected);
    }
}
