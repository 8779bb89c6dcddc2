//! What is wrong with the spec of a `NodeSet`, as far as it alone shows.

use slurm_operator_api::{common::validation::FieldError, slinky::NodeSet};

use super::model::{drain_timeout, node_conf, podlike, update};

pub(super) fn validate(set: &NodeSet) -> Vec<FieldError> {
    let mut errors: Vec<FieldError> =
        [podlike(set).err(), drain_timeout(set).err(), update(set).err(), node_conf(set).err()]
            .into_iter()
            .flatten()
            .collect();
    if set.spec.slurmd.text("image").is_none() {
        errors.push(FieldError::required("spec.slurmd.image"));
    }
    errors
}
