//! What admission knows of an object beside the object itself, and what it says about it.

use std::collections::{BTreeMap, BTreeSet};

use slurm_operator_api::common::validation::FieldError;

/// An object in the same namespace that admission looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    ConfigMap(String),
    /// A `PersistentVolumeClaim`.
    Claim(String),
}

/// What was found of them. What could not be read is in neither map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Referenced {
    /// The file names in each `ConfigMap`; `None` if it does not exist.
    pub config_maps: BTreeMap<String, Option<BTreeSet<String>>>,
    /// The access modes of each claim that exists.
    pub claims: BTreeMap<String, Vec<String>>,
}

/// What admission says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub errors: Vec<FieldError>,
    pub warnings: Vec<FieldError>,
}
