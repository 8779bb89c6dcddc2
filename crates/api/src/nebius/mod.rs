//! The custom resources of `slurm.nebius.ai`: `v1` and `v1alpha1`.
//!
//! One schema takes objects of soperator 1.23.3 and 5.0.0. A default on which the two disagree, or which would hide what
//! another field says, is not in the schema.

pub mod active_check;
pub mod jailed_config;
pub mod node_configurator;
pub mod node_set;
pub mod power_state;
pub mod shared;
pub mod slurm_cluster;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::common::schema;

pub use active_check::{ActiveCheck, ActiveCheckSpec, ActiveCheckStatus};
pub use jailed_config::{JailedConfig, JailedConfigSpec, JailedConfigStatus};
pub use node_configurator::{NodeConfigurator, NodeConfiguratorSpec, NodeConfiguratorStatus};
pub use node_set::{NodeSet, NodeSetSpec, NodeSetStatus};
pub use power_state::{NodeSetPowerState, NodeSetPowerStateSpec, NodeSetPowerStateStatus};
pub use slurm_cluster::{SlurmCluster, SlurmClusterSpec, SlurmClusterStatus};

/// Returns the CRDs of this group.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    let derived = [
        ActiveCheck::crd(),
        JailedConfig::crd(),
        schema::with_default_spec(NodeConfigurator::crd()),
        NodeSet::crd(),
        NodeSetPowerState::crd(),
        SlurmCluster::crd(),
    ];
    derived.into_iter().map(schema::with_null).map(schema::with_flowing_text).collect()
}
