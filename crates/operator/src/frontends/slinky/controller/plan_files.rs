//! The files of slurmctld: checks what users have written, and hashes what becomes of it.

use std::collections::{BTreeMap, BTreeSet};

use engine::{
    config::{Files, GRES_TYPES, NodeSetLine, cgroup_conf, in_use, slurm_conf},
    daemons::{progress::Problem, shared::StringMap},
    gres::Demand,
    hash::{hash_of_files, hash_of_sums},
};
use kube::ResourceExt;
use slurm::{
    conf::{Conf, Extra, Item, Pair, Report, UserConf, UserFile, check_cluster},
    version::SlurmVersion,
};
use slurm_operator_api::{
    common::conditions::reason,
    slinky::{Controller, names},
};

use super::{
    model::{
        NodeSetLines, cluster, config_maps, known_qos, live_slurm_conf, node_set_lines, own_gres_types, summary,
        version,
    },
    plan::Facts,
    plan_reread::responds,
    validate,
};

/// Files that only slurmd reads.
const SLURMD_FILES: &[&str] = &[
    "acct_gather.conf",
    "cgroup.conf",
    "gres.conf",
    "helpers.conf",
    "job_container.conf",
    "mpi.conf",
    "namespace.yaml",
    "oci.conf",
    "plugstack.conf",
];

/// Files in /etc/slurm that are no configuration.
const KEYS: &[&str] = &["jwks.json", "jwt.key", "slurm.jwks", "slurm.key"];

/// Files that only slurmctld reads, and does not send to any slurmd.
const SLURMCTLD_FILES: &[&str] = &["burst_buffer.conf", "job_submit.lua"];

/// Keys of slurm.conf because of which slurmd and slurmstepd cannot fail, by the sources of Slurm 24.11 to 26.05: they do not read
/// them, or compare a number, or look for a word. All daemons parse slurm.conf alike, and slurmctld does it first.
const SLURMCTLD_KEYS: &[&str] = &[
    "AccountingStorageEnforce",
    "CompleteWait",
    "DefMemPerCPU",
    "DefMemPerGPU",
    "DefMemPerNode",
    "EnforcePartLimits",
    "FairShareDampeningFactor",
    "FirstJobId",
    "InactiveLimit",
    "JobRequeue",
    "Licenses",
    "MaxArraySize",
    "MaxJobCount",
    "MaxJobId",
    "MaxMemPerCPU",
    "MaxMemPerNode",
    "MaxStepCount",
    "MinJobAge",
    "OverTimeLimit",
    "PreemptExemptTime",
    "PreemptMode",
    "PreemptParameters",
    "PreemptType",
    "PriorityCalcPeriod",
    "PriorityDecayHalfLife",
    "PriorityFavorSmall",
    "PriorityFlags",
    "PriorityMaxAge",
    "PriorityParameters",
    "PriorityType",
    "PriorityUsageResetPeriod",
    "PriorityWeightAge",
    "PriorityWeightAssoc",
    "PriorityWeightFairshare",
    "PriorityWeightJobSize",
    "PriorityWeightPartition",
    "PriorityWeightQOS",
    "PriorityWeightTRES",
    "RequeueExit",
    "RequeueExitHold",
    "ResvOverRun",
    "ReturnToService",
    "SchedulerParameters",
    "SchedulerTimeSlice",
    "SlurmctldDebug",
    "SlurmctldSyslogDebug",
];

/// The same for records.
const SLURMCTLD_RECORDS: &[&str] = &["NodeSet", "PartitionName"];

/// What slurmd looks for in `SchedulerParameters` when it decides which CPUs it has, and which of them jobs may use.
const SCHEDULER_PARAMETERS_OF_SLURMD: &[&str] = &["ignore_numa", "spec_cores_first"];

/// Maximum length of the name of an object.
const MAX_NAME: usize = 253;

/// The files that the operator writes.
pub(super) struct OwnFiles {
    pub(super) files: StringMap,
    /// Hash of all files in /etc/slurm except keys of the cluster.
    pub(super) hash: String,
    /// Hash of those that can be reread, as they are in the pod.
    pub(super) hash_of_etc: String,
    /// Hash of all but the lines on which only slurmctld acts.
    pub(super) hash_for_slurmd: String,
    /// Hash of the files that only slurmd reads, the user's among them.
    pub(super) hash_of_slurmd_files: String,
    /// `NodeSets` that are left out.
    pub(super) refused: Vec<Problem>,
    /// Other problems: lines that are kept although no `NodeSet` asks for them, files of the same name.
    pub(super) problems: Vec<Problem>,
    /// What Slurm ignores, or what may be wrong.
    pub(super) warnings: Vec<String>,
    /// What could not be checked.
    pub(super) unchecked: Vec<String>,
    /// Whether jobs decide what may be left out.
    pub(super) needs_jobs: bool,
}

/// The files that the operator writes, after checking what users have written.
pub(super) fn own_files(controller: &Controller, facts: &Facts) -> Result<OwnFiles, Problem> {
    check_user_files(controller, facts)?;
    let extra = Extra::new(controller.spec.extra_conf.as_deref().unwrap_or_default());
    let live = live_slurm_conf(facts);
    let needs_jobs = in_use::has_old_lines(&facts.node_sets, &live, &extra);
    let NodeSetLines { lines, refused, in_use, mut warnings } =
        node_set_lines(controller, facts, &live, &extra, version(controller));
    let report = check_configuration(controller, facts, &lines, version(controller));
    // slurmd reads the same files, and may be older.
    let on_workers =
        slurmd_versions(facts).into_iter().map(|version| check_configuration(controller, facts, &lines, Some(version)));
    let refused_by = std::iter::once(report.clone()).chain(on_workers).find(|report| !report.errors.is_empty());
    if let Some(report) = refused_by {
        return Err(Problem::invalid(summary(&report.errors)));
    }
    warnings.extend(report.warnings);
    let mut problems: Vec<Problem> = in_use.into_iter().chain(duplicate_files(controller, facts)).collect();
    let text = slurm_conf(&cluster(controller, facts, lines)?).map_err(Problem::invalid)?;
    let mut files = StringMap::from([("slurm.conf".to_owned(), text)]);
    let has_cgroup_conf = user_files(controller, facts).any(|(name, _)| name == "cgroup.conf");
    if !has_cgroup_conf {
        files.insert("cgroup.conf".to_owned(), cgroup_conf().map_err(Problem::invalid)?);
    }
    let has_gres_conf = user_files(controller, facts).any(|(name, _)| name == "gres.conf");
    if let Some(text) = facts.gres.gres_conf().filter(|_| !has_gres_conf) {
        files.insert("gres.conf".to_owned(), text);
        problems.extend(undetected(&facts.gres));
    }
    // slurmd needs them for its jobs, although they are not in a file of their own.
    let gres_types = own_gres_types(controller, facts).map(|types| (GRES_TYPES, types));
    let hash_of_slurmd_files = {
        let own = files.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
        let all = own.chain(user_files(controller, facts));
        let gres_types = gres_types.iter().map(|(name, types)| (*name, types.as_bytes()));
        hash_of_files(all.filter(|(name, _)| SLURMD_FILES.contains(name)).chain(gres_types))
    };
    let hash_of_etc = {
        let own = files.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
        // The shell does not list hidden files.
        let is_listed = |name: &str| !KEYS.contains(&name) && !name.starts_with('.');
        hash_of_sums(own.chain(user_files(controller, facts)).filter(|(name, _)| is_listed(name)))
    };
    Ok(OwnFiles {
        hash: config_hash(controller, &files, facts),
        hash_of_etc,
        hash_for_slurmd: hash_for_slurmd(controller, &files, facts),
        hash_of_slurmd_files,
        files,
        refused,
        problems,
        warnings,
        unchecked: report.unchecked,
        needs_jobs,
    })
}

/// The releases of slurmd: those of the images of `NodeSets`, and those that run.
fn slurmd_versions(facts: &Facts) -> BTreeSet<SlurmVersion> {
    let nodes = facts.snapshot.iter().flat_map(|snapshot| snapshot.nodes.values());
    let running = nodes.filter(|node| responds(node)).filter_map(|node| node.version);
    running
        .chain(facts.slurmd_versions.iter().copied())
        .map(|version| SlurmVersion { micro: None, ..version })
        .collect()
}

/// Checks all that users have written, together with the partitions of `NodeSets`, for one version of Slurm.
fn check_configuration(
    controller: &Controller,
    facts: &Facts,
    lines: &[NodeSetLine],
    version: Option<SlurmVersion>,
) -> Report {
    let spec = &controller.spec;
    let scripts: BTreeSet<&str> = [
        &spec.prolog_script_refs,
        &spec.epilog_script_refs,
        &spec.prolog_slurmctld_script_refs,
        &spec.epilog_slurmctld_script_refs,
    ]
    .into_iter()
    .flatten()
    .map(|reference| reference.name.as_str())
    .collect();
    let mut files = Vec::new();
    for config_map in config_maps(spec) {
        let found = facts.config_maps.get(&config_map).into_iter().flatten().flatten();
        files.extend(found.map(|(name, content)| UserFile {
            origin: format!("{name} in the ConfigMap {config_map}").into(),
            name,
            content,
            is_script: scripts.contains(config_map.as_str()),
        }));
    }
    let partitions = lines.iter().filter(|line| line.partition.is_some());
    check_cluster(&UserConf {
        version,
        cluster_name: &controller.cluster_name(),
        extra: UserFile {
            origin: "spec.extraConf".into(),
            name: "slurm.conf",
            content: spec.extra_conf.as_deref().unwrap_or_default().as_bytes(),
            is_script: false,
        },
        files,
        partitions: partitions.map(|line| (line.name.as_str(), line.origin.as_str())).collect(),
        qos: known_qos(controller, facts),
    })
}

/// Says that slurmd does not find the GPUs of some workers.
fn undetected(gres: &Demand) -> Option<Problem> {
    let plugins = gres.undetected();
    let message = || {
        format!(
            "before 26.05 slurmd detects the GPUs of one vendor only, which leaves out AutoDetect={}: add a gres.conf with a line \
             NodeName=… AutoDetect=… for each NodeSet to spec.configFileRefs",
            plugins.join(",")
        )
    };
    (!plugins.is_empty()).then(|| Problem::new("GpusNotDetected", message()))
}

/// All files in /etc/slurm except keys of the cluster. `own` are those that the operator writes.
pub(super) fn all_files(controller: &Controller, facts: &Facts, own: &StringMap) -> Files {
    let own = own.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
    let all = own.chain(user_files(controller, facts)).chain(jwks(controller, facts));
    all.map(|(name, content)| (name.to_owned(), content.to_vec())).collect()
}

/// The user's files in /etc/slurm.
fn user_files<'a>(controller: &Controller, facts: &'a Facts) -> impl Iterator<Item = (&'a str, &'a [u8])> {
    let names = config_maps(&controller.spec);
    let maps = facts.config_maps.iter().filter(move |(name, _)| names.contains(*name));
    maps.filter_map(|(_, files)| files.as_ref()).flatten().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
}

/// Files that two `ConfigMaps` have: the pod gets that of the last one.
fn duplicate_files(controller: &Controller, facts: &Facts) -> Option<Problem> {
    let mut found: BTreeMap<&String, Vec<String>> = BTreeMap::new();
    for name in config_maps(&controller.spec) {
        for file in facts.config_maps.get(&name).into_iter().flatten().flat_map(BTreeMap::keys) {
            found.entry(file).or_default().push(name.clone());
        }
    }
    let (file, maps) = found.into_iter().find(|(_, maps)| maps.len() > 1)?;
    let used = maps.last().cloned().unwrap_or_default();
    let message = format!(
        "the ConfigMaps {} all have a file {file}, and that of {used} is used: rename or remove the others",
        maps.join(", ")
    );
    Some(Problem::new("DuplicateFile", message))
}

fn check_user_files(controller: &Controller, facts: &Facts) -> Result<(), Problem> {
    let missing = |what: String| Err(Problem::new(reason::REFERENCE_MISSING, what));
    for name in config_maps(&controller.spec) {
        let Some(Some(files)) = facts.config_maps.get(&name) else {
            return missing(format!("the ConfigMap {name} does not exist: create it, or remove it from the spec"));
        };
        if names::controller_config_copy(&controller.name_any(), &name).len() > MAX_NAME {
            return Err(Problem::invalid(format!(
                "the name of the ConfigMap {name} is too long for a copy of it: shorten it"
            )));
        }
        check_files(&name, files)?;
    }
    let Some(jwks) = &controller.spec.jwks_key_ref else { return Ok(()) };
    match facts.config_maps.get(&jwks.name) {
        Some(Some(files)) if files.contains_key(&jwks.key) => Ok(()),
        _ => missing(format!("the ConfigMap {} has no {}: create it, or correct spec.jwksKeyRef", jwks.name, jwks.key)),
    }
}

fn check_files(config_map: &str, files: &Files) -> Result<(), Problem> {
    files
        .keys()
        .find_map(|file| validate::reserved(config_map, file))
        .map_or(Ok(()), |text| Err(Problem::invalid(text)))
}

/// Hash of all files in /etc/slurm except keys.
fn config_hash(controller: &Controller, own: &StringMap, facts: &Facts) -> String {
    let own = own.iter().map(|(name, text)| (name.as_str(), text.as_bytes()));
    hash_of_files(own.chain(user_files(controller, facts)).chain(jwks(controller, facts)))
}

/// Hash of all but the lines on which only slurmctld acts.
fn hash_for_slurmd(controller: &Controller, own: &StringMap, facts: &Facts) -> String {
    let text = own.get("slurm.conf").map_or("", String::as_str);
    let lines = Conf::parse(text).map_or_else(
        |_| text.to_owned(),
        |conf| conf.lines().iter().filter_map(|line| part_of_slurmd(&line.item)).collect(),
    );
    let others = own.iter().filter(|(name, _)| *name != "slurm.conf");
    let others = others.map(|(name, text)| (name.as_str(), text.as_bytes()));
    let users = user_files(controller, facts).filter(|(name, _)| !SLURMCTLD_FILES.contains(name));
    let users = users.chain(jwks(controller, facts));
    hash_of_files([("slurm.conf", lines.as_bytes())].into_iter().chain(others).chain(users))
}

/// The part of a line of slurm.conf that slurmd acts on.
fn part_of_slurmd(item: &Item) -> Option<String> {
    let pairs = match item {
        Item::Empty => return None,
        Item::Include(_) => &[],
        Item::Pairs(pairs) => pairs.as_slice(),
    };
    let is_harmless = |pair: &Pair, keys: &[&str]| {
        let has_word = |word: &&str| pair.value().to_lowercase().contains(word);
        let is_scheduler = pair.has_key("SchedulerParameters") && SCHEDULER_PARAMETERS_OF_SLURMD.iter().any(has_word);
        keys.iter().any(|key| pair.has_key(key)) && !is_scheduler
    };
    // Pairs after a record belong to it; others are parameters, too.
    let is_record = pairs.first().is_some_and(|pair| is_harmless(pair, SLURMCTLD_RECORDS));
    let is_free = is_record || !pairs.is_empty() && pairs.iter().all(|pair| is_harmless(pair, SLURMCTLD_KEYS));
    (!is_free).then(|| format!("{item:?}\n"))
}

/// The keys of other issuers of tokens. They are mounted as the user's `ConfigMap` has them.
fn jwks<'a>(controller: &Controller, facts: &'a Facts) -> Option<(&'static str, &'a [u8])> {
    let jwks = controller.spec.jwks_key_ref.as_ref()?;
    let content = facts.config_maps.get(&jwks.name)?.as_ref()?.get(&jwks.key)?;
    Some(("jwks.json", content.as_slice()))
}
