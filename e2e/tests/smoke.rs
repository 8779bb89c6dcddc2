//! The images: each runs its daemon in the version of its tag, and provides what docs/images.md says.

use anyhow::{Context, Result};
use e2e::{Scene, slurm_image, slurm_version};
use kube::api::LogParams;
use serde_json::{Value, json};

/// The spec of a pod with one container that has these additional fields.
fn pod(image: &str, container: Value) -> Value {
    let mut main = json!({"name": "main", "image": image, "imagePullPolicy": "Never"});
    if let (Some(main), Value::Object(container)) = (main.as_object_mut(), container) {
        main.extend(container);
    }
    json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "enableServiceLinks": false,
        "containers": [main],
    })
}

#[tokio::test]
async fn every_daemon_has_the_version_of_its_tag() -> Result<()> {
    let scene = Scene::start("versions").await?;
    let version = slurm_version()?;
    // slurmdbd prints nothing without its own configuration.
    let slurmdbd = "printf 'DbdHost=localhost\\nSlurmUser=slurm\\nStorageType=accounting_storage/mysql\\n' > /tmp/conf
        install -D --owner=slurm --group=slurm --mode=600 /tmp/conf /etc/slurm/slurmdbd.conf
        exec setpriv --reuid=slurm --regid=slurm --clear-groups slurmdbd -V";
    // Through the entrypoint where that passes arguments on. sackd has no option that prints its version.
    for (daemon, container) in [
        ("slurmctld", json!({"args": ["-V"]})),
        ("slurmd", json!({"args": ["-V"]})),
        ("slurmdbd", json!({"command": ["sh", "-ec", slurmdbd], "securityContext": {"runAsUser": 0}})),
        ("slurmrestd", json!({"args": ["-V"], "securityContext": {"runAsUser": 65534, "runAsGroup": 65534}})),
        ("login", json!({"command": ["dpkg-query", "--show", "--showformat", " ${Version}", "sackd"]})),
    ] {
        scene.pod(daemon, pod(&slurm_image(daemon)?, container)).await?;
    }
    for daemon in ["slurmctld", "slurmd", "slurmdbd", "slurmrestd", "login"] {
        let output = scene.output(daemon).await.with_context(|| format!("the image of {daemon}"))?;
        assert!(output.contains(&format!(" {version}.")), "{daemon}: {output}");
    }
    scene.finish().await
}

#[tokio::test]
async fn slurm_is_user_401_and_has_its_plugins_everywhere() -> Result<()> {
    let scene = Scene::start("accounts").await?;
    let daemons = ["slurmctld", "slurmd", "slurmdbd", "slurmrestd", "login"];
    let script = "id -u slurm; id -g slurm; cd /usr/lib/*/slurm-wlm; ls auth_slurm.so auth_jwt.so serializer_json.so";
    for daemon in daemons {
        scene.pod(daemon, pod(&slurm_image(daemon)?, json!({"command": ["sh", "-ec", script]}))).await?;
    }
    for daemon in daemons {
        let output = scene.output(daemon).await.with_context(|| format!("the image of {daemon}"))?;
        assert_eq!(output, "401\n401\nauth_jwt.so\nauth_slurm.so\nserializer_json.so\n", "{daemon}");
    }
    scene.finish().await
}

/// Shell quoting in the arguments of slurmd is evaluated once, and resources beyond the pod's limits are not given to jobs.
#[tokio::test]
async fn slurmd_evaluates_its_arguments_and_respects_the_pod_s_limits() -> Result<()> {
    let scene = Scene::start("slurmd-arguments").await?;
    // A stub in place of slurmd prints its arguments, for a machine of a known size.
    let stub = r#"#!/bin/sh
if [ "$1" = -C ]; then
  echo NodeName=x CPUs=16 Boards=1 SocketsPerBoard=2 CoresPerSocket=4 ThreadsPerCore=2 RealMemory=64000
else
  for argument; do echo "[$argument]"; done
fi"#;
    let script =
        r#"printf '%s\n' "$STUB" > /usr/local/sbin/slurmd; chmod +x /usr/local/sbin/slurmd; exec entrypoint "$@""#;
    let conf = r#"'Features=gpu Topology='"$SLINKY_TOPOLOGY"''"#;
    let args = ["-Z", "--conf-server", "slurm-controller.slurm:6817", "--conf", conf];
    let container = |environment: &[(&str, &str)]| {
        let mut env = vec![json!({"name": "STUB", "value": stub})];
        env.extend(environment.iter().map(|(name, value)| json!({"name": name, "value": value})));
        json!({"command": ["bash", "-c", script, "bash"], "args": args, "env": env})
    };
    let image = slurm_image("slurmd")?;
    let topology = ("SLINKY_TOPOLOGY", "topo-switch:s1,topo-block:b2");
    for (name, environment, expected) in [
        ("unlimited", vec![topology], "Features=gpu Topology=topo-switch:s1,topo-block:b2"),
        ("no-topology", vec![("POD_CPUS", "0"), ("POD_MEMORY", "0")], "Features=gpu Topology="),
        (
            "limited",
            vec![topology, ("POD_CPUS", "3"), ("POD_MEMORY", "16000")],
            // Three threads need two cores of eight.
            "CoreSpecCount=6 MemSpecLimit=48000 Features=gpu Topology=topo-switch:s1,topo-block:b2",
        ),
        ("larger-than-host", vec![("POD_CPUS", "99"), ("POD_MEMORY", "99000")], "Features=gpu Topology="),
    ] {
        scene.pod(name, pod(&image, container(&environment))).await?;
        let expected = format!("[-D]\n[-Z]\n[--conf-server]\n[slurm-controller.slurm:6817]\n[--conf]\n[{expected}]\n");
        assert_eq!(scene.output(name).await?, expected, "{name}");
    }
    scene.finish().await
}

#[tokio::test]
async fn login_and_slurmd_let_people_in_only_where_configured() -> Result<()> {
    let scene = Scene::start("ssh").await?;
    // Without a cluster slurmd would exit and end the container, so a stub replaces it.
    let script = r#"printf '#!/bin/sh\nexec sleep infinity\n' > /usr/local/sbin/slurmd; chmod +x /usr/local/sbin/slurmd
        [ -z "$SSHD" ] || printf 'UsePAM yes\n' > /etc/ssh/sshd_config
        [ -z "$PAM" ] || printf '%s\n' "$PAM" > /etc/pam.d/sshd
        exec entrypoint"#;
    let worker = |env: &[(&str, &str)]| {
        let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        json!({"command": ["bash", "-c", script], "env": env})
    };
    scene.pod("plain", pod(&slurm_image("slurmd")?, worker(&[]))).await?;
    scene.pod("with-ssh", pod(&slurm_image("slurmd")?, worker(&[("SSHD", "yes")]))).await?;
    let options = [("SSHD", "yes"), ("PAM_SLURM_ADOPT_OPTIONS", "action_no_jobs=deny|&\\1")];
    scene.pod("with-options", pod(&slurm_image("slurmd")?, worker(&options))).await?;
    let other_base = [("SSHD", "yes"), ("PAM", "account required pam_unix.so")];
    scene.pod("other-base", pod(&slurm_image("slurmd")?, worker(&other_base))).await?;
    scene.pod("login", pod(&slurm_image("login")?, json!({}))).await?;
    for name in ["plain", "with-ssh", "with-options", "other-base", "login"] {
        scene.ready(name).await?;
    }
    let banner = "bash -c 'timeout 5 head -c 4 < /dev/tcp/127.0.0.1/22'";
    for name in ["with-ssh", "with-options", "login"] {
        let greeting = testkit::wait_for("sshd", e2e::SOON, async || scene.exec(name, banner).await).await?;
        assert_eq!(greeting, "SSH-", "{name}");
    }
    let adopt = scene.exec("with-ssh", "grep -A1 pam_slurm_adopt /etc/pam.d/sshd").await?;
    assert!(adopt.starts_with("account required pam_slurm_adopt.so action_adopt_failure=deny"), "{adopt}");
    assert!(adopt.contains("\n@include common-account"), "{adopt}");
    let adopt = scene.exec("with-options", "grep pam_slurm_adopt /etc/pam.d/sshd").await?;
    assert_eq!(adopt, "account required pam_slurm_adopt.so action_no_jobs=deny|&\\1\n");
    assert!(scene.exec("other-base", banner).await.is_err(), "people without a job would get in");
    assert!(scene.pods().logs("other-base", &LogParams::default()).await?.contains("sshd is not started"));
    assert!(scene.exec("plain", banner).await.is_err(), "no sshd was configured");
    assert_eq!(scene.exec("plain", "pgrep -c 'sshd|sssd' || true").await?, "0\n");
    scene.finish().await
}

#[tokio::test]
async fn the_operator_runs_without_root_on_a_read_only_root() -> Result<()> {
    let scene = Scene::start("operator").await?;
    let image = "localhost/slurm-operator/operator:dev";
    let security = json!({
        "runAsNonRoot": true, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    });
    for (name, args) in [("version", ["--version"]), ("crds", ["crds"])] {
        scene.pod(name, pod(image, json!({"args": args, "securityContext": security}))).await?;
    }
    assert_eq!(scene.output("version").await?, format!("slurm-operator {}\n", env!("CARGO_PKG_VERSION")));
    assert!(scene.output("crds").await?.contains("tokens.slinky.slurm.net"));
    scene.finish().await
}

#[tokio::test]
async fn mariadb_has_the_database_and_the_user_asked_for() -> Result<()> {
    let scene = Scene::start("mariadb").await?;
    let container = json!({
        "env": [
            {"name": "MARIADB_DATABASE", "value": "slurm_acct_db"},
            {"name": "MARIADB_USER", "value": "slurm"},
            {"name": "MARIADB_PASSWORD", "value": "it's a test"},
        ],
        "readinessProbe": {"tcpSocket": {"port": 3306}, "periodSeconds": 1},
    });
    scene.pod("mariadb", pod("localhost/slurm-operator/mariadb:11.8", container)).await?;
    scene.ready("mariadb").await?;
    let sql = r#"mariadb --host=127.0.0.1 --user=slurm --password="$MARIADB_PASSWORD" --skip-column-names \
        --execute='CREATE TABLE t (n INT); INSERT INTO t VALUES (7); SELECT n FROM t' slurm_acct_db"#;
    assert_eq!(scene.exec("mariadb", sql).await?, "7\n");
    scene.finish().await
}
