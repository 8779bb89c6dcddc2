//! The claim templates of a `StatefulSet` are immutable: the live ones are kept, and a difference is reported to the user. The
//! exception is a larger size: the claim itself can grow.

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::{Map, Value, json};

use crate::{
    plan::{Desired, ObjectVersion, Step},
    quantity::milli,
};

/// Grows a claim to the wanted size, if that is larger. A claim cannot shrink.
pub fn grow(wanted: &PersistentVolumeClaimSpec, live: &PersistentVolumeClaim) -> Option<Step> {
    let size = |spec: &PersistentVolumeClaimSpec| -> Option<Quantity> {
        spec.resources.as_ref()?.requests.as_ref()?.get("storage").cloned()
    };
    let (wanted, requested) = (size(wanted)?, size(live.spec.as_ref()?)?);
    let is_larger = milli(&wanted.0)? > milli(&requested.0)?;
    let target = ObjectVersion::of::<PersistentVolumeClaim>(live);
    is_larger.then(|| Step::GrowClaim(Box::new(target), wanted))
}

/// Copies the claim templates of the live `StatefulSet` into the desired one. Returns true if they differ from the desired
/// templates, which then cannot be applied.
pub fn keep(desired: &mut Desired, live: &StatefulSet) -> bool {
    let Ok(live) = serde_json::to_value(live) else { return false };
    let kept = live.pointer("/spec/volumeClaimTemplates").filter(|kept| !is_empty(kept)).cloned();
    let Some(spec) = desired.object.data.get_mut("spec").and_then(Value::as_object_mut) else { return false };
    let wanted = spec.remove("volumeClaimTemplates");
    let differs = match (&wanted, &kept) {
        (None, None) => keep_volume(spec, &live),
        (Some(wanted), Some(kept)) => {
            let kept = claims(kept);
            !within(&without_growth(claims(wanted), &kept), &kept)
        }
        _ => true,
    };
    match kept {
        Some(kept) => {
            spec.insert("volumeClaimTemplates".to_owned(), kept);
        }
        // Keep the state in the volume that the pods use now.
        None if wanted.is_some() => add_volume(spec, &live),
        None => {}
    }
    differs
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}

/// Name and spec of each claim, without the fields that the API server adds.
fn claims(templates: &Value) -> Value {
    let claim = |template: &Value| json!({"name": template.pointer("/metadata/name"), "spec": template.get("spec")});
    templates.as_array().into_iter().flatten().map(claim).collect()
}

/// The wanted claims, with the size of the live ones where a larger one is wanted.
fn without_growth(mut wanted: Value, live: &Value) -> Value {
    let size = "/spec/resources/requests/storage";
    for (wanted, live) in wanted.as_array_mut().into_iter().flatten().zip(live.as_array().into_iter().flatten()) {
        let Some(live) = live.pointer(size) else { continue };
        let Some(wanted) = wanted.pointer_mut(size) else { continue };
        let amount = |value: &Value| value.as_str().and_then(milli);
        if amount(wanted) > amount(live) {
            wanted.clone_from(live);
        }
    }
    wanted
}

fn is_state(volume: &Value) -> bool {
    volume.get("name") == Some(&json!("statesave"))
}

/// The live volume with the state, if the pods have it without a claim template.
fn live_volume(live: &Value) -> Option<&Value> {
    let volumes = live.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
    volumes.into_iter().flatten().find(|volume| is_state(volume))
}

/// The volumes of the desired pods.
fn volumes(spec: &mut Map<String, Value>) -> Option<&mut Vec<Value>> {
    spec.get_mut("template")?.pointer_mut("/spec/volumes")?.as_array_mut()
}

/// Puts the live volume with the state back. Returns true if another one was wanted.
fn keep_volume(spec: &mut Map<String, Value>, live: &Value) -> bool {
    let Some(found) = live_volume(live) else { return false };
    let wanted = volumes(spec).into_iter().flatten().find(|volume| is_state(volume));
    let Some(wanted) = wanted.filter(|wanted| !within(wanted, found)) else { return false };
    wanted.clone_from(found);
    true
}

fn add_volume(spec: &mut Map<String, Value>, live: &Value) {
    let state = live_volume(live).cloned().unwrap_or_else(|| json!({"name": "statesave", "emptyDir": {}}));
    if let Some(volumes) = volumes(spec) {
        volumes.push(state);
    }
}

/// Whether `live` contains all of `ours`. Quantities are compared by value.
fn within(ours: &Value, live: &Value) -> bool {
    match (ours, live) {
        (Value::Object(ours), Value::Object(live)) => {
            ours.iter().all(|(key, value)| live.get(key).is_some_and(|live| within(value, live)))
        }
        (Value::Array(ours), Value::Array(live)) => {
            ours.len() == live.len() && ours.iter().zip(live).all(|(ours, live)| within(ours, live))
        }
        (Value::String(ours), Value::String(live)) => {
            ours == live || milli(ours).is_some_and(|ours| Some(ours) == milli(live))
        }
        (ours, live) => ours == live,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(size: &str) -> PersistentVolumeClaim {
        let spec = json!({"resources": {"requests": {"storage": size}}});
        serde_json::from_value(json!({"metadata": {"name": "state", "uid": "u"}, "spec": spec})).unwrap()
    }

    #[test]
    fn a_claim_grows_and_never_shrinks() {
        for (wanted, live, grows) in [
            ("8Gi", "4Gi", true),
            ("4Gi", "8Gi", false),
            ("4096Mi", "4Gi", false),
            ("much", "4Gi", false),
            ("5G", "4Gi", true),
        ] {
            let step = grow(&claim(wanted).spec.unwrap(), &claim(live));
            assert_eq!(step.is_some(), grows, "{wanted} {live}");
        }
    }

    #[test]
    fn quantities_are_compared_by_value() {
        for (ours, live, same) in [
            ("4Gi", "4Gi", true),
            ("1024Mi", "1Gi", true),
            ("1024Ki", "1Mi", true),
            ("1000M", "1G", true),
            ("1G", "1Gi", false),
            ("1073741824", "1Gi", true),
            ("fast", "slow", false),
            ("", "0", false),
        ] {
            assert_eq!(within(&json!(ours), &json!(live)), same, "{ours} {live}");
        }
        assert!(within(&json!({"a": ["x"]}), &json!({"a": ["x"], "volumeMode": "Filesystem"})));
        assert!(!within(&json!({"a": ["x"]}), &json!({"a": ["x", "y"]})));
    }
}
