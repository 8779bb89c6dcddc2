//! slurm.conf

use slurm::{
    conf::{ConfBuilder, ConfError, Extra, Options, Override, Record},
    version::{Feature, supports},
};

use super::{AuthPlugin, ClusterModel, ConfigDelivery, ConfigError, NodeSetLine, Scripts};

/// Slightly below the limit of 65536 nodes, because Slurm uses the highest values as special values in some fields.
const MAX_NODES: u32 = 65_533;

/// How long the active slurmctld may be silent, in seconds, until a backup takes over. Slurm's default is 120.
const TAKE_OVER_AFTER: u16 = 30;

/// What pods, Services and volumes are made for, so that another value would break the cluster.
const FIXED: [&str; 4] = ["ClusterName", "SlurmUser", "SlurmctldPort", "StateSaveLocation"];

/// The names of all generic resources. slurmctld and slurmd ignore others.
pub const GRES_TYPES: &str = "GresTypes";

/// The state directory of slurmctld (`StateSaveLocation`).
pub(crate) fn state_folder(cluster: &str) -> String {
    format!("/var/spool/slurmctld/{cluster}")
}

/// slurm.conf of a cluster whose slurmctld we run. The user's lines come last and win, except that lists that both set are
/// merged.
pub fn slurm_conf(cluster: &ClusterModel) -> Result<String, ConfigError> {
    let extra = extra(&cluster.extra)?;
    let mut conf = ConfBuilder::new();
    let part = |at: &str, result: Result<(), ConfError>| result.map_err(|error| notation(at, error));
    part("slurm.conf", general(&mut conf, cluster))?;
    part("slurm.conf", plugins(&mut conf, cluster))?;
    if !cluster.gres_types.is_empty() && extra.get(GRES_TYPES).is_none() {
        let types: Vec<&str> = cluster.gres_types.iter().map(String::as_str).collect();
        part("slurm.conf", conf.word(GRES_TYPES, &types.join(",")).map(|_| ()))?;
    }
    part("slurm.conf", accounting(&mut conf, cluster))?;
    part("the names of scripts", scripts(&mut conf, &cluster.scripts))?;
    node_sets(&mut conf, &cluster.node_sets)?;
    let is_fixed = |found: &Override| FIXED.iter().any(|key| key.eq_ignore_ascii_case(&found.key));
    if let Some(Override { key, line }) = conf.overrides(&extra).into_iter().find(is_fixed) {
        return Err(ConfigError::Fixed { key, line });
    }
    conf.render(&extra).map_err(|error| notation("spec.extraConf", error))
}

/// slurm.conf for clients of an external slurmctld that cannot use configless mode.
pub fn external_slurm_conf(cluster: &ClusterModel) -> Result<String, ConfigError> {
    let mut conf = ConfBuilder::new();
    let written = external(&mut conf, cluster).and_then(|()| accounting(&mut conf, cluster));
    written.map_err(|error| notation("slurm.conf", error))?;
    Ok(conf.to_string())
}

fn notation(at: &str, error: ConfError) -> ConfigError {
    ConfigError::Notation { at: at.to_owned(), error }
}

/// Parses the user's lines. Slurm does not start with invalid lines, so they are rejected.
pub fn extra(text: &str) -> Result<Extra, ConfigError> {
    let extra = Extra::new(text);
    match extra.problems().first() {
        Some(problem) => Err(notation("spec.extraConf", problem.clone())),
        None => Ok(extra),
    }
}

fn hosts(conf: &mut ConfBuilder, cluster: &ClusterModel) -> Result<(), ConfError> {
    for host in &cluster.hosts {
        let is_one = host.name == host.address;
        let value = if is_one { host.name.clone() } else { format!("{}({})", host.name, host.address) };
        conf.word("SlurmctldHost", &value)?;
    }
    conf.number("SlurmctldPort", cluster.port)?;
    Ok(())
}

fn general(conf: &mut ConfBuilder, cluster: &ClusterModel) -> Result<(), ConfError> {
    conf.section("GENERAL")?.name("ClusterName", &cluster.name)?.name("SlurmUser", "slurm")?;
    hosts(conf, cluster)?;
    if let Some(address) = &cluster.address {
        conf.word("SlurmctldAddr", address)?;
    }
    if cluster.hosts.len() > 1 {
        conf.number("SlurmctldTimeout", TAKE_OVER_AFTER)?;
    }
    conf.word("StateSaveLocation", &state_folder(&cluster.name))?
        .name("SlurmdUser", "root")?
        .number("SlurmdPort", 6818_u16)?
        .word("SlurmdSpoolDir", "/var/spool/slurmd")?
        .number("MaxNodeCount", MAX_NODES)?
        .section("LOGGING")?
        .word("SlurmctldLogFile", "/var/log/slurm/slurmctld.log")?
        .word("SlurmSchedLogFile", "/var/log/slurm/slurmctld.log")?
        .word("SlurmdLogFile", "/var/log/slurm/slurmd.log")?;
    Ok(())
}

fn plugins(conf: &mut ConfBuilder, cluster: &ClusterModel) -> Result<(), ConfError> {
    let jwks = cluster.jwks.then_some("jwks=/etc/slurm/jwks.json");
    conf.section("PLUGINS & PARAMETERS")?;
    auth(conf, cluster.auth)?;
    conf.word("AuthAltTypes", "auth/jwt")?
        .list("AuthAltParameters", ["jwt_key=/etc/slurm/jwt.key"].into_iter().chain(jwks))?
        .list("AuthInfo", ["use_client_ids"])?;
    match cluster.delivery {
        // Not `reconfig_on_restart`: since Slurm 25.11 slurmctld then pushes its files to every slurmd at each start, and a
        // file that slurmd cannot read terminates slurmd and its jobs.
        ConfigDelivery::Configless => conf.list("SlurmctldParameters", ["enable_configless"])?,
    };
    // Older releases do not start with this parameter.
    if cluster.metrics && supports(cluster.version, Feature::Metrics) {
        conf.word("MetricsType", "metrics/openmetrics")?;
    }
    Ok(())
}

fn auth(conf: &mut ConfBuilder, plugin: AuthPlugin) -> Result<(), ConfError> {
    match plugin {
        AuthPlugin::Slurm => conf.word("AuthType", "auth/slurm")?.word("CredType", "cred/slurm")?,
    };
    Ok(())
}

fn accounting(conf: &mut ConfBuilder, cluster: &ClusterModel) -> Result<(), ConfError> {
    conf.section("ACCOUNTING")?;
    match &cluster.accounting {
        None => conf.word("AccountingStorageType", "accounting_storage/none")?,
        Some(place) => conf
            .word("AccountingStorageType", "accounting_storage/slurmdbd")?
            .word("AccountingStorageHost", &place.host)?
            .number("AccountingStoragePort", place.port)?,
    };
    Ok(())
}

fn scripts(conf: &mut ConfBuilder, scripts: &Scripts) -> Result<(), ConfError> {
    let in_slurmctld = [("PrologSlurmctld", &scripts.prolog_slurmctld), ("EpilogSlurmctld", &scripts.epilog_slurmctld)];
    if in_slurmctld.iter().any(|(_, files)| !files.is_empty()) {
        conf.section("SLURMCTLD PROLOG & EPILOG")?;
    }
    for (key, files) in in_slurmctld {
        for file in files {
            conf.word(key, &format!("/etc/slurm/{file}"))?;
        }
    }
    // A relative path: configless workers receive the file with the configuration.
    let on_workers = [("Prolog", &scripts.prolog), ("Epilog", &scripts.epilog)];
    if on_workers.iter().any(|(_, files)| !files.is_empty()) {
        conf.section("PROLOG & EPILOG")?;
    }
    for (key, files) in on_workers {
        for file in files {
            conf.word(key, file)?;
        }
    }
    Ok(())
}

fn node_sets(conf: &mut ConfBuilder, sets: &[NodeSetLine]) -> Result<(), ConfigError> {
    if sets.is_empty() {
        return Ok(());
    }
    conf.section("NODESET & PARTITION").map_err(|error| notation("slurm.conf", error))?;
    for (index, set) in sets.iter().enumerate() {
        // Partition names are case-insensitive in Slurm.
        let earlier = sets.iter().take(index).find(|other| other.name.eq_ignore_ascii_case(&set.name));
        if let Some(other) = earlier {
            return Err(ConfigError::same_name(other, set));
        }
        node_set(conf, set)?;
    }
    Ok(())
}

pub(super) fn node_set(conf: &mut ConfBuilder, set: &NodeSetLine) -> Result<(), ConfigError> {
    let at = |field: &str, error| notation(&format!("{}{field}", set.origin), error);
    let record = Record::new("NodeSet", &set.name).and_then(|record| record.name("Feature", &set.name));
    conf.record(record.map_err(|error| at("", error))?);
    if let Some(partition) = &set.partition {
        let record = partition_line(&set.name, partition).map_err(|error| at(", spec.partition.config", error))?;
        conf.record(record);
    }
    Ok(())
}

fn partition_line(name: &str, parameters: &str) -> Result<Record, ConfError> {
    let options = Options::parse(parameters)?;
    Record::new("PartitionName", name)?.name("Nodes", name)?.options(&options)
}

fn external(conf: &mut ConfBuilder, cluster: &ClusterModel) -> Result<(), ConfError> {
    conf.section("GENERAL")?.name("ClusterName", &cluster.name)?.name("SlurmUser", "slurm")?;
    hosts(conf, cluster)?;
    conf.section("PLUGINS & PARAMETERS")?;
    auth(conf, cluster.auth)?;
    conf.word("AuthAltTypes", "auth/jwt")?;
    Ok(())
}
