//! Generic resources of Slurm (GRES) that follow from the Kubernetes resources of workers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use slurm::version::{Feature, SlurmVersion, supports};

use crate::{daemons::shared::SLURMD, overlay::Fields, quantity::milli};

/// Resources of Kubernetes, and what they are in Slurm.
const KNOWN: &[(&str, &str)] = &[("amd.com/gpu", "gpu"), ("nvidia.com/gpu", "gpu")];

/// How slurmd finds the GPUs of a vendor, by the beginning of the name of the resource: `AutoDetect` in gres.conf. `nvidia` is
/// in every build of Slurm and reads /proc; the others need a library of the vendor.
const DETECTED_BY: &[(&str, &str)] =
    &[("nvidia.com/mig-", "nvml"), ("nvidia.com/", "nvidia"), ("amd.com/", "rsmi"), ("gpu.intel.com/", "oneapi")];

/// The name of GPUs in Slurm. slurmd ignores those without a device file, and needs none for other resources.
const GPU: &str = "gpu";

/// In the user's mapping: the resource is none of Slurm's.
pub const NONE: &str = "none";

/// What a worker holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Counts by GRES, with its type if it has one: `gpu`, `gpu:h100`.
    counts: BTreeMap<String, u64>,
    detected_by: BTreeSet<&'static str>,
}

impl Held {
    /// From the limits of the slurmd container, in `slurmd` and in the pod template. `mapping` says what other resources are in
    /// Slurm.
    pub fn of(slurmd: &Fields, pod: &Fields, mapping: &BTreeMap<String, String>) -> Self {
        let in_template = pod.get("containers").and_then(Value::as_array).into_iter().flatten();
        let in_template = in_template.filter(|container| container["name"] == SLURMD.program).map(|c| &c["resources"]);
        let mut limits = BTreeMap::new();
        // The template is merged over the container.
        for resources in slurmd.get("resources").into_iter().chain(in_template) {
            limits.extend(resources["limits"].as_object().into_iter().flatten());
        }
        let mut held = Self::default();
        for (resource, limit) in limits {
            let known = || KNOWN.iter().find(|(known, _)| known == resource).map(|(_, gres)| *gres);
            let gres = mapping.get(resource).map(String::as_str).or_else(known).filter(|gres| *gres != NONE);
            // What is invalid is reported with the set.
            let gres = gres.filter(|gres| is_valid(gres));
            if let (Some(gres), Some(count @ 1..)) = (gres, count(limit)) {
                add(&mut held.counts, gres, count);
                let found = DETECTED_BY.iter().find(|(prefix, _)| resource.starts_with(prefix));
                held.detected_by.extend(found.filter(|_| name_of(gres) == GPU).map(|(_, plugin)| *plugin));
            }
        }
        held
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The counts by name, without types.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (gres, count) in &self.counts {
            add(&mut counts, name_of(gres), *count);
        }
        counts
    }

    /// The value of `Gres=` for a node: `gpu:8`.
    pub fn text(&self) -> String {
        let items: Vec<String> = self.counts.iter().map(|(gres, count)| format!("{gres}:{count}")).collect();
        items.join(",")
    }
}

fn add(counts: &mut BTreeMap<String, u64>, gres: &str, count: u64) {
    let total = counts.entry(gres.to_owned()).or_default();
    *total = total.saturating_add(count);
}

/// `gpu` of `gpu:h100`.
fn name_of(gres: &str) -> &str {
    gres.split(':').next().unwrap_or(gres)
}

fn count(limit: &Value) -> Option<u64> {
    let text = match limit {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    u64::try_from(milli(&text)? / 1000).ok()
}

/// Whether this is a GRES with an optional type, or [`NONE`].
pub fn is_valid(gres: &str) -> bool {
    let is_word = |word: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        !word.is_empty() && word.chars().all(is_plain) && !word.chars().all(|c| c.is_ascii_digit())
    };
    gres.split(':').count() <= 2 && gres.split(':').all(is_word)
}

/// What all workers of a cluster need in its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// `GresTypes`
    pub types: BTreeSet<String>,
    detected_by: BTreeSet<&'static str>,
    /// Whether a slurmd is too old for `AutoDetect=full`.
    is_old: bool,
}

impl Demand {
    /// Adds the workers of a set, and the version of their slurmd.
    pub fn add(&mut self, held: &Held, version: Option<SlurmVersion>) {
        self.types.extend(held.by_name().into_keys());
        self.detected_by.extend(&held.detected_by);
        self.is_old |= !held.detected_by.is_empty() && !supports(version, Feature::GresAutoDetectFull);
    }

    /// gres.conf, if slurmd has to find GPUs.
    pub fn gres_conf(&self) -> Option<String> {
        let plugin = if self.is_old { self.chosen()? } else { self.detected_by.first().map(|_| "full")? };
        Some(format!("AutoDetect={plugin}\n"))
    }

    /// The plugins that are needed and not used, because slurmd before 26.05 has only one.
    pub fn undetected(&self) -> Vec<&'static str> {
        let chosen = self.chosen();
        let is_covered = |plugin: &&str| chosen == Some("nvml") && *plugin == "nvidia";
        let others = self.detected_by.iter().copied().filter(|plugin| Some(*plugin) != chosen && !is_covered(plugin));
        if self.is_old { others.collect() } else { Vec::new() }
    }

    /// The first one of the table.
    fn chosen(&self) -> Option<&'static str> {
        DETECTED_BY.iter().map(|(_, plugin)| *plugin).find(|plugin| self.detected_by.contains(plugin))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(limits: &Value, mapping: &[(&str, &str)]) -> Held {
        let slurmd = json!({"resources": {"limits": limits}});
        let mapping = mapping.iter().map(|(resource, gres)| ((*resource).to_owned(), (*gres).to_owned())).collect();
        Held::of(slurmd.as_object().unwrap(), &Fields::new(), &mapping)
    }

    #[test]
    fn limits_are_what_slurm_gets() {
        for (limits, mapping, expected) in [
            (json!({"cpu": 2, "memory": "4Gi"}), &[][..], ""),
            (json!({"nvidia.com/gpu": 8}), &[], "gpu:8"),
            (json!({"amd.com/gpu": "2"}), &[], "gpu:2"),
            (json!({"nvidia.com/gpu": 0}), &[], ""),
            (json!({"nvidia.com/gpu": "many"}), &[], ""),
            (json!({"example.com/fpga": 1}), &[], ""),
            (
                json!({"example.com/fpga": "1k", "nvidia.com/gpu": 1}),
                &[("example.com/fpga", "fpga")],
                "fpga:1000,gpu:1",
            ),
            (json!({"nvidia.com/gpu": 4}), &[("nvidia.com/gpu", "gpu:h100")], "gpu:h100:4"),
            (json!({"nvidia.com/gpu": 4}), &[("nvidia.com/gpu", "none")], ""),
            (json!({"a/a": 1, "a/b": 2}), &[("a/a", "x:y"), ("a/b", "x:y")], "x:y:3"),
        ] {
            assert_eq!(held(&limits, mapping).text(), expected, "{limits} {mapping:?}");
        }
    }

    #[test]
    fn the_template_wins() {
        let slurmd = json!({"resources": {"limits": {"nvidia.com/gpu": 8, "amd.com/gpu": 1}}});
        let other = json!({"name": "other", "resources": {"limits": {"nvidia.com/gpu": 1}}});
        let ours = json!({"name": "slurmd", "resources": {"limits": {"nvidia.com/gpu": 4}}});
        let pod = json!({"containers": [other, ours]});
        let held = Held::of(slurmd.as_object().unwrap(), pod.as_object().unwrap(), &BTreeMap::new());
        assert_eq!((held.text().as_str(), held.by_name()), ("gpu:5", [("gpu".to_owned(), 5)].into()));
    }

    #[test]
    fn types_are_added_up() {
        let held = held(&json!({"a/a": 1, "a/b": 2}), &[("a/a", "gpu:x"), ("a/b", "gpu:y")]);
        assert_eq!((held.text().as_str(), held.by_name()), ("gpu:x:1,gpu:y:2", [("gpu".to_owned(), 3)].into()));
    }

    #[test]
    fn slurmd_detects_gpus_as_it_can() {
        let mig = ("nvidia.com/mig-1g.10gb", "gpu:1g.10gb");
        let demand = |sets: &[(Value, &str)]| {
            let mut demand = Demand::default();
            for (limits, version) in sets {
                demand.add(&held(limits, &[mig, ("a/fpga", "fpga"), ("a/gpu", "gpu")]), version.parse().ok());
            }
            (demand.gres_conf().unwrap_or_default(), demand.undetected(), Vec::from_iter(demand.types))
        };
        let (nvidia, amd, plain) = (json!({"nvidia.com/gpu": 1}), json!({"amd.com/gpu": 1}), json!({"cpu": 1}));
        let found = |conf: &str, rest: &[&'static str], types: &[&str]| {
            (conf.to_owned(), rest.to_vec(), types.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(demand(&[(plain.clone(), "24.11")]), found("", &[], &[]));
        assert_eq!(demand(&[(nvidia.clone(), "24.11")]), found("AutoDetect=nvidia\n", &[], &["gpu"]));
        assert_eq!(demand(&[(nvidia.clone(), "?")]), found("AutoDetect=nvidia\n", &[], &["gpu"]));
        assert_eq!(demand(&[(nvidia.clone(), "26.05")]), found("AutoDetect=full\n", &[], &["gpu"]));
        assert_eq!(demand(&[(amd.clone(), "25.11")]), found("AutoDetect=rsmi\n", &[], &["gpu"]));
        assert_eq!(
            demand(&[(amd.clone(), "26.05"), (nvidia.clone(), "26.05")]),
            found("AutoDetect=full\n", &[], &["gpu"])
        );
        // One that is older decides, but not one without GPUs.
        assert_eq!(demand(&[(plain, "24.11"), (nvidia.clone(), "26.05")]), found("AutoDetect=full\n", &[], &["gpu"]));
        assert_eq!(
            demand(&[(amd, "26.05"), (nvidia.clone(), "24.11")]),
            found("AutoDetect=nvidia\n", &["rsmi"], &["gpu"])
        );
        assert_eq!(
            demand(&[(json!({mig.0: 7}), "24.11"), (nvidia, "24.11")]),
            found("AutoDetect=nvml\n", &[], &["gpu"])
        );
        // No device files are needed, or they are not known.
        assert_eq!(demand(&[(json!({"a/fpga": 1}), "24.11")]), found("", &[], &["fpga"]));
        assert_eq!(demand(&[(json!({"a/gpu": 1}), "24.11")]), found("", &[], &["gpu"]));
    }

    #[test]
    fn names_must_be_slurms() {
        for good in ["gpu", "gpu:h100", "gpu:1g.10gb", "none", "my-fpga_2"] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "gpu:", ":h100", "gpu:h100:2", "gpu:2", "2", "g pu", "gpu,fpga", "gpu=1", "gpu'"] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
