use std::collections::BTreeSet;

use k8s_openapi::ByteString;
use kube::core::ApiResource;
use slurm_operator_api::slinky::VOCABULARY;

use super::*;
use crate::daemons::shared::SLURMD;

fn key(name: &str) -> SlurmKey {
    SlurmKey::new(format!("{name} is a long enough key").into_bytes()).unwrap()
}

fn ring(default: &str, other: &str) -> KeyRing {
    KeyRing { default: key(default), other: (!other.is_empty()).then(|| key(other)) }
}

fn live(ring: KeyRing, phase: Phase) -> LiveRing {
    LiveRing { known: vec![ring.hash()], ring, phase }
}

fn user(name: &str, has_read: HasRead) -> KeyUser {
    let resource = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
    let pod = ObjectVersion {
        resource,
        namespace: Some("ns".to_owned()),
        name: name.to_owned(),
        uid: name.to_owned(),
        resource_version: "1".to_owned(),
    };
    KeyUser { pod, daemon: SLURMD, has_read, asked: None }
}

fn names(left: &[KeyUser]) -> Vec<&str> {
    left.iter().map(|user| user.pod.name.as_str()).collect()
}

#[test]
fn slurm_reads_what_is_written() {
    let written = ring("a", "b").jwks();
    let parsed: Value = serde_json::from_str(&written).unwrap();
    let keys = parsed["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 2);
    for entry in keys {
        assert_eq!((&entry["alg"], &entry["kty"]), (&json!("HS256"), &json!("oct")));
    }
    assert_eq!(keys[0]["use"], "default");
    assert_eq!(keys[1].get("use"), None);
    assert_ne!(keys[0]["kid"], keys[1]["kid"]);
    assert_eq!(KeyRing::parse(written.as_bytes()), Some(ring("a", "b")));
    assert_eq!(KeyRing::parse(ring("a", "").jwks().as_bytes()), Some(ring("a", "")));
    for broken in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"k":"c2hvcnQ","use":"default"}]}"#] {
        assert_eq!(KeyRing::parse(broken.as_bytes()), None, "{broken}");
    }
}

#[test]
fn a_key_that_slurm_refuses_is_none() {
    assert_eq!(SlurmKey::new(vec![1; 15]), None);
    assert!(SlurmKey::new(vec![1; 16]).is_some());
}

#[test]
fn no_key_is_printed() {
    let text = format!("{:?}", live(ring("hunter2", "hunter3"), Phase::Adding));
    assert!(!text.contains("hunter") && !text.contains("104"), "{text}");
}

#[test]
fn the_secret_is_read_as_it_was_written() {
    let known = live(ring("a", ""), Phase::None).with(ring("a", "b"), Phase::Adding);
    let desired = known.secret(&VOCABULARY, ObjectMeta::default());
    let mut secret = Secret { metadata: desired.object.metadata.clone(), ..Secret::default() };
    let data = desired.object.data["data"].as_object().unwrap().iter();
    let bytes = |value: &Value| ByteString(STANDARD.decode(value.as_str().unwrap()).unwrap());
    secret.data = Some(data.map(|(name, value)| (name.clone(), bytes(value))).collect());
    assert_eq!(LiveRing::of(&VOCABULARY, &secret), Some(known.clone()));
    let entries: BTreeSet<String> = secret.data.unwrap().into_keys().collect();
    let markers = [ring("a", ""), ring("a", "b")].map(|ring| marker(&ring.hash()));
    let expected: BTreeSet<String> = [JWKS.to_owned(), KEY.to_owned()].into_iter().chain(markers).collect();
    assert_eq!(entries, expected);
}

#[test]
fn only_the_last_rings_are_remembered() {
    let mut found = live(ring("a", ""), Phase::None);
    for number in 0..9 {
        found = found.with(ring(&number.to_string(), ""), Phase::None);
    }
    assert_eq!(found.known.len(), REMEMBERED);
    assert_eq!(found.known.last(), Some(&ring("8", "").hash()));
    // Back to one of them: it is the newest.
    let back = found.with(ring("7", ""), Phase::None);
    assert_eq!((back.known.len(), back.known.last()), (REMEMBERED, Some(&ring("7", "").hash())));
}

#[test]
fn a_new_cluster_gets_the_users_key() {
    let decision = decide(None, Some(&key("a")), Some(&[])).unwrap();
    assert_eq!((decision.live.ring, decision.live.phase), (ring("a", ""), Phase::None));
    // Workers of an earlier release.
    let decision = decide(None, Some(&key("a")), Some(&[user("w", HasRead::UsersSecret)])).unwrap();
    assert_eq!(decision.live.ring, ring("a", ""));
    assert_eq!(decide(None, None, Some(&[])), None);
}

#[test]
fn a_deleted_ring_is_made_again_only_if_daemons_have_its_keys() {
    let has = |ring: &KeyRing| [user("w", HasRead::Ring(ring.hash()))];
    assert!(decide(None, Some(&key("a")), Some(&has(&ring("a", "")))).is_some());
    assert_eq!(decide(None, Some(&key("a")), Some(&has(&ring("b", "a")))), None);
}

#[test]
fn without_the_users_key_nothing_changes() {
    let before = live(ring("a", "b"), Phase::Adding);
    let decision = decide(Some(&before), None, Some(&[])).unwrap();
    assert_eq!((decision.live, decision.left), (before, Vec::new()));
}

#[test]
fn a_change_waits_for_every_daemon_in_every_step() {
    let steps = [
        (ring("a", ""), ring("a", "b"), Phase::Adding),
        (ring("a", "b"), ring("b", "a"), Phase::Switching),
        (ring("b", "a"), ring("b", ""), Phase::Removing),
    ];
    for (before, after, phase) in steps {
        let now = live(before.clone(), Phase::Adding);
        let (done, late) = (user("done", HasRead::Ring(before.hash())), user("late", HasRead::Ring("old".to_owned())));
        let waits = decide(Some(&now), Some(&key("b")), Some(&[done.clone(), late])).unwrap();
        assert_eq!((&waits.live.ring, names(&waits.left)), (&before, vec!["late"]));
        let goes_on = decide(Some(&now), Some(&key("b")), Some(&[done])).unwrap();
        assert_eq!((goes_on.live.ring, goes_on.live.phase), (after, phase));
    }
}

#[test]
fn a_daemon_that_was_never_seen_counts_while_there_are_two_keys() {
    let new = [user("new", HasRead::First)];
    let single = decide(Some(&live(ring("a", ""), Phase::None)), Some(&key("b")), Some(&new)).unwrap();
    assert_eq!(single.live.ring, ring("a", "b"));
    let double = decide(Some(&live(ring("a", "b"), Phase::Adding)), Some(&key("b")), Some(&new)).unwrap();
    assert_eq!((double.live.ring, names(&double.left)), (ring("a", "b"), vec!["new"]));
}

#[test]
fn workers_with_the_users_secret_are_replaced_before_anything_else() {
    let now = live(ring("a", ""), Phase::None);
    let workers = [user("old", HasRead::UsersSecret), user("new", HasRead::First)];
    let decision = decide(Some(&now), Some(&key("b")), Some(&workers)).unwrap();
    assert_eq!(
        (decision.live.ring, decision.live.phase, names(&decision.left)),
        (ring("a", ""), Phase::Replacing, vec!["old"])
    );
    // Not without a reason.
    let decision = decide(Some(&now), Some(&key("a")), Some(&workers)).unwrap();
    assert_eq!((decision.live.phase, decision.left), (Phase::None, Vec::new()));
}

#[test]
fn a_change_is_over_when_all_have_forgotten_the_old_key() {
    let now = live(ring("b", ""), Phase::Removing);
    let late = [user("late", HasRead::Ring(ring("b", "a").hash()))];
    let decision = decide(Some(&now), Some(&key("b")), Some(&late)).unwrap();
    assert_eq!((decision.live.phase, names(&decision.left)), (Phase::Removing, vec!["late"]));
    let done = [user("done", HasRead::Ring(ring("b", "").hash()))];
    let decision = decide(Some(&now), Some(&key("b")), Some(&done)).unwrap();
    assert_eq!((decision.live.phase, decision.left), (Phase::None, Vec::new()));
}

/// Users change their mind at any time, daemons read late: at every moment each daemon accepts what each other one signs.
#[test]
fn daemons_never_lose_each_other() {
    let keys = ["a", "b", "c"];
    // A small generator is enough here.
    let mut seed: u64 = 7;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..20 {
        let mut now = live(ring("a", ""), Phase::None);
        let mut daemons = vec![ring("a", ""); 4];
        let mut wanted = "a";
        let mut changes = 0;
        for round in 0..200 {
            if round < 100 && random(10) == 0 {
                wanted = keys[usize::try_from(random(3)).unwrap()];
            }
            let late = usize::try_from(random(4)).unwrap();
            daemons[late] = now.ring.clone();
            let users: Vec<KeyUser> = daemons.iter().map(|read| user("daemon", HasRead::Ring(read.hash()))).collect();
            let decision = decide(Some(&now), Some(&key(wanted)), Some(&users)).unwrap();
            changes += u32::from(decision.live.ring != now.ring);
            now = decision.live;
            // New daemons read the ring as it is.
            for one in daemons.iter().chain([&now.ring]) {
                let accepts =
                    |other: &KeyRing| other.default == one.default || other.other.as_ref() == Some(&one.default);
                assert!(daemons.iter().chain([&now.ring]).all(accepts), "{one:?} {daemons:?}");
            }
        }
        assert_eq!((now.ring, now.phase), (ring(wanted, ""), Phase::None));
        assert!(changes < 100);
    }
}
