//! Decides about a new or changed object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::review::{Answer, Request};
use crate::machine::{Findings, Kind, Referenced};

/// The object of a request, decoded: `None` if there is nothing to decide.
pub fn decode<K: Kind>(request: &Request) -> Result<Option<K>, Answer> {
    if request.object.is_null() {
        return Ok(None);
    }
    let object: K = serde_json::from_value(request.object.clone())
        .map_err(|error| Answer::refused(format!("the operator cannot read this {}: {error}", K::kind(&()))))?;
    // Only finalizers can still change, and they must.
    Ok(Some(object).filter(|object| object.meta().deletion_timestamp.is_none()))
}

/// What to answer. A mistake that the object had before is only a warning: other fields must stay changeable, for example
/// after an upgrade of the operator that knows more mistakes.
pub fn judge<K: Kind>(object: &K, old: &Value, referenced: &Referenced) -> Answer {
    let Findings { errors, warnings } = findings(object, referenced);
    let old: Option<K> = serde_json::from_value(old.clone()).ok();
    let before = old.map(|old| findings(&old, referenced).errors).unwrap_or_default();
    let (known, errors): (Vec<_>, Vec<_>) = errors.into_iter().partition(|error| before.contains(error));
    let known = known.iter().map(|error| format!("{error} (not new)"));
    Answer {
        errors: errors.iter().map(ToString::to_string).collect(),
        warnings: known.chain(warnings.iter().map(ToString::to_string)).collect(),
        patch: None,
    }
}

fn findings<K: Kind>(object: &K, referenced: &Referenced) -> Findings {
    let Findings { errors, warnings } = object.admission(referenced);
    let mut all = object.validate();
    all.extend(errors);
    Findings { errors: all, warnings }
}

/// The namespace of the object; on creation it may be only in the request.
pub fn complete(meta: &mut ObjectMeta, request: &Request) {
    meta.namespace.get_or_insert_with(|| request.namespace.clone());
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use slurm_operator_api::slinky::{NodeSet, Token};

    use super::*;

    fn set(extra: &str, replicas: u8) -> Value {
        json!({
            "apiVersion": "slinky.slurm.net/v1beta1", "kind": "NodeSet", "metadata": {"name": "gpu", "namespace": "ns"},
            "spec": {"controllerRef": {"name": "slurm"}, "slurmd": {"image": "slurmd:26.05"}, "replicas": replicas,
                "extraConf": extra},
        })
    }

    fn answer(new: &Value, old: &Value) -> Answer {
        judge::<NodeSet>(&serde_json::from_value(new.clone()).unwrap(), old, &Referenced::default())
    }

    #[test]
    fn a_mistake_that_was_there_before_keeps_nobody_from_changing_the_rest() {
        let text = "spec.extraConf: Weigth is not known to Slurm 26.05; did you mean Weight?";
        let new = answer(&set("Weigth=1", 1), &Value::Null);
        assert_eq!((new.errors, new.warnings.len()), (vec![text.to_owned()], 0));
        let same = answer(&set("Weigth=1", 2), &set("Weigth=1", 1));
        assert_eq!((same.errors.len(), same.warnings), (0, vec![format!("{text} (not new)")]));
        assert_eq!(answer(&set("Wieght=1", 1), &set("Weigth=1", 1)).errors.len(), 1, "another mistake");
        assert_eq!(answer(&set("Weight=1", 1), &set("Weigth=1", 1)), Answer::default());
        assert_eq!(answer(&set("Weight=1", 1), &json!("nonsense")), Answer::default());
    }

    #[test]
    fn an_object_that_is_being_deleted_can_lose_its_finalizers() {
        let request =
            |object: Value| Request { uid: String::new(), namespace: "ns".into(), object, old_object: Value::Null };
        let mut wrong = set("Weigth=1", 1);
        assert!(decode::<NodeSet>(&request(wrong.clone())).unwrap().is_some());
        wrong["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(decode::<NodeSet>(&request(wrong)).unwrap().is_none());
        assert!(decode::<NodeSet>(&request(Value::Null)).unwrap().is_none(), "a deletion");
        let refused = decode::<Token>(&request(json!({"spec": 7}))).unwrap_err();
        assert!(refused.errors.concat().starts_with("the operator cannot read this Token: "), "{refused:?}");
    }
}
