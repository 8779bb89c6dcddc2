//! Translates a `NodeSet` into the engine's models, and reports what is invalid in it.

use std::collections::BTreeSet;

use engine::{
    config::GRES_TYPES,
    daemons::{
        progress::Problem,
        shared::{Auth, Parent},
        slurmd::{ConfigSource, Slurmd},
    },
    gres::Held,
    overlay::Fields,
    podset::{
        self, Budget, DEFAULT_BURST, DrainPolicy, HeldGres, Life, Match, Model, Naming, OnTimeout, Ordinals, Placement,
        Registration, RemovalOrder, Retention, Scaling, Schedule, Term, Toleration, Update, claim_template_name,
    },
};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, PodSpec, Toleration as PodToleration};
use kube::{Resource, ResourceExt};
use slurm::{
    conf::{Extra, Finding, NodeConf, check_node},
    version::SlurmVersion,
};
use slurm_operator_api::{
    common::{
        conditions::{self, DEGRADED, reason},
        port,
        template::{Overlay, PodTemplate},
        validation::FieldError,
        vocabulary::TRUE,
    },
    slinky::{
        Controller, NodeSet, VOCABULARY,
        names::annotation,
        nodeset::{MaxUnavailable, OnTimeout as ApiOnTimeout, Retention as ApiRetention, ScalingMode, UpdateType},
    },
};

use super::{
    plan::{Cluster, Facts, LiveChildren},
    validate::errors,
};
use crate::frontends::slinky::controller::config_server;

/// The fields that must be parsed, each with what is wrong with it.
pub struct Parsed {
    /// The user's pod template, as far as the operator must interpret it.
    pub pod: Result<PodSpec, FieldError>,
    /// How long jobs of a draining worker may keep running.
    pub drain_timeout: Result<Option<SignedDuration>, FieldError>,
    pub update: Result<Update, FieldError>,
    /// The parameters of the Slurm nodes.
    pub conf: Result<NodeConf, FieldError>,
}

impl Parsed {
    pub fn of(set: &NodeSet) -> Self {
        let timeout = set.spec.drain().timeout();
        Self {
            pod: podlike(&set.spec.template),
            drain_timeout: timeout.map_err(|error| FieldError::new("spec.drain.timeout", error.to_string())),
            update: update(set),
            conf: node_conf(set),
        }
    }
}

/// The model for the lifecycle of workers. An invalid field blocks the set and is replaced by a value that is
/// harmless to running workers: every node fits, drains have no timeout, nothing is updated.
pub fn lifecycle(set: &NodeSet, parsed: &Parsed, facts: &Facts) -> Model {
    let spec = &set.spec;
    let pod = parsed.pod.as_ref().ok();
    let drain = spec.drain();
    let is_paused = set.annotations().get(annotation::PAUSED).is_some_and(|value| value == TRUE);
    let retention = spec.claim_retention();
    Model {
        vocabulary: &VOCABULARY,
        namespace: set.namespace().unwrap_or_default(),
        name: set.name_any(),
        uid: set.uid().unwrap_or_default(),
        slurm_name: set.slurm_name(),
        scaling: match spec.scaling_mode {
            ScalingMode::StatefulSet => {
                let ordinals = Ordinals::Count(spec.replicas());
                Scaling::Numbered { ordinals, padding: spec.ordinal_padding(), removal: RemovalOrder::Cheapest }
            }
            ScalingMode::DaemonSet => Scaling::PerNode,
        },
        registration: Registration::Dynamic,
        naming: Naming {
            hostname_prefix: spec.template.hostname().map(str::to_owned),
            host_network: pod.and_then(|pod| pod.host_network).unwrap_or(false),
        },
        placement: pod.map_or_else(anywhere, placement),
        pins_to_node: spec.pins_to_node(),
        oversubscribes: spec.oversubscribe_node,
        protects_workload: spec.workload_disruption_protection,
        min_ready: SignedDuration::from_secs(spec.min_ready_seconds().into()),
        update: parsed.update.clone().unwrap_or(Update::OnDelete),
        drain: DrainPolicy {
            timeout: parsed.drain_timeout.clone().unwrap_or_default(),
            on_timeout: match drain.on_timeout {
                ApiOnTimeout::Wait => OnTimeout::Wait,
                ApiOnTimeout::Requeue => OnTimeout::Requeue,
                ApiOnTimeout::Kill => OnTimeout::Kill,
            },
            on_delete: drain.on_delete,
        },
        claims: claim_templates(set)
            .iter()
            .filter_map(|template| claim_template_name(template))
            .map(str::to_owned)
            .collect(),
        retention: Retention {
            with_set: retention.when_deleted == ApiRetention::Delete,
            with_scale: retention.when_scaled == ApiRetention::Delete,
        },
        prunes_records: spec.prunes_records(),
        resumes_rebooted: facts.cluster.as_ref().is_none_or(|cluster| !sets_return_to_service(&cluster.controller)),
        revision: String::new(),
        needs_key_ring: facts.cluster.as_ref().is_some_and(Cluster::is_changing_key),
        life: if set.meta().deletion_timestamp.is_some() {
            Life::Deleted
        } else if is_paused {
            Life::Paused
        } else {
            Life::Active
        },
        propagated_conditions: facts.propagated_conditions.clone(),
        burst: DEFAULT_BURST,
        gres: gres_of_workers(set, parsed, facts),
        blocked: Problem::of_fields(&errors(set, parsed)),
    }
}

/// Reasons of `Degraded` because of which no worker is created or updated.
const BLOCKING: [&str; 5] =
    [reason::INVALID_SPEC, reason::REFERENCE_MISSING, "NameTaken", "ImmutableField", "WaitingForSlurmctld"];

/// The same as far as the object and its status show: for people who may not read what plans depend on.
pub fn lifecycle_of_viewer(set: &NodeSet) -> Model {
    let facts = Facts {
        cluster: None,
        podset: podset::Facts::default(),
        revisions: Vec::new(),
        siblings: Vec::new(),
        live: LiveChildren::default(),
        has_drain_policy: None,
        sssd_hash: None,
        propagated_conditions: Vec::new(),
        domain: String::new(),
    };
    let model = lifecycle(set, &Parsed::of(set), &facts);
    let status = set.status.clone().unwrap_or_default();
    let found = conditions::find(&status.conditions, DEGRADED).filter(|found| found.status == "True");
    let reported = found.and_then(|found| {
        let reason = BLOCKING.into_iter().find(|reason| *reason == found.reason)?;
        Some(Problem::new(reason, found.message.as_str()))
    });
    Model { revision: status.node_set_hash, blocked: model.blocked.or(reported), ..model }
}

/// Whether the user decides which nodes that are down return to service.
fn sets_return_to_service(controller: &Controller) -> bool {
    Extra::new(controller.spec.extra_conf.as_deref().unwrap_or_default()).get("ReturnToService").is_some()
}

/// The templates of the claims of each worker.
pub fn claim_templates(set: &NodeSet) -> Vec<&Fields> {
    set.spec.volume_claim_templates.iter().map(Overlay::fields).collect()
}

fn podlike(template: &PodTemplate) -> Result<PodSpec, FieldError> {
    let mut fields = template.spec.fields().clone();
    // Required by the type, but not used.
    fields.insert("containers".to_owned(), serde_json::json!([]));
    serde_json::from_value(fields.into()).map_err(|error| FieldError::new("spec.template.spec", error.to_string()))
}

/// Where the workers of another set can run.
pub fn placement_of(template: &PodTemplate) -> Placement {
    podlike(template).map_or_else(|_| anywhere(), |pod| placement(&pod))
}

/// A placement that fits every node.
fn anywhere() -> Placement {
    let all = Toleration { operator: "Exists".to_owned(), ..Toleration::default() };
    Placement { tolerations: vec![all], ..Placement::default() }
}

fn placement(pod: &PodSpec) -> Placement {
    let required = pod
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let demand = |part: &NodeSelectorRequirement| Match {
        key: part.key.clone(),
        operator: part.operator.clone(),
        values: part.values.clone().unwrap_or_default(),
    };
    let demands = |parts: &Option<Vec<NodeSelectorRequirement>>| parts.iter().flatten().map(demand).collect();
    let tolerated = |toleration: &PodToleration| Toleration {
        key: toleration.key.clone().unwrap_or_default(),
        operator: toleration.operator.clone().unwrap_or_default(),
        value: toleration.value.clone().unwrap_or_default(),
        effect: toleration.effect.clone().unwrap_or_default(),
    };
    Placement {
        selector: pod.node_selector.clone().unwrap_or_default().into_iter().collect(),
        terms: required.map(|required| {
            let terms = required.node_selector_terms.iter();
            terms
                .map(|term| Term { labels: demands(&term.match_expressions), fields: demands(&term.match_fields) })
                .collect()
        }),
        tolerations: pod.tolerations.iter().flatten().map(tolerated).collect(),
    }
}

fn update(set: &NodeSet) -> Result<Update, FieldError> {
    const SCHEDULED: &str = "spec.updateStrategy.scheduledUpdate";
    let strategy = set.spec.update_strategy();
    Ok(match strategy.type_ {
        UpdateType::OnDelete => Update::OnDelete,
        UpdateType::RollingUpdate => Update::Rolling {
            max_unavailable: budget(&strategy.rolling_update.clone().unwrap_or_default().max_unavailable)?,
        },
        UpdateType::ScheduledUpdate => {
            let missing = || FieldError::new(SCHEDULED, "set startTime and duration");
            let scheduled = strategy.scheduled().ok_or_else(missing)?;
            let duration = scheduled
                .duration()
                .map_err(|error| FieldError::new(format!("{SCHEDULED}.duration"), error.to_string()))?;
            let start = scheduled.start().ok_or_else(missing)?;
            Update::Scheduled(Schedule {
                start: start.map_err(|error| FieldError::new(format!("{SCHEDULED}.startTime"), error.to_string()))?,
                minutes: u32::try_from(duration.as_mins()).unwrap_or(u32::MAX).max(1),
                flags: scheduled.flags(),
            })
        }
    })
}

fn budget(max: &MaxUnavailable) -> Result<Budget, FieldError> {
    let wrong = || {
        let found = serde_json::to_string(max).unwrap_or_default();
        let message = format!("{found} is neither a number nor a percentage such as 25%");
        FieldError::new("spec.updateStrategy.rollingUpdate.maxUnavailable", message)
    };
    match max {
        MaxUnavailable::Int(number) => u32::try_from(*number).map(Budget::Number).map_err(|_| wrong()),
        MaxUnavailable::String(text) => {
            let percent = text.strip_suffix('%').and_then(|number| number.parse().ok());
            percent.map(Budget::Percent).ok_or_else(wrong)
        }
        MaxUnavailable::Other(_) => Err(wrong()),
    }
}

/// The slurmd of the set's pods.
pub fn slurmd<'a>(
    set: &'a NodeSet,
    parsed: &Parsed,
    cluster: &'a Cluster,
    facts: &'a Facts,
    revision: &'a str,
) -> Result<Slurmd<'a>, Problem> {
    let (spec, controller) = (&set.spec, &*cluster.controller);
    let invalid = |error: FieldError| Problem::invalid(error);
    let image = spec.slurmd.text("image").ok_or_else(|| invalid(FieldError::required("spec.slurmd.image")))?;
    let slurm_key = controller.spec.slurm_key_ref.as_ref().ok_or_else(|| Problem {
        reason: reason::REFERENCE_MISSING,
        message: format!("the Controller {} has no Slurm key: set its spec.slurmKeyRef", controller.name_any()),
    })?;
    let mut conf = parsed.conf.clone().map_err(invalid)?;
    if let Some(gres) = gres(set, &conf, facts)?.and_then(|gres| gres.given) {
        conf.set_default("Gres", &gres).map_err(Problem::invalid)?;
    }
    let port = slurmd_port(&conf, controller)?;
    // slurmd is told of new keys.
    let auth = match cluster.ring.live() {
        Some(ring) => Auth::KeyRing { secret: &ring.secret, hash: None },
        None => Auth::SlurmKey(slurm_key),
    };
    let mut hashes = auth.annotations(&VOCABULARY);
    if let Some(hash) = &facts.sssd_hash {
        hashes.insert(annotation::hash::SSSD_CONF.to_owned(), hash.clone());
    }
    Ok(Slurmd {
        parent: Parent::of(set, &VOCABULARY),
        cluster: &spec.controller_ref.name,
        config: ConfigSource::Server(config_server(controller)),
        registration: Registration::Dynamic,
        image,
        container: &spec.slurmd,
        logfile: &spec.logfile,
        template: &spec.template,
        conf,
        port,
        auth,
        ssh: spec.ssh().map(|ssh| &ssh.sssd_conf_ref),
        oversubscribes: spec.oversubscribe_node,
        mode: match spec.scaling_mode {
            ScalingMode::StatefulSet => podset::Mode::Numbered,
            ScalingMode::DaemonSet => podset::Mode::PerNode,
        },
        domain: &facts.domain,
        hashes,
        revision,
    })
}

/// The version of slurmd, from its image tag.
pub(super) fn version(set: &NodeSet) -> Option<SlurmVersion> {
    set.spec.slurmd.text("image").and_then(SlurmVersion::from_image)
}

/// What the workers of a set hold.
pub fn held(set: &NodeSet) -> Held {
    Held::of(set.spec.slurmd.fields(), set.spec.template.spec.fields(), &set.spec.gres)
}

/// The generic resources of a worker, as the limits of its pod and the configuration have them.
struct Gres {
    /// The value of `Gres=`, unless the user or nobody can set it.
    given: Option<String>,
    /// What to do if Slurm has others.
    advice: String,
}

/// `Ok(None)` if the workers hold none.
fn gres(set: &NodeSet, conf: &NodeConf, facts: &Facts) -> Result<Option<Gres>, Problem> {
    let held = held(set);
    let Some(Cluster { controller, gres_types, .. }) = facts.cluster.as_ref().filter(|_| !held.is_empty()) else {
        return Ok(None);
    };
    let (name, text) = (controller.name_any(), held.text());
    let not_given = |advice: String| Ok(Some(Gres { given: None, advice }));
    if let Some(by_user) = conf.get("Gres") {
        return not_given(format!("spec.extraConf sets Gres={by_user}: correct or remove it"));
    }
    if controller.spec.external {
        return not_given(format!(
            "slurmctld is external: configure GresTypes and gres.conf there, and set Gres={text} in spec.extraConf"
        ));
    }
    let cluster = Extra::new(controller.spec.extra_conf.as_deref().unwrap_or_default());
    let by_user: Option<BTreeSet<String>> =
        cluster.get(GRES_TYPES).map(|types| types.split(',').map(str::to_owned).collect());
    let types: &BTreeSet<String> = by_user.as_ref().unwrap_or(&gres_types.names);
    let missing: Vec<String> = held.by_name().into_keys().filter(|name| !types.contains(name)).collect();
    let missing = missing.join(",");
    if by_user.is_some() && !missing.is_empty() {
        return not_given(format!(
            "spec.extraConf of the Controller {name} sets GresTypes without {missing}: add it there"
        ));
    }
    // slurmctld would make a node without them, and keep it so.
    let is_new = facts.podset.workers.is_empty() && facts.podset.creating.is_empty();
    if is_new && by_user.is_none() && !(missing.is_empty() && gres_types.is_rolled_out) {
        let message =
            format!("workers wait until slurmctld knows their {text}: see the conditions of the Controller {name}");
        return Err(Problem { reason: "WaitingForSlurmctld", message });
    }
    if !missing.is_empty() {
        return not_given(format!(
            "slurmctld does not have GresTypes={missing} yet, see the conditions of the Controller {name}; then delete the pods of \
             these workers, while they are idle"
        ));
    }
    let advice =
        "slurmctld did not know them when slurmd started: delete the pods of these workers, while they are idle";
    Ok(Some(Gres { given: Some(text), advice: advice.to_owned() }))
}

/// What Slurm should have of each worker.
fn gres_of_workers(set: &NodeSet, parsed: &Parsed, facts: &Facts) -> Option<HeldGres> {
    let gres = gres(set, parsed.conf.as_ref().ok()?, facts).ok()??;
    Some(HeldGres { counts: held(set).by_name(), advice: gres.advice })
}

fn node_conf(set: &NodeSet) -> Result<NodeConf, FieldError> {
    let mut conf = NodeConf::parse(set.spec.extra_conf.as_deref().unwrap_or_default()).map_err(|error| {
        let message = format!("must be a list of Key=Value, for example Weight=10 Gres=gpu:8: {error}");
        FieldError::new("spec.extraConf", message)
    })?;
    let unknown = check_node(set.spec.extra_conf.as_deref().unwrap_or_default(), version(set));
    if let Some(error) = unknown.into_iter().find(Finding::is_error) {
        return Err(FieldError::new("spec.extraConf", error.text));
    }
    let name = set.slurm_name();
    conf.feature(&name).map_err(|error| {
        let field =
            if set.spec.template.hostname().is_some() { "spec.template.spec.hostname" } else { "metadata.name" };
        FieldError::new(field, format!("`{name}` is not a valid name in Slurm: {error}"))
    })?;
    Ok(conf)
}

/// The port of slurmd: the node's `Port`, the cluster's `SlurmdPort`, or the default.
fn slurmd_port(conf: &NodeConf, controller: &Controller) -> Result<u16, Problem> {
    let cluster = Extra::new(controller.spec.extra_conf.as_deref().unwrap_or_default());
    let set = conf.get("Port").or_else(|| cluster.get("SlurmdPort").map(str::to_owned));
    let Some(text) = set else { return Ok(u16::try_from(port::SLURMD).unwrap_or(u16::MAX)) };
    text.parse().map_err(|_| Problem::invalid(format!("`{text}` is not a valid slurmd port")))
}
