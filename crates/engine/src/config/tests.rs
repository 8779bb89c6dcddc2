use slurm::conf::Conf;

use super::*;

fn cluster() -> ClusterModel {
    ClusterModel {
        name: "slurm_lab".into(),
        hosts: vec![Host {
            name: "lab-controller-0".into(),
            address: "lab-controller-0.lab-controller-internal.slurm".into(),
        }],
        address: Some("lab-controller.slurm".into()),
        port: 6817,
        ..ClusterModel::default()
    }
}

fn set(name: &str, partition: Option<&str>) -> NodeSetLine {
    NodeSetLine { origin: format!("NodeSet {name}"), name: name.into(), partition: partition.map(str::to_owned) }
}

const PLAIN: &str = "\
#
### GENERAL ###
ClusterName=slurm_lab
SlurmUser=slurm
SlurmctldHost=lab-controller-0(lab-controller-0.lab-controller-internal.slurm)
SlurmctldPort=6817
SlurmctldAddr=lab-controller.slurm
StateSaveLocation=/var/spool/slurmctld/slurm_lab
SlurmdUser=root
SlurmdPort=6818
SlurmdSpoolDir=/var/spool/slurmd
MaxNodeCount=65533
#
### LOGGING ###
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmSchedLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
#
### PLUGINS & PARAMETERS ###
AuthType=auth/slurm
CredType=cred/slurm
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
AuthInfo=use_client_ids
SlurmctldParameters=enable_configless
#
### ACCOUNTING ###
AccountingStorageType=accounting_storage/none
";

#[test]
fn gres_types_follow_from_workers_unless_the_user_sets_them() {
    let gres_types = ["gpu".to_owned(), "fpga".to_owned()].into();
    let with = ClusterModel { gres_types, ..cluster() };
    assert!(slurm_conf(&with).unwrap().contains("\nGresTypes=fpga,gpu\n"));
    let set = ClusterModel { extra: "grestypes=gpu".into(), ..with };
    assert!(!slurm_conf(&set).unwrap().contains("GresTypes"));
}

#[test]
fn a_plain_cluster() {
    assert_eq!(slurm_conf(&cluster()).unwrap(), PLAIN);
    for version in ["24.11.5", "26.05.5"] {
        let cluster = ClusterModel { version: Some(version.parse().unwrap()), ..cluster() };
        assert_eq!(slurm_conf(&cluster).unwrap(), PLAIN, "{version}");
    }
}

#[test]
fn a_cluster_with_everything() {
    let full = ClusterModel {
        accounting: Some(Place { host: "db.example.com".into(), port: 16819 }),
        metrics: true,
        jwks: true,
        version: Some("26.05".parse().unwrap()),
        scripts: Scripts {
            prolog: vec!["a.sh".into(), "b.sh".into()],
            epilog: vec!["c.sh".into()],
            prolog_slurmctld: vec!["d.sh".into()],
            epilog_slurmctld: Vec::new(),
        },
        node_sets: vec![set("gpu", Some("State=UP MaxTime=UNLIMITED")), set("plain", None)],
        extra: "ReturnToService=2\nSlurmctldParameters=cloud_dns\n".into(),
        ..cluster()
    };
    let expected = PLAIN
        .replace("jwt.key\n", "jwt.key,jwks=/etc/slurm/jwks.json\n")
        .replace("enable_configless\n", "enable_configless\nMetricsType=metrics/openmetrics\n")
        .replace(
            "accounting_storage/none\n",
            "accounting_storage/slurmdbd
AccountingStorageHost=db.example.com
AccountingStoragePort=16819
#
### SLURMCTLD PROLOG & EPILOG ###
PrologSlurmctld=/etc/slurm/d.sh
#
### PROLOG & EPILOG ###
Prolog=a.sh
Prolog=b.sh
Epilog=c.sh
#
### NODESET & PARTITION ###
NodeSet=gpu Feature=gpu
PartitionName=gpu Nodes=gpu State=UP MaxTime=UNLIMITED
NodeSet=plain Feature=plain
#
### EXTRA CONFIG ###
ReturnToService=2
SlurmctldParameters=cloud_dns
#
### MERGED CONFIG ###
SlurmctldParameters=cloud_dns,enable_configless
",
        );
    assert_eq!(slurm_conf(&full).unwrap(), expected);

    let old = ClusterModel { version: Some("24.11".parse().unwrap()), ..full.clone() };
    assert_eq!(slurm_conf(&old).unwrap(), expected.replace("MetricsType=metrics/openmetrics\n", ""));
    let unknown = ClusterModel { version: None, ..full };
    assert!(!slurm_conf(&unknown).unwrap().contains("MetricsType"), "an unknown version has the lowest features");
}

#[test]
fn backups_are_listed_as_hosts() {
    let host = |n: u8| Host { name: format!("c-{n}"), address: format!("c-{n}.internal") };
    let cluster = ClusterModel { hosts: vec![host(0), host(1)], address: None, ..cluster() };
    let conf = slurm_conf(&cluster).unwrap();
    assert!(conf.contains("SlurmctldHost=c-0(c-0.internal)\nSlurmctldHost=c-1(c-1.internal)\n"), "{conf}");
    assert!(!conf.contains("SlurmctldAddr"), "{conf}");
    assert!(conf.contains("\nSlurmctldTimeout=30\n"), "a backup takes over in less than a minute: {conf}");
}

#[test]
fn invalid_input_is_rejected() {
    for (cluster, hint) in [
        (ClusterModel { extra: "A=1\nthis is prose\n".into(), ..cluster() }, "spec.extraConf: line 2 is not Key=Value"),
        (
            ClusterModel { extra: "A=1\nstatesavelocation=/tmp\n".into(), ..cluster() },
            "spec.extraConf: line 2: statesavelocation is set by the operator",
        ),
        (
            ClusterModel { node_sets: vec![set("gpu", Some("State UP"))], ..cluster() },
            "NodeSet gpu, spec.partition.config: ",
        ),
        (
            ClusterModel { node_sets: vec![set("gpu", Some("Nodes=ALL"))], ..cluster() },
            "Nodes is set already: remove it",
        ),
        (
            ClusterModel { node_sets: vec![set("gpu", None), set("GPU", None)], ..cluster() },
            "the same name GPU in Slurm",
        ),
    ] {
        let message = slurm_conf(&cluster).unwrap_err().to_string();
        assert!(message.contains(hint), "{message}");
    }
}

#[test]
fn an_external_cluster_has_a_minimal_config() {
    let cluster = ClusterModel {
        hosts: vec![Host { name: "head".into(), address: "head".into() }],
        address: None,
        port: 16817,
        ..cluster()
    };
    let expected = "\
#
### GENERAL ###
ClusterName=slurm_lab
SlurmUser=slurm
SlurmctldHost=head
SlurmctldPort=16817
#
### PLUGINS & PARAMETERS ###
AuthType=auth/slurm
CredType=cred/slurm
AuthAltTypes=auth/jwt
#
### ACCOUNTING ###
AccountingStorageType=accounting_storage/none
";
    assert_eq!(external_slurm_conf(&cluster).unwrap(), expected);
}

#[test]
fn cgroup_conf_is_minimal() {
    assert_eq!(cgroup_conf().unwrap(), "CgroupPlugin=autodetect\nIgnoreSystemd=yes\n");
}

fn slurmdbd(extra: &str) -> SlurmdbdModel<'_> {
    SlurmdbdModel {
        host: "a-accounting-0".into(),
        storage: Storage {
            host: "mariadb",
            port: 3306,
            database: "slurm_acct_db",
            user: Some("slurm"),
            password: "hunter2",
            has_ca: false,
            has_client_certificate: false,
        },
        jwks: false,
        extra,
    }
}

#[test]
fn a_plain_slurmdbd() {
    let expected = "\
#
### GENERAL ###
DbdHost=a-accounting-0
DbdPort=6819
SlurmUser=slurm
#
### PLUGINS & PARAMETERS ###
AuthType=auth/slurm
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
AuthInfo=use_client_ids
#
### STORAGE ###
StorageType=accounting_storage/mysql
StorageHost=mariadb
StoragePort=3306
StorageUser=slurm
StorageLoc=slurm_acct_db
StoragePass=hunter2
#
### LOGGING ###
LogFile=/dev/null
";
    assert_eq!(slurmdbd_conf(&slurmdbd("")).unwrap(), expected);
    assert!(!format!("{:?}", slurmdbd("")).contains("hunter2"));
}

#[test]
fn passwords_may_contain_anything_that_slurm_can_read() {
    let line = |password: &'static str| {
        let mut model = slurmdbd("");
        model.storage.password = password;
        let conf = slurmdbd_conf(&model)?;
        Ok::<_, ConfigError>(Conf::parse(&conf).unwrap().get("StoragePass").unwrap().to_owned())
    };
    for password in ["p#ss", "with blank", r"back\slash", "a=b,c", "ünï"] {
        assert_eq!(line(password).unwrap(), password);
    }
    let error = line("two\nStorageHost=other").unwrap_err().to_string();
    assert!(error.contains("StoragePass contains a line break") && !error.contains("other"), "{error}");
    assert!(line("").unwrap_err().to_string().contains("StoragePass is empty"));
}

#[test]
fn lists_of_slurmdbd_conf_are_merged() {
    let mut model = slurmdbd("PurgeJobAfter=12months\nStorageParameters=SSL_CIPHER=X\nauthinfo=ttl=60");
    (model.storage.has_ca, model.storage.has_client_certificate) = (true, true);
    let conf = Conf::parse(&slurmdbd_conf(&model).unwrap()).unwrap();
    let files = "SSL_CA=/etc/storage-tls/ca.crt,SSL_CERT=/etc/storage-tls/tls.crt";
    let expected = format!("{files},SSL_CIPHER=X,SSL_KEY=/etc/storage-tls/tls.key");
    assert_eq!(conf.get("StorageParameters"), Some(expected.as_str()));
    assert_eq!(conf.get("AuthInfo"), Some("ttl=60,use_client_ids"));
    assert_eq!(conf.get("PurgeJobAfter"), Some("12months"));
    let error = slurmdbd_conf(&slurmdbd("no pair")).unwrap_err();
    assert!(error.to_string().starts_with("spec.extraConf: line 1"), "{error}");
}
