//! Texts with and without secrets.

use proptest::prelude::*;

use super::super::plan_text::{
    Form, Known, is_no_secret, is_random, is_secret_name, redacted, without_keys_and_tokens,
};

/// A JSON web token.
pub const JWT: &str =
    "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJleHAiOjE4MDAwMDAwMDAsInN1biI6InNsdXJtIn0.Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MA";

/// A key in base64.
pub const KEY: &str = "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=";

#[test]
fn what_is_secret_goes_and_the_rest_of_the_line_stays() {
    let bearer = format!("Authorization: Bearer {JWT}\n");
    let quoted = format!("curl -H \"Authorization: Bearer {KEY}\" http://rest:6820/slurm\n");
    let printed = format!("SLURM_JWT={JWT}\n");
    let header = format!("X-SLURM-USER-TOKEN: {JWT} sent\n");
    let bare = format!("got {JWT}, which has expired\n");
    let key = format!("the key {KEY} is new\n");
    let cases = [
        // slurmdbd.conf, slurm.conf
        (Form::File, "StoragePass=hunter2", "StoragePass=<removed>"),
        (Form::File, "storagepass=hunter2 # set by puppet\n", "storagepass=<removed> # set by puppet\n"),
        (
            Form::File,
            "StorageHost=db StoragePass=a\"b,c;d StorageUser=slurm\n",
            "StorageHost=db StoragePass=<removed> StorageUser=slurm\n",
        ),
        (Form::File, "AccountingStoragePass = two words\n", "AccountingStoragePass = <removed>\n"),
        // sssd.conf, ini
        (Form::File, "ldap_default_authtok = two words\n", "ldap_default_authtok = <removed>\n"),
        (Form::File, "; db_password: hunter2\n", "; db_password: <removed>\n"),
        // YAML
        (Form::File, "  password: two words\n", "  password: <removed>\n"),
        (Form::File, "  - api_key: 'it''s'\n  - host: db\n", "  - api_key: '<removed>'\n  - host: db\n"),
        (Form::File, "token: |\n  hunter2\n\n  hunter3\nhost: db\n", "token: |\nhost: db\n"),
        (Form::File, "token = \"hunter2\nhunter3\"\nhost = db\n", "token = \"<removed>\nhost = db\n"),
        // JSON
        (
            Form::File,
            r#"{"user": "slurm", "password": "a\"b", "host": "db"}"#,
            r#"{"user": "slurm", "password": "<removed>", "host": "db"}"#,
        ),
        (
            Form::Prose,
            r#"{"message":"login with password=hunter2","level":"INFO"}"#,
            r#"{"message":"login with password=<removed>","level":"INFO"}"#,
        ),
        (
            Form::Prose,
            r#"{"message":"sent {\"token\":\"hunter2\",\"a\":1}"}"#,
            r#"{"message":"sent {\"token\":\"<removed>\",\"a\":1}"}"#,
        ),
        // Commands
        (Form::File, "exec tool --password hunter2 --host db\n", "exec tool --password <removed> --host db\n"),
        (Form::File, "export DB_PASSWORD='two words'; run\n", "export DB_PASSWORD='<removed>'; run\n"),
        (Form::Prose, "running tool --api-key=hunter2 now\n", "running tool --api-key=<removed> now\n"),
        (Form::Prose, &quoted, "curl -H \"Authorization: <removed>\" http://rest:6820/slurm\n"),
        // Logs
        (Form::Prose, &bearer, "Authorization: <removed>\n"),
        (Form::Prose, &printed, "SLURM_JWT=<removed>\n"),
        (Form::Prose, &header, "X-SLURM-USER-TOKEN: <removed> sent\n"),
        (Form::Prose, &bare, "got <removed: a token>, which has expired\n"),
        (Form::Prose, &key, "the key <removed: a key> is new\n"),
        (Form::Prose, "password: swordfish was wrong\n", "password: <removed> was wrong\n"),
        (
            Form::Prose,
            "cannot reach mysql://slurm:p@ss/w0rd@db:3306/acct today\n",
            "cannot reach mysql://slurm:<removed>@db:3306/acct today\n",
        ),
        (Form::Prose, "http://a:1/?next=https://u:hunter2@b/\n", "http://a:1/?next=https://u:<removed>@b/\n"),
        (Form::Prose, "pushed with ghp_0123456789abcdefABCDEF today", "pushed with <removed: a token> today"),
    ];
    for (form, text, expected) in cases {
        assert_eq!(redacted(text, form), expected, "{form:?} {text}");
        assert_eq!(redacted(expected, form), expected, "once is enough: {text}");
    }
}

#[test]
fn what_is_needed_to_find_a_problem_stays() {
    let files = [
        "AuthType=auth/slurm\nAuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key=/etc/slurm/jwt.key,jwks=/etc/slurm/slurm.jwks\n",
        "SlurmctldParameters=enable_configless,max_token_lifespan=3600\nPrivateData=jobs\nPrologFlags=Contain\n",
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=slurm-accounting\n",
        "NodeName=gpu-[0-3] CPUs=64 RealMemory=512000 Gres=gpu:8 Feature=a,b State=UNKNOWN\n",
        "PartitionName=all Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP\n",
        "jwtKeyRef:\n  name: slurm-auth-jwt\n  key: jwt.key\npasswordKeyRef: {name: db, key: password}\n",
        "secretName: slurm-auth\ntokenExpirationSeconds: 3600\nserviceAccountName: slurm\n",
        "export TOKEN=$(cat /run/token) PASSWORD=${DB_PASSWORD} SLURM_JWT=daemon\n",
        "image: ghcr.io/slinkyproject/slurmctld@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n",
    ];
    let prose = [
        "slurmctld: error: Node cpu-0 has low real_memory size (1000 < 2000)\n",
        "token: expired since 09:00, asking for another\n",
        "the Secret slurm-auth-jwt has no entry jwt.key: add the key there, or correct spec.jwtKeyRef\n",
        "MountVolume.SetUp failed for volume \"jwt\" : secret \"slurm-auth-jwt\" not found\n",
        "couldn't find key jwt.key in Secret slurm/slurm-auth-jwt\n",
        r#"{"level":"INFO","kind":"token","namespace":"slurm","name":"alice","message":"generate the content of Secret alice-token"}"#,
        r#"{"level":"WARN","target":"slurm_operator::frontends::slinky::token::plan","error":"no response within 10 s"}"#,
        r#"{"kind":"nodeset","namespace":"slurm","name":"gpu","objects":"gpu-3 gpu-4","message":"drain gpu-[3-4] (slurm-operator: NodeSet (slurm/gpu) is scaling in) in Slurm"}"#,
        "auth/jwt: token expiration not set; Slurm version 26.05.1; http://slurm-restapi.slurm:6820/slurm/v0.0.45/nodes?a=b@c\n",
        "Pod 2b7e1516-28ae-d2a6-abf7-158809cf4f3c in /var/lib/kubelet/pods/2b7e1516-28ae-d2a6-abf7-158809cf4f3c/volumes\n",
        "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef exited with 137\n",
    ];
    for text in files {
        assert_eq!(redacted(text, Form::File), text);
    }
    for text in prose {
        assert_eq!(redacted(text, Form::Prose), text);
    }
}

#[test]
fn only_public_pem_blocks_stay() {
    let block = |label: &str| format!("-----BEGIN {label}-----\n{KEY}\n{KEY}\n-----END {label}-----");
    let public = format!("a\n{}\n{}\nb\n", block("CERTIFICATE"), block("PUBLIC KEY"));
    assert_eq!(redacted(&public, Form::File), public);
    let private = format!("a\n{}\nb\n", block("OPENSSH PRIVATE KEY"));
    assert_eq!(redacted(&private, Form::File), "a\n<removed: OPENSSH PRIVATE KEY>\nb\n");
    // One that was cut must not take its label from another one.
    let cut = format!("-----BEGIN CERTIFICATE-----\nab\n{}\n", block("PRIVATE KEY"));
    assert!(!redacted(&cut, Form::Prose).contains(KEY));
    let open = format!("a\n-----BEGIN PRIVATE KEY-----\n{KEY}");
    assert_eq!(redacted(&open, Form::Prose), "a\n<removed: PRIVATE KEY>");
    let escaped = format!(r#"{{"message":"{}"}}"#, block("PRIVATE KEY").replace('\n', "\\n"));
    assert_eq!(redacted(&escaped, Form::Prose), r#"{"message":"<removed: PRIVATE KEY>"}"#);
}

#[test]
fn names_say_what_is_secret() {
    for name in [
        "password",
        "DB_PASSWORD",
        "dbPassword",
        "StoragePass",
        "AccountingStoragePass",
        "storagepass",
        "mysql.passwd",
        "SLURM_JWT",
        "--token",
        "X-Auth-Token",
        "apiKey",
        "API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "client_secret",
        "slurm.key",
        "jwt.key",
        "munge.key",
        "ssh_host_key",
        "ldap_default_authtok",
        "credentials",
        "TOKEN2",
        "sasl-passphrase",
        "wandb_apikey",
    ] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in [
        "secretName",
        "jwtKeyRef",
        "passwordKeyRef",
        "tokenFile",
        "TOKEN_PATH",
        "tokenExpirationSeconds",
        "key",
        "name",
        "authorized_keys",
        "publicKey",
        "bypass",
        "PassEnv",
        "compass2x",
        "max_tokens",
        "KeepAliveTime",
        "AuthAltParameters",
        "keyRotation",
        "SlurmKeyInUse",
        "jwt-key-hash",
        "secretKeyRef",
        "kind",
        "",
        "...",
    ] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn random_texts_are_told_from_names() {
    assert!(is_random(KEY.trim_end_matches('='), 40) && is_random("AbCd01EfGh23IjKl45Mn", 20));
    for name in [
        "a-long-name-of-a-pod-in-a-cluster-of-somebody-1",
        "SlurmNodeStateNotRespondingAndMoreWordsThatAreLong",
        "0123456789abcdef0123456789abcdef",
    ] {
        assert!(!is_random(name, 20), "{name}");
    }
    assert!(is_no_secret("/etc/slurm/jwt.key") && is_no_secret("$TOKEN") && is_no_secret(" "));
    assert!(!is_no_secret("/8Qx/ab") && !is_no_secret("$6$salt$hash") && !is_no_secret("|pipe"));
}

#[test]
fn what_is_known_goes_wherever_it_is() {
    let mut known = Known::default();
    known.add("pa\"ss word", "<1>");
    known.add("pa\"ss word and more", "<2>");
    known.add("slurm", "<3>");
    let text = r#"a pa"ss word, {"message":"pa\"ss word and more"} of slurm"#;
    assert_eq!(known.replaced(text), r#"a <1>, {"message":"<2>"} of slurm"#);
}

/// What lines are made of that matter here.
const FRAGMENTS: [&str; 28] = [
    "password",
    "=",
    ":",
    " ",
    "\"",
    "'",
    "\\",
    "\n",
    "-----BEGIN ",
    "-----END ",
    "PRIVATE KEY-----",
    "CERTIFICATE-----",
    "://",
    "@",
    "ü",
    "|",
    "--token",
    "Authorization",
    "Bearer ",
    "eyJhbGciOi",
    ".",
    "/",
    "{",
    "}",
    "\t",
    "-",
    "Zm9vYmFyYmF6cXV4MTIzNDU2Nzg5MGFiY2RlZkdI",
    "a1",
];

proptest! {
    #[test]
    fn any_text_can_be_redacted(parts in prop::collection::vec(prop::sample::select(FRAGMENTS.to_vec()), 0..60)) {
        let text = parts.concat();
        for form in [Form::File, Form::Prose] {
            let redacted = redacted(&text, form);
            prop_assert_eq!(without_keys_and_tokens(&redacted).matches('\n').count(), redacted.matches('\n').count());
        }
    }

    #[test]
    fn a_value_never_stays_and_nothing_else_goes(secret in "[A-Za-z0-9][!#%&*+,./;<?@^_`|~(){}$A-Za-z0-9-]{5,30}") {
        prop_assume!(!is_no_secret(&secret) && !secret.contains("://"));
        let contexts = [
            ("StoragePass=", "\n"), ("a=1 DB_PASSWORD=", " b=2\n"), ("  password: ", "\n"), ("{\"token\": \"", "\", \"b\": 2}"),
            ("run --api-key ", " -v\n"), ("{\"message\":\"db_password=", "\",\"b\":2}"),
        ];
        for (before, after) in contexts {
            for form in [Form::File, Form::Prose] {
                let expected = format!("{before}<removed>{after}");
                prop_assert_eq!(redacted(&format!("{before}{secret}{after}"), form), expected);
            }
        }
        let header = redacted(&format!("Authorization: Bearer {secret}\n"), Form::Prose);
        prop_assert_eq!(header, "Authorization: <removed>\n");
    }
}
