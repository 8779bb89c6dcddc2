use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use slurm::token::{Claims, Key, KeyTooShort, mint};
use slurm_operator_api::{Token, TokenStatus};

use super::plan::{Found, Hidden, Seen, SigningKey, plan};
use crate::machine::{Doomed, Next, Plan, Step, Verdict, lint::lint};

const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

fn token(spec: &serde_json::Value) -> Token {
    let mut full = json!({"username": "alice", "jwtKeyRef": {"name": "keys", "key": "jwt.key"}});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    serde_json::from_value(json!({
        "apiVersion": "slinky.slurm.net/v1beta1", "kind": "Token",
        "metadata": {"name": "t", "namespace": "slurm", "uid": "token-uid", "generation": 3, "labels": {"team": "a"}},
        "spec": full,
    }))
    .unwrap()
}

fn key(seed: u8) -> Key {
    Key::new(&[seed; 32]).unwrap()
}

fn issued(signer: &Key, user: &str, ago: SignedDuration, lifetime: SignedDuration) -> Hidden {
    Hidden(mint(signer, &Claims::new("id", user, NOW - ago, lifetime)).expose().to_owned())
}

fn quarter() -> SignedDuration {
    SignedDuration::from_mins(15)
}

fn doomed(name: &str) -> Doomed {
    let secret: Secret = serde_json::from_value(json!({"metadata": {
        "name": name, "namespace": "slurm", "uid": format!("{name}-uid"), "resourceVersion": "7",
    }}))
    .unwrap();
    Doomed::of::<Secret>(&secret)
}

fn ours(text: Option<Hidden>) -> Found {
    Found::Ours { text, is_immutable: false, secret: doomed("t-jwt-alice") }
}

fn seen(found: Found) -> Seen {
    Seen { key: SigningKey::Good(Box::new(key(1))), found, strays: Vec::new() }
}

/// Plans, and checks what must hold for every plan.
fn planned(token: &Token, seen: &Seen) -> Plan<TokenStatus> {
    let plan = plan(token, seen, NOW);
    assert_eq!(lint(token, &plan), Vec::<String>::new());
    plan
}

fn names(plan: &Plan<TokenStatus>) -> Vec<Vec<&'static str>> {
    plan.stages.iter().map(|stage| stage.iter().map(Step::name).collect()).collect()
}

fn ready(plan: &Plan<TokenStatus>) -> (Verdict, &'static str, &str) {
    let judgement = plan.conditions.iter().find(|judgement| judgement.about == "Ready").unwrap();
    (judgement.verdict, judgement.reason, &judgement.message)
}

#[test]
fn the_first_token_is_minted_into_a_secret_of_ours() {
    let token = token(&json!({}));
    let plan = planned(&token, &seen(Found::Nothing));
    assert_eq!(names(&plan), [["mint"]]);
    let Step::Mint(mint) = &plan.stages[0][0] else { panic!("{plan:?}") };
    assert_eq!(mint.entry, "SLURM_JWT");
    let secret = &mint.secret.object;
    assert_eq!(secret.name_any(), "t-jwt-alice");
    assert_eq!(secret.owner_references()[0].uid, "token-uid");
    assert_eq!(secret.owner_references()[0].controller, Some(true));
    assert_eq!(secret.labels()["team"], "a", "it carries the labels of its Token");
    assert_eq!(secret.data.get("immutable"), None);
    assert_eq!(plan.status.issued_at.as_ref().unwrap().0, NOW);
    assert_eq!(plan.status.expires_at.as_ref().unwrap().0, NOW + quarter());
    assert_eq!(ready(&plan).0, Verdict::True);
    assert_eq!(plan.next, Next::After(std::time::Duration::from_mins(12)));
    assert_eq!(plan.notes.len(), 1);
}

#[test]
fn a_good_token_is_left_alone_until_four_fifths_of_its_life() {
    let token = token(&json!({}));
    for (age, minted) in [(0, false), (11 * 60 + 59, false), (12 * 60, true), (14 * 60, true), (16 * 60, true)] {
        let text = issued(&key(1), "alice", SignedDuration::from_secs(age), quarter());
        let plan = planned(&token, &seen(ours(Some(text))));
        assert_eq!(!plan.stages.is_empty(), minted, "at {age} s");
        assert_eq!(ready(&plan).0, Verdict::True, "at {age} s");
        assert!(minted || plan.notes.is_empty(), "nothing happened, nothing to tell");
    }
}

#[test]
fn a_token_is_minted_anew_when_it_no_longer_fits() {
    let fresh = |signer: &Key, user: &str, lifetime| issued(signer, user, SignedDuration::from_secs(5), lifetime);
    for (what, found) in [
        ("the key was rotated", ours(Some(fresh(&key(2), "alice", quarter())))),
        ("it names somebody else", ours(Some(fresh(&key(1), "bob", quarter())))),
        ("the lifetime was changed", ours(Some(fresh(&key(1), "alice", SignedDuration::from_hours(1))))),
        ("somebody edited it", ours(Some(Hidden("rubbish".into())))),
        ("somebody removed it", ours(None)),
    ] {
        let plan = planned(&token(&json!({})), &seen(found));
        assert_eq!(names(&plan), [["mint"]], "{what}");
        assert_eq!(ready(&plan).0, Verdict::True, "{what}");
    }
}

#[test]
fn without_refresh_a_token_is_made_once_and_then_only_judged() {
    let token = token(&json!({"refresh": false}));
    let plan = planned(&token, &seen(Found::Nothing));
    let Step::Mint(mint) = &plan.stages[0][0] else { panic!("{plan:?}") };
    assert_eq!(mint.secret.object.data["immutable"], true);
    assert_eq!(plan.next, Next::After(std::time::Duration::from_mins(15)), "to say that it expired");

    let old = issued(&key(1), "alice", SignedDuration::from_mins(14), quarter());
    let plan = planned(&token, &seen(ours(Some(old))));
    assert_eq!((names(&plan).len(), ready(&plan).0), (0, Verdict::True));

    for text in [issued(&key(1), "alice", SignedDuration::from_hours(1), quarter()), Hidden("rubbish".into())] {
        let plan = planned(&token, &seen(ours(Some(text))));
        assert_eq!(names(&plan).len(), 0, "it is not ours to replace");
        let (verdict, reason, message) = ready(&plan);
        assert_eq!((verdict, reason), (Verdict::False, "TokenUnusable"));
        assert!(message.contains("delete the Secret t-jwt-alice"), "{message}");
        assert_eq!(plan.next, Next::OnChange, "no error loop");
    }
}

#[test]
fn an_immutable_secret_is_replaced_in_two_passes() {
    let text = issued(&key(2), "alice", SignedDuration::ZERO, quarter());
    let found = Found::Ours { text: Some(text), is_immutable: true, secret: doomed("t-jwt-alice") };
    let plan = planned(&token(&json!({})), &seen(found));
    assert_eq!(names(&plan), [["delete"]]);
    assert_eq!(ready(&plan).1, "Replacing");
}

#[test]
fn what_the_go_operator_left_is_adopted() {
    let token = token(&json!({}));
    let of_key = |text| Found::OfKey { text: Some(text), is_immutable: false, secret: doomed("t-jwt-alice") };
    let good = issued(&key(1), "alice", SignedDuration::ZERO, quarter());
    assert_eq!(names(&planned(&token, &seen(of_key(good)))), [["own"]]);
    let bad = issued(&key(2), "alice", SignedDuration::ZERO, quarter());
    assert_eq!(names(&planned(&token, &seen(of_key(bad)))), [["own"], ["mint"]]);
}

#[test]
fn trouble_says_what_to_do_and_waits_for_it() {
    let key = |key| Seen { key, found: Found::Nothing, strays: Vec::new() };
    for (spec, seen, reason, hint) in [
        (json!({}), key(SigningKey::NoSecret), "ReferenceMissing", "create it, with the key as jwt.key"),
        (json!({}), key(SigningKey::NoEntry), "ReferenceMissing", "the Secret keys has no entry jwt.key"),
        (json!({}), key(SigningKey::TooShort(KeyTooShort { len: 5 })), "KeyTooShort", "at least 32"),
        (json!({}), key(SigningKey::NotNamed), "InvalidSpec", "spec.jwtKeyRef"),
        (json!({"lifetime": "soon"}), seen(Found::Nothing), "InvalidSpec", "spec.lifetime"),
        (json!({}), seen(Found::Foreign), "SecretTaken", "spec.secretRef"),
    ] {
        let mut token = token(&spec);
        token.status = Some(TokenStatus { observed_generation: Some(2), ..TokenStatus::default() });
        let plan = planned(&token, &seen);
        assert_eq!(names(&plan).len(), 0, "{reason}");
        let (verdict, said, message) = ready(&plan);
        assert_eq!((verdict, said), (Verdict::False, reason));
        assert!(message.contains(hint), "{message}");
        assert_eq!(plan.next, Next::OnChange, "what is waited for wakes us");
        assert!(plan.notes[0].is_warning);
    }
}

#[test]
fn secrets_under_an_old_name_go() {
    let mut seen = seen(Found::Nothing);
    seen.strays = vec![doomed("t-jwt-bob")];
    assert_eq!(names(&planned(&token(&json!({})), &seen)), [["mint"], ["delete"]]);
    seen.found = Found::Foreign;
    assert_eq!(names(&planned(&token(&json!({})), &seen)), [["delete"]], "also while the new one is in trouble");
}

#[test]
fn nothing_secret_shows() {
    let text = issued(&key(1), "alice", SignedDuration::ZERO, quarter());
    let seen = seen(ours(Some(text.clone())));
    let shown = format!("{seen:?} {:?}", plan(&token(&json!({})), &seen, NOW));
    assert!(!shown.contains(&text.0) && !shown.contains("eyJ"), "{shown}");
}
