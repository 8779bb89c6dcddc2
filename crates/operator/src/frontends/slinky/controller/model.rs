//! Translates a Controller and its observed state into the engine's models.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use engine::{
    config::{
        AuthPlugin, ClusterModel, ConfigDelivery, ConfigError, Files, GRES_TYPES, Host, NodeSetLine, Place, Scripts,
        cgroup_conf, check_line, check_qos, in_use, slurm_conf,
    },
    daemons::{
        keys::{KeyState, hash_of},
        progress::Problem,
        shared::{self, Parent, StringMap, slurmctld_address},
        slurmctld::Slurmctld,
    },
    gres::{Demand, Held},
    hash::{hash_of_files, hash_of_sums},
};
use kube::ResourceExt;
use slurm::{
    conf::{Conf, Extra, Item, Pair, Report, UserConf, UserFile, check_cluster},
    version::SlurmVersion,
};
use slurm_operator_api::{
    common::{
        conditions::reason,
        shared::{ExternalConfig, LocalObjectReference},
    },
    slinky::{
        Controller, ControllerSpec, VOCABULARY,
        names::{
            self,
            annotation::{self, hash as hashes},
        },
        nodeset::NodeSetBrief,
    },
};

use super::{
    change::allows_job_loss,
    plan::{AccountingFacts, Facts},
    plan_reread::responds,
    validate,
};
use crate::frontends::slinky::keys::{Keys, ObservedRing};

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

/// Where slurmd and sackd of a cluster fetch their configuration from.
pub fn config_server(controller: &Controller) -> String {
    if let Some(elsewhere) = controller.spec.elsewhere() {
        // Without brackets, Slurm takes what follows the first colon for the port.
        let is_ipv6 = elsewhere.host.contains(':') && !elsewhere.host.starts_with('[');
        let (open, close) = if is_ipv6 { ("[", "]") } else { ("", "") };
        return format!("{open}{}{close}:{}", elsewhere.host, elsewhere.port);
    }
    let (name, namespace) = (controller.name_any(), controller.namespace().unwrap_or_default());
    shared::config_server(&VOCABULARY, &name, &namespace, controller.spec.service_port(), controller.spec.replicas())
}

/// The lines in slurm.conf for a `NodeSet`.
pub(super) fn node_set_line(node_set: &NodeSetBrief) -> NodeSetLine {
    let partition = node_set.partition();
    NodeSetLine {
        origin: format!("NodeSet {}", node_set.name_any()),
        name: node_set.slurm_name(),
        partition: partition.map(|partition| partition.config.clone().unwrap_or_default()),
    }
}

/// What the workers of `NodeSets` need in the configuration.
pub(super) fn gres_demand<'a>(node_sets: impl IntoIterator<Item = &'a NodeSetBrief>) -> Demand {
    let mut demand = Demand::default();
    for spec in node_sets.into_iter().map(|node_set| &node_set.spec) {
        let held = Held::of(spec.slurmd.fields(), spec.template.spec.fields(), &spec.gres);
        demand.add(&held, spec.slurmd.text("image").and_then(SlurmVersion::from_image));
    }
    demand
}

/// The names of all `ConfigMaps` with files for /etc/slurm.
pub(super) fn config_maps(spec: &ControllerSpec) -> BTreeSet<String> {
    let all = [
        &spec.config_file_refs,
        &spec.prolog_script_refs,
        &spec.epilog_script_refs,
        &spec.prolog_slurmctld_script_refs,
        &spec.epilog_slurmctld_script_refs,
    ];
    all.into_iter().flatten().map(|reference| reference.name.clone()).filter(|name| !name.is_empty()).collect()
}

/// The Slurm version that decides what goes into the configuration: from the image tag, which is up to date even
/// before the pods are; otherwise as reported by Slurm.
pub(super) fn version(controller: &Controller) -> Option<SlurmVersion> {
    let reported = || controller.status.as_ref()?.slurm_version.as_deref()?.parse().ok();
    controller.spec.slurmctld.text("image").and_then(SlurmVersion::from_image).or_else(reported)
}

/// The lines of `NodeSets`, sorted by name, and what is wrong with those that are left out. Lines of the live slurm.conf stay
/// while jobs or nodes use them.
fn node_set_lines(
    controller: &Controller,
    facts: &Facts,
    live: &Conf,
    extra: &Extra,
    version: Option<SlurmVersion>,
) -> NodeSetLines {
    let mut found = NodeSetLines::default();
    let qos = known_qos(controller, facts);
    for line in &facts.node_sets {
        let earlier = found.lines.iter().find(|other| other.name.eq_ignore_ascii_case(&line.name));
        if let Some(earlier) = earlier {
            let error = ConfigError::same_name(earlier, line);
            found.refused.push(refused(&error));
            continue;
        }
        if let Err(error) = check_name(line, live, facts) {
            found.refused.push(refused(&error));
            continue;
        }
        let was = in_use::live_line(line, live);
        let has_qos = || qos.map_or(Ok(()), |known| check_qos(line, known));
        match has_qos().and_then(|()| check_line(line, version)) {
            Ok(warnings) => {
                found.warnings.extend(warnings);
                let had_partition = was.is_some_and(|was| was.partition.is_some());
                let is_users = extra.all("PartitionName").any(|name| name == line.name);
                if line.partition.is_some() && is_users && !had_partition {
                    let message = format!(
                        "left out of slurm.conf: the partition of {0}, because spec.extraConf defines the partition {1}: remove it \
                         there, or set spec.partition.enabled to false in {0}",
                        line.origin, line.name
                    );
                    found.refused.push(Problem::new(NODE_SET_INVALID, message));
                    found.lines.push(NodeSetLine { partition: None, ..line.clone() });
                } else {
                    found.lines.push(line.clone());
                }
            }
            // It harms no other set, and its own lines stay as they were.
            Err(error) => {
                found.refused.push(refused(&error));
                found.lines.extend(was);
            }
        }
    }
    if facts.snapshot.is_some() || !allows_job_loss(controller) {
        let kept = in_use::keep(&mut found.lines, live, extra, facts.snapshot.as_deref());
        found.in_use = in_use_problem(&kept, facts);
    }
    found.lines.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The lines of `NodeSets` for slurm.conf.
#[derive(Default)]
struct NodeSetLines {
    lines: Vec<NodeSetLine>,
    /// What is left out.
    refused: Vec<Problem>,
    /// What is kept although no `NodeSet` asks for it.
    in_use: Option<Problem>,
    warnings: Vec<String>,
}

const NODE_SET_INVALID: &str = "NodeSetInvalid";

fn refused(error: &impl Display) -> Problem {
    Problem::new(NODE_SET_INVALID, format!("left out of slurm.conf: {error}"))
}

/// slurmctld does not start if a Slurm NodeSet has the name of a node. A line that is in use already is not judged.
fn check_name(set: &NodeSetLine, live: &Conf, facts: &Facts) -> Result<(), String> {
    let name = set.name.as_str();
    if in_use::has_node_set(live, name) {
        return Ok(());
    }
    // A record may be left from a time with more workers.
    let is_unseen = facts.snapshot.is_none() && facts.stateful_set.is_some();
    let is_node_of = |other: &&NodeSetLine| {
        let Some((prefix, count)) = facts.node_names.get(&other.origin) else { return false };
        let ordinal = name.strip_prefix(prefix.as_str()).and_then(|rest| rest.parse::<u32>().ok());
        ordinal.is_some_and(|ordinal| is_unseen || ordinal < *count)
    };
    // The workers of a younger set do not get the name.
    let mut older = facts.node_sets.iter().take_while(|other| is_unseen || other.origin != set.origin);
    let nodes = facts.snapshot.iter().flat_map(|snapshot| snapshot.nodes.keys());
    let is_known = nodes.into_iter().any(|node| node.eq_ignore_ascii_case(name));
    let other = older.find(|other| other.origin != set.origin && is_node_of(other)).map(|other| other.origin.as_str());
    let Some(owner) = other.or(is_known.then_some("Slurm")) else { return Ok(()) };
    Err(format!(
        "{} is called {name} in Slurm, which is the name of a node of {owner}, and slurmctld does not start with both: change its \
         spec.template.spec.hostname, or its name",
        set.origin
    ))
}

/// Why lines that no `NodeSet` asks for are still there.
fn in_use_problem(kept: &[String], facts: &Facts) -> Option<Problem> {
    let why = match &facts.snapshot {
        _ if kept.is_empty() => return None,
        // Soon known.
        Some(snapshot) if snapshot.jobs.read().is_none() => return None,
        Some(_) => "but jobs or nodes of Slurm use them: they stay in slurm.conf until these are gone. To remove them at once, \
                    cancel the jobs"
            .to_owned(),
        None => format!(
            "but it is not known whether jobs or nodes of Slurm use them: they stay in slurm.conf until Slurm answers. If it \
             cannot start because of them, set the annotation {}=true on the Controller, and remove it afterwards",
            annotation::ALLOW_JOB_LOSS
        ),
    };
    let message = format!("no NodeSet asks for the partitions or NodeSet lines {}, {why}", kept.join(", "));
    Some(Problem::new("PartitionInUse", message))
}

/// slurm.conf as it is now.
fn live_slurm_conf(facts: &Facts) -> Conf {
    let files = facts.config_map.as_ref().and_then(|config_map| config_map.data.as_ref());
    let text = files.and_then(|files| files.get("slurm.conf")).map_or("", String::as_str);
    Conf::parse(text).unwrap_or_default()
}

/// The cluster, for its configuration.
pub(super) fn cluster(
    controller: &Controller,
    facts: &Facts,
    node_sets: Vec<NodeSetLine>,
) -> Result<ClusterModel, Problem> {
    let (name, namespace) = (controller.name_any(), controller.namespace().unwrap_or_default());
    let spec = &controller.spec;
    let replicas = spec.replicas();
    let host = |ordinal| Host {
        name: names::controller_pod(&name, ordinal),
        address: slurmctld_address(&VOCABULARY, &name, &namespace, ordinal),
    };
    // Clients connect to this address at slurmctld's own port, and expect the active slurmctld there.
    let is_address = replicas == 1 && spec.service_port() == names::port::SLURMCTLD;
    let files = |references| scripts(references, facts);
    Ok(ClusterModel {
        name: controller.cluster_name(),
        hosts: (0..replicas).map(host).collect(),
        address: is_address.then(|| names::service_host(&names::controller(&name), &namespace)),
        port: port(names::port::SLURMCTLD),
        accounting: accounting(spec, &facts.accounting, &namespace)?,
        metrics: spec.metrics_enabled(),
        jwks: spec.jwks_key_ref.is_some(),
        auth: AuthPlugin::Slurm,
        delivery: ConfigDelivery::Configless,
        version: version(controller),
        scripts: Scripts {
            prolog: files(&spec.prolog_script_refs),
            epilog: files(&spec.epilog_script_refs),
            prolog_slurmctld: files(&spec.prolog_slurmctld_script_refs),
            epilog_slurmctld: files(&spec.epilog_slurmctld_script_refs),
        },
        gres_types: facts.gres.types.clone(),
        node_sets,
        extra: spec.extra_conf.clone().unwrap_or_default(),
    })
}

/// An external cluster, for clients that cannot fetch its configuration from slurmctld.
pub(super) fn cluster_elsewhere(
    controller: &Controller,
    elsewhere: &ExternalConfig,
    facts: &Facts,
) -> Result<ClusterModel, Problem> {
    let namespace = controller.namespace().unwrap_or_default();
    Ok(ClusterModel {
        name: controller.cluster_name(),
        hosts: vec![Host { name: elsewhere.host.clone(), address: elsewhere.host.clone() }],
        port: port(elsewhere.port),
        accounting: accounting(&controller.spec, &facts.accounting, &namespace)?,
        ..ClusterModel::default()
    })
}

fn port(port: i32) -> u16 {
    // The CRD schema limits the range.
    u16::try_from(port).unwrap_or_default()
}

fn accounting(spec: &ControllerSpec, facts: &AccountingFacts, namespace: &str) -> Result<Option<Place>, Problem> {
    let name = spec.accounting().unwrap_or_default();
    match facts {
        AccountingFacts::NotNamed => Ok(None),
        // Without accounting Slurm would run without keeping records; do not start it like that.
        AccountingFacts::Missing => Err(Problem::new(
            reason::REFERENCE_MISSING,
            format!("the Accounting {name} does not exist: create it, or correct spec.accountingRef"),
        )),
        AccountingFacts::Here { service_port, .. } => {
            let host = names::service_host(&names::accounting(name), namespace);
            Ok(Some(Place { host, port: port(*service_port) }))
        }
        AccountingFacts::Elsewhere { place, .. } => {
            Ok(Some(Place { host: place.host.clone(), port: port(place.port) }))
        }
    }
}

fn scripts(references: &[LocalObjectReference], facts: &Facts) -> Vec<String> {
    let maps = references.iter().filter_map(|reference| facts.config_maps.get(&reference.name)?.as_ref());
    let names: BTreeSet<&String> = maps.flat_map(BTreeMap::keys).collect();
    names.into_iter().cloned().collect()
}

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

/// The QOS of slurmdbd, if it answers.
pub(super) fn known_qos<'a>(controller: &Controller, facts: &'a Facts) -> Option<&'a BTreeSet<String>> {
    controller.spec.accounting()?;
    facts.slurm.as_ref()?.qos.as_deref()
}

/// How many findings a message has.
const MAX_FINDINGS: usize = 5;

/// The first of many texts.
pub(super) fn summary(texts: &[String]) -> String {
    let first: Vec<&str> = texts.iter().take(MAX_FINDINGS).map(String::as_str).collect();
    let more = texts.len().saturating_sub(MAX_FINDINGS);
    let rest = if more == 0 { String::new() } else { format!("; and {more} more") };
    format!("{}{rest}", first.join("; "))
}

/// `GresTypes` that follow from the `NodeSets`, unless the user sets them.
fn own_gres_types(controller: &Controller, facts: &Facts) -> Option<String> {
    let types: Vec<&str> = facts.gres.types.iter().map(String::as_str).collect();
    let is_set = || Extra::new(controller.spec.extra_conf.as_deref().unwrap_or_default()).get(GRES_TYPES).is_some();
    (!types.is_empty() && !is_set()).then(|| types.join(","))
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

/// The slurmctld to run. It restarts if `started_with` changes.
pub(super) fn slurmctld<'a>(
    controller: &'a Controller,
    facts: &'a Facts,
    parent: &Parent,
    started_with: &str,
    ring: Option<&'a ObservedRing>,
) -> Result<Slurmctld<'a>, Problem> {
    let spec = &controller.spec;
    let (slurm_key, jwt_key) = (spec.slurm_key_ref.as_ref(), spec.jwt_key());
    let slurm_hash = hash_of(&facts.slurm_key, slurm_key, "Slurm's key", "spec.slurmKeyRef")
        .map_err(|problem| or_generate(problem, &facts.slurm_key, spec, facts));
    let keys = Keys::new(ring, slurm_key, slurm_hash, true)?;
    let jwt_hash = hash_of(&facts.jwt_key, jwt_key, "the key that signs tokens", "spec.jwtKeyRef")
        .map_err(|problem| or_generate(problem, &facts.jwt_key, spec, facts))?;
    let (Some(jwt_key), Some(image)) = (jwt_key, spec.slurmctld.text("image")) else {
        let problem = Problem::of_fields(&validate::running(controller));
        return Err(problem.unwrap_or_else(|| Problem::invalid("slurmctld cannot run")));
    };
    check_shared_claim(spec, facts)?;
    let mut hashes = keys.annotations;
    hashes.extend(ring.map(|ring| (hashes::SLURM_KEY.to_owned(), ring.live.ring.default.hash())));
    hashes.insert(hashes::JWT_KEY.to_owned(), jwt_hash.to_owned());
    if !spec.inplace_reconfigure {
        hashes.insert(hashes::SLURM_CONFIG.to_owned(), started_with.to_owned());
    }
    // Workers with generic resources wait for a slurmctld that knows them.
    hashes.extend(own_gres_types(controller, facts).map(|types| (annotation::GRES_TYPES.to_owned(), types)));
    Ok(Slurmctld {
        parent: parent.clone(),
        cluster: controller.cluster_name(),
        replicas: spec.replicas(),
        image,
        container: &spec.slurmctld,
        reconfigure: spec.inplace_reconfigure.then_some(&spec.reconfigure),
        logfile: &spec.logfile,
        template: &spec.template,
        state: spec.state_volume(),
        auth: keys.auth,
        jwt_key,
        jwks: spec.jwks_key_ref.as_ref(),
        config_maps: config_maps(spec),
        hashes,
    })
}

/// Whether daemons already run with the cluster's keys: a new key would break their authentication and thereby lose
/// jobs (never-replaced).
pub(super) fn has_run(facts: &Facts) -> bool {
    facts.stateful_set.is_some() || facts.has_workers
}

/// For a new cluster, suggests to generate the Secret; a Secret that a running cluster has lost must be restored.
pub(super) fn or_generate(mut problem: Problem, key: &KeyState, spec: &ControllerSpec, facts: &Facts) -> Problem {
    if *key != KeyState::NoSecret {
        return problem;
    }
    problem.message.push_str(if has_run(facts) {
        ". Daemons of this cluster already use the old key, so no new one is generated: restore it from a backup"
    } else if spec.generate_keys {
        ""
    } else {
        ", or set spec.generateKeys"
    });
    problem
}

/// Whether the operator makes slurmctld reread a changed configuration. Otherwise a sidecar does, or slurmctld restarts: a standby
/// does not reread all of it.
pub(super) fn rereads(spec: &ControllerSpec) -> bool {
    !spec.inplace_reconfigure && spec.replicas() == 1
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

/// All slurmctld of a cluster write to the same claim.
fn check_shared_claim(spec: &ControllerSpec, facts: &Facts) -> Result<(), Problem> {
    let Some(claim) = facts.claim.as_ref().filter(|_| spec.replicas() > 1) else { return Ok(()) };
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
    validate::unshareable(&claim.name_any(), &modes).map_or(Ok(()), |text| Err(Problem::invalid(text)))
}
