//! Reads the two Secrets of a Token.

use engine::{
    daemons::{
        keys::SecretText,
        shared::{Parent, is_owned},
    },
    plan::ObjectVersion,
};
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::FieldsV1};
use kube::{Api, Client, ResourceExt, api::ListParams};
use slurm::token::{Key, resembles};
use slurm_operator_api::slinky::{Token, VOCABULARY, names};

use super::{
    plan::{Facts, FoundSecret, SigningKey, Unowned, label_of, manager_of},
    validate::validate,
};
use crate::{
    failure::{Failure, call},
    kube_view::{GO_OPERATOR, read::Reader},
};

pub(super) async fn observe(token: &Token, client: &Client) -> Result<Facts, Failure> {
    if !validate(token).is_empty() {
        // There may be no name to look for; the plan says what is wrong.
        return Ok(Facts { key: SigningKey::NotNamed, found: FoundSecret::Nothing, strays: Vec::new() });
    }
    let namespace = token.namespace().unwrap_or_default();
    let parent = Parent::of(token, &VOCABULARY);
    let reader = Reader { client, namespace: &namespace };
    let key = match token.spec.key_ref() {
        None => SigningKey::NotNamed,
        Some(reference) => signing_key(reader.get(&reference.name).await?, &reference.key),
    };
    let found = match reader.get(&token.secret_name()).await? {
        None => FoundSecret::Nothing,
        Some(secret) => found(token, &parent, &secret),
    };
    let labelled = ListParams::default().labels(&format!("{}={}", names::label::TOKEN, label_of(token)));
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let ours = call("listing", || format!("Secrets of {namespace}"), secrets.list_metadata(&labelled)).await?;
    let strays = ours.iter().filter(|secret| secret.name_any() != token.secret_name() && is_owned(*secret, &parent));
    Ok(Facts { key, found, strays: strays.map(ObjectVersion::of::<Secret>).collect() })
}

fn signing_key(secret: Option<Secret>, entry: &str) -> SigningKey {
    let Some(secret) = secret else { return SigningKey::NoSecret };
    match secret.data.unwrap_or_default().remove(entry) {
        None => SigningKey::NoEntry,
        Some(bytes) => Key::new(&bytes.0).map_or(SigningKey::NoEntry, |key| SigningKey::Good(Box::new(key))),
    }
}

fn found(token: &Token, parent: &Parent, secret: &Secret) -> FoundSecret {
    let content = secret.data.as_ref().and_then(|data| data.get(token.spec.secret_key()));
    let text = content.filter(|bytes| !bytes.0.is_empty());
    let text = text.map(|bytes| SecretText(String::from_utf8_lossy(&bytes.0).into_owned()));
    let is_immutable = secret.immutable.unwrap_or(false);
    let object = ObjectVersion::of::<Secret>(secret);
    if is_owned(secret, parent) {
        FoundSecret::Ours { text, is_immutable, secret: object }
    } else if is_of_key(token, secret) {
        FoundSecret::OfKey { text, is_immutable, secret: object }
    } else if secret.owner_references().is_empty() {
        let is_opaque = secret.type_.as_deref().is_none_or(|type_| type_ == "Opaque");
        let entry = token.spec.secret_key();
        // The Go operator's owner reference is gone if somebody has replaced the Secret of the key. Many programs have its field
        // manager, so what it wrote is looked at.
        let is_mine = is_written_by(secret, entry, &[&manager_of(token)])
            || (is_written_by(secret, entry, GO_OPERATOR)
                && text.as_ref().is_some_and(|text| resembles(&text.0, token.spec.username())));
        FoundSecret::Unowned(Unowned { text, is_immutable, is_opaque, is_mine })
    } else {
        FoundSecret::Foreign
    }
}

/// Whether one of these field managers has written an entry of a Secret, and no other has since.
fn is_written_by(secret: &Secret, entry: &str, managers: &[&str]) -> bool {
    let field = format!("f:{entry}");
    let has = |fields: &FieldsV1| fields.0.get("f:data").is_some_and(|data| data.get(&field).is_some());
    let writers = secret.metadata.managed_fields.iter().flatten();
    let mut writers = writers.filter(|writer| writer.fields_v1.as_ref().is_some_and(has)).peekable();
    writers.peek().is_some()
        && writers.all(|writer| writer.manager.as_deref().is_some_and(|name| managers.contains(&name)))
}

/// The Go operator makes the signing key's Secret the owner, so that a Token's Secret outlives the Token.
fn is_of_key(token: &Token, secret: &impl ResourceExt) -> bool {
    let key = token.spec.key_ref().map(|reference| &*reference.name);
    secret.owner_references().iter().any(|owner| owner.kind == "Secret" && Some(&*owner.name) == key)
}
