//! What a SlurmCluster says about plugstack.conf.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Plugins of job steps.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct PlugStackConfig {
    /// pyxis, which runs job steps in containers.
    pub pyxis: Pyxis,

    /// Debug output of NCCL.
    pub nccl_debug: NcclDebug,

    /// Profiles of NCCL.
    pub nccl_inspector_pre_conf: NcclInspectorPreConf,

    /// Other plugins.
    pub custom_plugins: Vec<CustomPlugin>,
}

impl Default for PlugStackConfig {
    fn default() -> Self {
        Self {
            pyxis: Pyxis::default(),
            nccl_debug: NcclDebug::default(),
            nccl_inspector_pre_conf: NcclInspectorPreConf { enabled: false, ..NcclInspectorPreConf::default() },
            custom_plugins: Vec::new(),
        }
    }
}

/// pyxis, which runs job steps in containers.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Pyxis {
    /// Whether job steps fail without it. Defaults to true.
    pub required: bool,

    /// Whether images are mounted with squashfuse. Defaults to false.
    pub use_squashfuse: bool,

    /// Program that imports images. Defaults to `/opt/slurm_scripts/pyxis_caching_importer.sh`.
    pub importer_path: String,

    /// Where images of containers are kept. The default depends on crVersion: /var/cache/enroot-container-images/
    /// before version 2, otherwise nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_image_save: Option<String>,
}

impl Default for Pyxis {
    fn default() -> Self {
        Self {
            required: true,
            use_squashfuse: false,
            importer_path: "/opt/slurm_scripts/pyxis_caching_importer.sh".into(),
            container_image_save: None,
        }
    }
}

/// Debug output of NCCL.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "the API has them")]
pub struct NcclDebug {
    /// Whether job steps fail without the plugin. Defaults to false.
    pub required: bool,

    /// Whether it is on unless a job asks otherwise. Defaults to false.
    pub enabled: bool,

    /// How much NCCL prints. Defaults to INFO.
    pub log_level: NcclLogLevel,

    /// Whether it is written to a file. Defaults to true.
    pub output_to_file: bool,

    /// Whether it is written to the output of the job. Defaults to false.
    pub output_to_std_out: bool,

    /// Directory of the files. The default depends on crVersion: `/opt/soperator-outputs/nccl_logs` before version 2,
    /// otherwise `/opt/soperator-outputs/local/nccl_logs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_directory: Option<String>,
}

impl Default for NcclDebug {
    fn default() -> Self {
        Self {
            required: false,
            enabled: false,
            log_level: NcclLogLevel::Info,
            output_to_file: true,
            output_to_std_out: false,
            output_directory: None,
        }
    }
}

/// How much NCCL prints.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum NcclLogLevel {
    Version,
    Warn,
    Info,
    Trace,
}

/// Profiles of NCCL.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct NcclInspectorPreConf {
    /// Whether job steps fail without the plugin. Defaults to false.
    pub required: bool,

    /// Whether it is on. Defaults to true, but it is off without ncclInspectorPreConf.
    pub enabled: bool,

    /// Library that writes profiles. Defaults to `/usr/lib/x86_64-linux-gnu/libnccl-profiler-inspector.so`.
    pub profiler_plugin: String,

    /// Directory of the profiles. Defaults to `/opt/soperator-outputs/shared/nccl_profiles/%j/%s`.
    pub dump_dir: String,

    /// Whether profiles are verbose. Defaults to false.
    pub dump_verbose: bool,

    /// How often profiles are written, in microseconds. Defaults to 1000000.
    pub dump_thread_interval_microseconds: i64,
}

impl Default for NcclInspectorPreConf {
    fn default() -> Self {
        Self {
            required: false,
            enabled: true,
            profiler_plugin: "/usr/lib/x86_64-linux-gnu/libnccl-profiler-inspector.so".into(),
            dump_dir: "/opt/soperator-outputs/shared/nccl_profiles/%j/%s".into(),
            dump_verbose: false,
            dump_thread_interval_microseconds: 1_000_000,
        }
    }
}

/// A plugin of job steps.
#[derive(JsonSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct CustomPlugin {
    /// Whether job steps fail without it. Defaults to false.
    #[serde(default)]
    pub required: bool,

    /// Path of the library.
    pub path: String,

    /// Arguments of the plugin.
    #[serde(default)]
    pub arguments: BTreeMap<String, String>,
}
