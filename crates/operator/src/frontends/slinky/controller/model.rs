//! Translates a Controller and its observed state into the engine's models.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use engine::{
    config::{
        AuthPlugin, ClusterModel, ConfigDelivery, ConfigError, GRES_TYPES, Host, NodeSetLine, Place, Scripts,
        check_line, check_qos, in_use,
    },
    daemons::{
        keys::{KeyState, hash_of},
        progress::Problem,
        shared::{self, Parent, slurmctld_address},
        slurmctld::Slurmctld,
    },
    gres::{Demand, Held},
};
use kube::ResourceExt;
use slurm::{
    conf::{Conf, Extra},
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
    validate,
};
use crate::frontends::slinky::keys::{Keys, ObservedRing};

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
pub(super) fn node_set_lines(
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
pub(super) struct NodeSetLines {
    pub(super) lines: Vec<NodeSetLine>,
    /// What is left out.
    pub(super) refused: Vec<Problem>,
    /// What is kept although no `NodeSet` asks for it.
    pub(super) in_use: Option<Problem>,
    pub(super) warnings: Vec<String>,
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
pub(super) fn live_slurm_conf(facts: &Facts) -> Conf {
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
pub(super) fn own_gres_types(controller: &Controller, facts: &Facts) -> Option<String> {
    let types: Vec<&str> = facts.gres.types.iter().map(String::as_str).collect();
    let is_set = || Extra::new(controller.spec.extra_conf.as_deref().unwrap_or_default()).get(GRES_TYPES).is_some();
    (!types.is_empty() && !is_set()).then(|| types.join(","))
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

/// All slurmctld of a cluster write to the same claim.
fn check_shared_claim(spec: &ControllerSpec, facts: &Facts) -> Result<(), Problem> {
    let Some(claim) = facts.claim.as_ref().filter(|_| spec.replicas() > 1) else { return Ok(()) };
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
    validate::unshareable(&claim.name_any(), &modes).map_or(Ok(()), |text| Err(Problem::invalid(text)))
}
