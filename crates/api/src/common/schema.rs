//! Changes to the derived schemas.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

/// Treats an explicit `null` as the CRDs of the Go operator do: a null list or map is empty (its chart writes such
/// values). For other fields the API server fills in the default if there is one; without a default it drops the null
/// on create and update, and rejects it on apply.
///
/// The derive marks every optional field as nullable. The API server then keeps a null: the field gets no default, and
/// CEL treats it as present, so `jwtKeyRef: null` would count as a key reference.
pub(crate) fn without_null(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    roots(&mut crd).for_each(|root| visit(root, &clear));
    crd
}

/// Joins the lines of descriptions: they break where the source does, but kubectl wraps them itself.
pub(crate) fn with_flowing_text(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    roots(&mut crd).for_each(|root| visit(root, &join));
    crd
}

/// Allows null for an object without a default, as the CRDs of the Go operator do for some fields.
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

/// Changes a schema and all nested schemas.
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

/// Excludes lists that are merged by a key: only the operator writes those, and never as null.
fn is_list_or_map(schema: &JSONSchemaProps) -> bool {
    let merged = schema.x_kubernetes_list_type.as_deref() == Some("map");
    (schema.type_.as_deref() == Some("array") && !merged) || schema.additional_properties.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
