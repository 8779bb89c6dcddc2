//! Changes to the derived schemas.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::json;

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

/// Takes an explicit `null` for every optional field, in whatever way the object is written. It counts as not set if the
/// field has no default; otherwise the API server fills in the default.
///
/// Two cannot be null: a value of an enum, as the API server does not find null among its values (it drops such a null on
/// create and update, and rejects it on apply), and a list that is merged by a key, which only the operator writes.
pub(crate) fn with_null(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for part in roots(&mut crd).flat_map(|root| root.properties.iter_mut().flat_map(|parts| parts.values_mut())) {
        part.nullable = None;
        visit(part, &allow);
    }
    crd
}

/// Lets the API server fill in an empty spec, whose fields all have defaults then.
pub(crate) fn with_default_spec(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for root in roots(&mut crd) {
        root.required.iter_mut().for_each(|required| required.retain(|field| field != "spec"));
        root.required = root.required.take().filter(|required| !required.is_empty());
        if let Some(spec) = root.properties.as_mut().and_then(|parts| parts.get_mut("spec")) {
            spec.default = Some(JSON(json!({})));
        }
    }
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

/// Decides for what is directly below a schema.
fn allow(schema: &mut JSONSchemaProps) {
    let required = schema.required.clone().unwrap_or_default();
    for (name, field) in schema.properties.iter_mut().flatten() {
        let may = !required.contains(name) && field.default.is_none() && field.enum_.is_none() && !is_merged(field);
        field.nullable = may.then_some(true);
        // The derive adds null to the values of an optional enum.
        field.enum_.iter_mut().for_each(|choices| choices.retain(|choice| !choice.0.is_null()));
    }
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &mut schema.items {
        item.nullable = None;
    }
    if let Some(JSONSchemaPropsOrBool::Schema(value)) = &mut schema.additional_properties {
        value.nullable = None;
    }
}

fn join(schema: &mut JSONSchemaProps) {
    schema.description = schema.description.take().map(|text| text.replace('\n', " "));
}

/// Excludes lists that are merged by a key: only the operator writes those, and never as null.
fn is_list_or_map(schema: &JSONSchemaProps) -> bool {
    (schema.type_.as_deref() == Some("array") && !is_merged(schema)) || schema.additional_properties.is_some()
}

fn is_merged(schema: &JSONSchemaProps) -> bool {
    schema.x_kubernetes_list_type.as_deref() == Some("map")
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn what_is_optional_and_has_no_default_may_be_null() {
        let plain = json!({"type": "string"});
        let nullable = json!({"type": "string", "nullable": true});
        let mut schema: JSONSchemaProps = serde_json::from_value(json!({
            "type": "object",
            "required": ["required"],
            "properties": {
                "required": nullable,
                "optional": plain,
                "default": {"type": "string", "default": "x", "nullable": true},
                "choice": {"type": "string", "enum": ["x", null], "nullable": true},
                "list": {"type": "array", "items": nullable},
                "map": {"type": "object", "additionalProperties": nullable},
                "conditions": {"type": "array", "items": nullable, "x-kubernetes-list-type": "map", "nullable": true},
                "object": {"type": "object", "required": ["required"], "properties": {"required": nullable, "optional": plain}},
            },
        }))
        .unwrap();
        visit(&mut schema, &allow);
        let expected = json!({
            "type": "object",
            "required": ["required"],
            "properties": {
                "required": plain,
                "optional": nullable,
                "default": {"type": "string", "default": "x"},
                "choice": {"type": "string", "enum": ["x"]},
                "list": {"type": "array", "items": plain, "nullable": true},
                "map": {"type": "object", "additionalProperties": plain, "nullable": true},
                "conditions": {"type": "array", "items": plain, "x-kubernetes-list-type": "map"},
                "object": {
                    "type": "object",
                    "required": ["required"],
                    "properties": {"required": plain, "optional": nullable},
                    "nullable": true,
                },
            },
        });
        assert_eq!(serde_json::to_value(schema).unwrap(), expected);
    }
}
