//! Accounting of a SlurmCluster: slurmdbd and its database.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    common::{
        shared::{null_as_default, yes},
        template::Overlay,
    },
    nebius::shared::{NodeContainer, Placement},
};

/// Accounting.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Accounting {
    #[serde(flatten)]
    pub placement: Placement,

    /// Whether there is accounting. Defaults to false.
    #[serde(default)]
    pub enabled: bool,

    /// Number of pods. There is always one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<i32>,

    /// Whether the pod uses the user namespace of its Kubernetes node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_users: Option<bool>,

    /// Container that runs slurmdbd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmdbd: Option<NodeContainer>,

    /// Container that runs munged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub munge: Option<NodeContainer>,

    /// A database that runs elsewhere.
    #[serde(default, rename = "externalDB", skip_serializing_if = "Option::is_none")]
    pub external_db: Option<ExternalDb>,

    /// A database that mariadb-operator runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mariadb_operator: Option<MariaDb>,

    /// Parameters of slurmdbd.conf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurmdbd_config: Option<SlurmdbdConfig>,

    /// Parameters of slurm.conf for accounting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_config: Option<AccountingSlurmConfig>,
}

/// A database that runs elsewhere.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalDb {
    /// Whether it is used. Defaults to false.
    #[serde(default)]
    pub enabled: bool,

    /// Host of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,

    /// Port of the database. Defaults to 3306.
    #[serde(default = "mysql")]
    pub port: i32,

    /// User of slurmdbd in the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,

    /// Password of that user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_secret_key_ref: Option<PasswordRef>,

    /// TLS to the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,

    /// `StorageParameters` of slurmdbd.conf.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub storage_parameters: BTreeMap<String, String>,
}

/// Key of a Secret with a password.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct PasswordRef {
    /// Name of the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,

    /// Key in the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// TLS to a database.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// Name of the Secret with the CA certificates of the server: key ca.crt.
    #[serde(default, rename = "serverCASecretRef", skip_serializing_if = "Option::is_none")]
    pub server_ca_secret_ref: Option<String>,

    /// Name of the Secret with the certificate of slurmdbd: keys tls.crt and tls.key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cert_secret_ref: Option<String>,
}

/// A database that mariadb-operator runs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct MariaDb {
    #[serde(flatten)]
    pub container: NodeContainer,

    /// Whether it is used. It is not if not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,

    /// Whether the Secret with the passwords cannot be changed or deleted while the cluster exists. Defaults to false.
    #[serde(default)]
    pub protected_secret: bool,

    /// Number of database servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,

    /// Storage of the database, as in a MariaDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Overlay>,

    /// Replication of the database, as in a MariaDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication: Option<Overlay>,

    /// Metrics of the database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<MariaDbMetrics>,

    /// Security context of the pods, as in a MariaDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_security_context: Option<Overlay>,

    /// Security context of the container, as in a MariaDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<Overlay>,

    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
}

/// Metrics of a database.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct MariaDbMetrics {
    /// Whether they are exported. Defaults to true.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// Parameters of slurmdbd.conf.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct SlurmdbdConfig {
    /// `ArchiveEvents`. Defaults to yes.
    pub archive_events: ArchiveChoice,

    /// `ArchiveJobs`. Defaults to yes.
    pub archive_jobs: ArchiveChoice,

    /// `ArchiveResvs`. Defaults to yes.
    pub archive_resvs: ArchiveChoice,

    /// `ArchiveSteps`. Defaults to no.
    pub archive_steps: ArchiveChoice,

    /// `ArchiveSuspend`. Defaults to no.
    pub archive_suspend: ArchiveChoice,

    /// `ArchiveTXN`. Defaults to no.
    #[serde(rename = "archiveTXN")]
    pub archive_txn: ArchiveChoice,

    /// `ArchiveUsage`. Defaults to yes.
    pub archive_usage: ArchiveChoice,

    /// `PurgeEventAfter`. Defaults to 1month.
    pub purge_event_after: String,

    /// `PurgeJobAfter`. Defaults to 12month.
    pub purge_job_after: String,

    /// `PurgeResvAfter`. Defaults to 1month.
    pub purge_resv_after: String,

    /// `PurgeStepAfter`. Defaults to 1month.
    pub purge_step_after: String,

    /// `PurgeSuspendAfter`. Defaults to 1month.
    pub purge_suspend_after: String,

    /// `PurgeTXNAfter`. Defaults to 12month.
    #[serde(rename = "purgeTXNAfter")]
    pub purge_txn_after: String,

    /// `PurgeUsageAfter`. Defaults to 24month.
    pub purge_usage_after: String,

    /// `TCPTimeout`, in seconds. Defaults to 2.
    pub tcp_timeout: i64,

    /// `DebugLevel`. Defaults to info.
    pub debug_level: DebugLevel,

    /// `DebugFlags`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_flags: Option<DebugFlag>,

    /// `PrivateData`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_data: Option<String>,
}

impl Default for SlurmdbdConfig {
    fn default() -> Self {
        let (yes, no) = (ArchiveChoice::Yes, ArchiveChoice::No);
        let months = |number: u8| format!("{number}month");
        Self {
            archive_events: yes,
            archive_jobs: yes,
            archive_resvs: yes,
            archive_steps: no,
            archive_suspend: no,
            archive_txn: no,
            archive_usage: yes,
            purge_event_after: months(1),
            purge_job_after: months(12),
            purge_resv_after: months(1),
            purge_step_after: months(1),
            purge_suspend_after: months(1),
            purge_txn_after: months(12),
            purge_usage_after: months(24),
            tcp_timeout: 2,
            debug_level: DebugLevel::Info,
            debug_flags: None,
            private_data: None,
        }
    }
}

/// Whether records are archived before they are purged.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ArchiveChoice {
    Yes,
    No,
}

/// How much slurmdbd logs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum DebugLevel {
    Quiet,
    Fatal,
    Error,
    Info,
    Verbose,
    Debug,
    Debug2,
    Debug3,
    Debug4,
    Debug5,
}

/// What else slurmdbd logs.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugFlag {
    #[serde(rename = "AuditRPCs")]
    AuditRpcs,
    #[serde(rename = "DB_ARCHIVE")]
    Archive,
    #[serde(rename = "DB_ASSOC")]
    Assoc,
    #[serde(rename = "DB_EVENT")]
    Event,
    #[serde(rename = "DB_JOB")]
    Job,
    #[serde(rename = "DB_QOS")]
    Qos,
    #[serde(rename = "DB_QUERY")]
    Query,
    #[serde(rename = "DB_RESERVATION")]
    Reservation,
    #[serde(rename = "DB_RESOURCE")]
    Resource,
    #[serde(rename = "DB_STEP")]
    Step,
    #[serde(rename = "DB_TRES")]
    Tres,
    #[serde(rename = "DB_USAGE")]
    Usage,
    Network,
}

/// Parameters of slurm.conf for accounting.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct AccountingSlurmConfig {
    /// `AccountingStorageTRES`. Defaults to CPU,Mem,Node,VMem,Gres/gpu.
    #[serde(rename = "accountingStorageTRES")]
    #[schemars(regex(pattern = r"^((Billing|CPU|Mem|VMem|Node|Energy|Pages|FS/Disk|FS/Lustre|Gres/gpu)(,)?)+$"))]
    pub accounting_storage_tres: String,

    /// `AccountingStoreFlags`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting_store_flags: Option<String>,

    /// `AcctGatherInterconnectType`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acct_gather_interconnect_type: Option<String>,

    /// `AcctGatherFilesystemType`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acct_gather_filesystem_type: Option<String>,

    /// `AcctGatherProfileType`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acct_gather_profile_type: Option<String>,

    /// `JobAcctGatherType`. The default depends on crVersion: `jobacct_gather/cgroup` before version 2, otherwise
    /// `jobacct_gather/none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_acct_gather_type: Option<JobAcctGatherType>,

    /// `JobAcctGatherFrequency`, in seconds. Defaults to 0.
    pub job_acct_gather_frequency: i64,

    /// `JobAcctGatherParams`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_acct_gather_params: Option<JobAcctGatherParams>,

    /// `PriorityWeightAge`. Defaults to 0.
    pub priority_weight_age: i64,

    /// `PriorityWeightFairshare`. Defaults to 0.
    pub priority_weight_fairshare: i64,

    /// `PriorityWeightQOS`. Defaults to 0.
    #[serde(rename = "priorityWeightQOS")]
    pub priority_weight_qos: i64,

    /// `PriorityWeightTRES`.
    #[serde(rename = "priorityWeightTRES", skip_serializing_if = "Option::is_none")]
    pub priority_weight_tres: Option<String>,
}

impl Default for AccountingSlurmConfig {
    fn default() -> Self {
        Self {
            accounting_storage_tres: "CPU,Mem,Node,VMem,Gres/gpu".into(),
            accounting_store_flags: None,
            acct_gather_interconnect_type: None,
            acct_gather_filesystem_type: None,
            acct_gather_profile_type: None,
            job_acct_gather_type: None,
            job_acct_gather_frequency: 0,
            job_acct_gather_params: None,
            priority_weight_age: 0,
            priority_weight_fairshare: 0,
            priority_weight_qos: 0,
            priority_weight_tres: None,
        }
    }
}

/// How the use of resources by jobs is measured.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAcctGatherType {
    /// From /proc.
    #[serde(rename = "jobacct_gather/linux")]
    Linux,
    /// From control groups.
    #[serde(rename = "jobacct_gather/cgroup")]
    Cgroup,
    /// Not at all.
    #[serde(rename = "jobacct_gather/none")]
    None,
}

/// Options of the measurement.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAcctGatherParams {
    /// Shared memory is not counted.
    NoShared,
    /// Shared memory is divided between processes.
    UsePss,
    /// Jobs that use more memory than they asked for are ended.
    OverMemoryKill,
    /// GPUs are not measured.
    #[serde(rename = "DisableGPUAcct")]
    DisableGpuAcct,
}

fn mysql() -> i32 {
    3306
}
