use engine::{
    conditions::ConditionStatus,
    daemons::keys::SecretText,
    lint::lint,
    plan::{Next, ObjectVersion, Plan, Step},
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::json;
use slurm::token::{Claims, Key, mint};
use slurm_operator_api::slinky::{Token, TokenStatus};

use super::plan::{Facts, FoundSecret, SigningKey, Unowned, plan};

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

fn issued(signer: &Key, user: &str, ago: SignedDuration, lifetime: SignedDuration) -> SecretText {
    SecretText(mint(signer, &Claims::new("id", user, NOW - ago, lifetime)).expose().to_owned())
}

fn quarter() -> SignedDuration {
    SignedDuration::from_mins(15)
}

fn secret_version(name: &str) -> ObjectVersion {
    let secret: Secret = serde_json::from_value(json!({"metadata": {
        "name": name, "namespace": "slurm", "uid": format!("{name}-uid"), "resourceVersion": "7",
    }}))
    .unwrap();
    ObjectVersion::of::<Secret>(&secret)
}

fn ours(text: Option<SecretText>) -> FoundSecret {
    FoundSecret::Ours { text, is_immutable: false, secret: secret_version("t-jwt-alice") }
}

fn facts_of(found: FoundSecret) -> Facts {
    Facts { key: SigningKey::Good(Box::new(key(1))), found, strays: Vec::new() }
}

/// Plans, and lints the plan.
fn planned(token: &Token, facts: &Facts) -> Plan<TokenStatus> {
    let plan = plan(token, facts, NOW);
    assert_eq!(lint(token, &plan), []);
    plan
}

fn names(plan: &Plan<TokenStatus>) -> Vec<Vec<&'static str>> {
    plan.stages.iter().map(|stage| stage.iter().map(Step::name).collect()).collect()
}

fn ready(plan: &Plan<TokenStatus>) -> (ConditionStatus, &'static str, &str) {
    let new_condition = plan.conditions.iter().find(|new_condition| new_condition.type_ == "Ready").unwrap();
    (new_condition.status, new_condition.reason, &new_condition.message)
}

#[test]
fn the_first_token_is_issued_into_an_owned_secret() {
    let token = token(&json!({}));
    let plan = planned(&token, &facts_of(FoundSecret::Nothing));
    assert_eq!(names(&plan), [["mint"]]);
    let Step::GenerateSecret(generated) = &plan.stages[0][0] else { panic!("{plan:?}") };
    assert_eq!(generated.entry, "SLURM_JWT");
    let secret = &generated.secret.object;
    assert_eq!(secret.name_any(), "t-jwt-alice");
    assert_eq!(secret.owner_references()[0].uid, "token-uid");
    assert_eq!(secret.owner_references()[0].controller, Some(true));
    assert_eq!(secret.labels()["team"], "a", "it has the labels of its Token");
    assert_eq!(secret.data.get("immutable"), None);
    assert_eq!(plan.status.issued_at.as_ref().unwrap().0, NOW);
    assert_eq!(plan.status.expires_at.as_ref().unwrap().0, NOW + quarter());
    assert_eq!(ready(&plan).0, ConditionStatus::True);
    assert_eq!(plan.next, Next::After(std::time::Duration::from_mins(12)));
    assert_eq!(plan.events.len(), 1);
}

#[test]
fn a_valid_token_is_kept_until_four_fifths_of_its_lifetime() {
    let token = token(&json!({}));
    for (age, minted) in [(0, false), (11 * 60 + 59, false), (12 * 60, true), (14 * 60, true), (16 * 60, true)] {
        let text = issued(&key(1), "alice", SignedDuration::from_secs(age), quarter());
        let plan = planned(&token, &facts_of(ours(Some(text))));
        assert_eq!(!plan.stages.is_empty(), minted, "at {age} s");
        assert_eq!(ready(&plan).0, ConditionStatus::True, "at {age} s");
        assert!(minted || plan.events.is_empty(), "no event without a change");
    }
}

#[test]
fn a_token_is_reissued_when_it_does_not_match_the_spec() {
    let fresh = |signer: &Key, user: &str, lifetime| issued(signer, user, SignedDuration::from_secs(5), lifetime);
    for (what, found) in [
        ("the key was rotated", ours(Some(fresh(&key(2), "alice", quarter())))),
        ("it is for another user", ours(Some(fresh(&key(1), "bob", quarter())))),
        ("the lifetime was changed", ours(Some(fresh(&key(1), "alice", SignedDuration::from_hours(1))))),
        ("it was edited", ours(Some(SecretText("rubbish".into())))),
        ("it was removed", ours(None)),
    ] {
        let plan = planned(&token(&json!({})), &facts_of(found));
        assert_eq!(names(&plan), [["mint"]], "{what}");
        assert_eq!(ready(&plan).0, ConditionStatus::True, "{what}");
    }
}

#[test]
fn without_refresh_a_token_is_issued_once_and_then_only_checked() {
    let token = token(&json!({"refresh": false}));
    let plan = planned(&token, &facts_of(FoundSecret::Nothing));
    let Step::GenerateSecret(generated) = &plan.stages[0][0] else { panic!("{plan:?}") };
    assert_eq!(generated.secret.object.data["immutable"], true);
    assert_eq!(plan.next, Next::After(std::time::Duration::from_mins(15)), "to report the expiry");

    let old = issued(&key(1), "alice", SignedDuration::from_mins(14), quarter());
    let plan = planned(&token, &facts_of(ours(Some(old))));
    assert_eq!((names(&plan).len(), ready(&plan).0), (0, ConditionStatus::True));

    for text in [issued(&key(1), "alice", SignedDuration::from_hours(1), quarter()), SecretText("rubbish".into())] {
        let plan = planned(&token, &facts_of(ours(Some(text))));
        assert_eq!(names(&plan).len(), 0, "it must not be replaced");
        let (status, reason, message) = ready(&plan);
        assert_eq!((status, reason), (ConditionStatus::False, "TokenUnusable"));
        assert!(message.contains("delete the Secret t-jwt-alice"), "{message}");
        assert_eq!(plan.next, Next::OnChange, "no retry loop");
    }
}

#[test]
fn an_immutable_secret_is_replaced_in_two_reconciles() {
    let text = issued(&key(2), "alice", SignedDuration::ZERO, quarter());
    let found = FoundSecret::Ours { text: Some(text), is_immutable: true, secret: secret_version("t-jwt-alice") };
    let plan = planned(&token(&json!({})), &facts_of(found));
    assert_eq!(names(&plan), [["delete"]]);
    assert_eq!(ready(&plan).1, "Replacing");
}

#[test]
fn secrets_of_the_go_operator_are_adopted() {
    let token = token(&json!({}));
    let of_key =
        |text| FoundSecret::OfKey { text: Some(text), is_immutable: false, secret: secret_version("t-jwt-alice") };
    let good = issued(&key(1), "alice", SignedDuration::ZERO, quarter());
    assert_eq!(names(&planned(&token, &facts_of(of_key(good)))), [["own"]]);
    let bad = issued(&key(2), "alice", SignedDuration::ZERO, quarter());
    assert_eq!(names(&planned(&token, &facts_of(of_key(bad)))), [["own"], ["mint"]]);
}

#[test]
fn a_secret_of_the_user_is_filled_and_never_owned() {
    let unowned = |text: Option<&str>, change: fn(&mut Unowned)| {
        let text = text.map(|text| SecretText(text.to_owned()));
        let mut unowned = Unowned { text, is_immutable: false, is_opaque: true, is_mine: true };
        change(&mut unowned);
        facts_of(FoundSecret::Unowned(unowned))
    };
    let theirs = json!({"secretRef": {"name": "mine", "key": "token"}});
    let token = token(&theirs);
    let plan = planned(&token, &unowned(None, |_| {}));
    let Step::GenerateSecret(generated) = &plan.stages[0][0] else { panic!("{plan:?}") };
    let secret = &generated.secret.object;
    assert_eq!((secret.name_any(), &*generated.entry), ("mine".to_owned(), "token"));
    assert!(secret.owner_references().is_empty() && secret.labels().is_empty());
    assert!(secret.data.get("type").is_none() && secret.data.get("immutable").is_none(), "{secret:?}");
    // Each Token has its own, so that it does not remove the entries of others.
    assert_eq!(generated.manager.as_deref(), Some("slurm-operator/token/t"));

    let good = issued(&key(1), "alice", SignedDuration::ZERO, quarter());
    assert!(planned(&token, &unowned(Some(&good.0), |found| found.is_mine = false)).stages.is_empty());
    let old = issued(&key(2), "alice", SignedDuration::ZERO, quarter());
    assert_eq!(names(&planned(&token, &unowned(Some(&old.0), |_| {}))), [["mint"]]);

    let once = self::token(&json!({"secretRef": {"name": "mine", "key": "token"}, "refresh": false}));
    assert_eq!(names(&planned(&once, &unowned(None, |_| {}))), [["mint"]]);
    for (token, facts, reason, hint) in [
        (&token, unowned(Some(&old.0), |found| found.is_mine = false), "SecretTaken", "was written by somebody else"),
        (&token, unowned(None, |found| found.is_opaque = false), "SecretTaken", "not of the type Opaque"),
        (&token, unowned(Some(&old.0), |found| found.is_immutable = true), "TokenUnusable", "is immutable"),
        (&once, unowned(Some(&old.0), |_| {}), "TokenUnusable", "remove token from the Secret mine"),
    ] {
        let plan = planned(token, &facts);
        let (status, said, message) = ready(&plan);
        assert_eq!((plan.stages.len(), status, said), (0, ConditionStatus::False, reason));
        assert!(message.contains(hint), "{message}");
    }
}

#[test]
fn problems_say_what_to_do_and_are_waited_for() {
    let key = |key| Facts { key, found: FoundSecret::Nothing, strays: Vec::new() };
    for (spec, facts, reason, hint) in [
        (json!({}), key(SigningKey::NoSecret), "ReferenceMissing", "create it, with the key as jwt.key"),
        (json!({}), key(SigningKey::NoEntry), "ReferenceMissing", "the Secret keys has no entry jwt.key"),
        (json!({}), key(SigningKey::NotNamed), "InvalidSpec", "spec.jwtKeyRef"),
        (json!({"lifetime": "soon"}), facts_of(FoundSecret::Nothing), "InvalidSpec", "spec.lifetime"),
        (json!({}), facts_of(FoundSecret::Foreign), "SecretTaken", "spec.secretRef"),
    ] {
        let mut token = token(&spec);
        token.status = Some(TokenStatus { observed_generation: Some(2), ..TokenStatus::default() });
        let plan = planned(&token, &facts);
        assert_eq!(names(&plan).len(), 0, "{reason}");
        let (status, said, message) = ready(&plan);
        assert_eq!((status, said), (ConditionStatus::False, reason));
        assert!(message.contains(hint), "{message}");
        assert_eq!(plan.next, Next::OnChange, "a change triggers the next reconcile");
        assert!(plan.events[0].is_warning);
    }
}

#[test]
fn a_short_key_is_used_with_a_warning() {
    let short = Key::new(b"too short").unwrap();
    let facts = |found| Facts { key: SigningKey::Good(Box::new(short.clone())), found, strays: Vec::new() };
    let text = issued(&short, "alice", SignedDuration::ZERO, quarter());
    for (found, steps) in [(FoundSecret::Nothing, 1), (ours(Some(text)), 0)] {
        let plan = planned(&token(&json!({})), &facts(found));
        assert_eq!((names(&plan).len(), ready(&plan).0), (steps, ConditionStatus::True));
        let insecure = plan.conditions.iter().find(|condition| condition.type_ == "Insecure").unwrap();
        assert_eq!((insecure.status, insecure.reason), (ConditionStatus::True, "KeyTooShort"));
        let expected = "jwt.key in the Secret keys: the signing key has 9 bytes and can be guessed: use at least 32";
        assert_eq!(insecure.message, expected);
        assert!(plan.events.iter().any(|event| event.is_warning && event.text == expected), "{:?}", plan.events);
    }
    let plan = planned(&token(&json!({})), &facts_of(FoundSecret::Nothing));
    assert!(plan.conditions.iter().all(|condition| condition.type_ != "Insecure"));
}

#[test]
fn secrets_under_an_old_name_are_deleted() {
    let mut facts = facts_of(FoundSecret::Nothing);
    facts.strays = vec![secret_version("t-jwt-bob")];
    assert_eq!(names(&planned(&token(&json!({})), &facts)), [["mint"], ["delete"]]);
    facts.found = FoundSecret::Foreign;
    assert_eq!(names(&planned(&token(&json!({})), &facts)), [["delete"]], "even if the new one has a problem");
}

#[test]
fn debug_output_contains_no_secrets() {
    let text = issued(&key(1), "alice", SignedDuration::ZERO, quarter());
    let facts = facts_of(ours(Some(text.clone())));
    let shown = format!("{facts:?} {:?}", plan(&token(&json!({})), &facts, NOW));
    assert!(!shown.contains(&text.0) && !shown.contains("eyJ"), "{shown}");
}
