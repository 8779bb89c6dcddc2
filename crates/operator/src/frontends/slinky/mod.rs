//! The kinds of `slinky.slurm.net`, one directory each.

pub mod accounting;
pub mod controller;
pub mod endpoint;
pub mod keys;
pub mod loginset;
pub mod nodeset;
pub mod restapi;
pub mod token;

use engine::plan::ClusterKey;
use slurm_operator_api::{
    common::{template::ServiceTemplate, validation::FieldError},
    slinky::{Accounting, Controller, LoginSet, NodeSet, RestApi, Token, names},
};

use super::KindVisitor;

pub(super) fn visit(visitor: &mut impl KindVisitor) {
    visitor.kind::<Controller>();
    visitor.kind::<RestApi>();
    visitor.kind::<Accounting>();
    visitor.kind::<NodeSet>();
    visitor.kind::<LoginSet>();
    visitor.kind::<Token>();
    visitor.referenced::<Controller>();
    visitor.referenced::<NodeSet>();
    visitor.referenced::<RestApi>();
    visitor.referenced::<Accounting>();
}

/// Somebody who may set external IPs can take the traffic of others (CVE-2020-8554), so they do not reach the Service.
fn external_ips(service: &ServiceTemplate) -> Option<FieldError> {
    let is_set = service.spec.fields().get("externalIPs").is_some_and(|ips| !ips.is_null());
    let message = "ignored, because it could be used to intercept traffic: use a Service of type LoadBalancer";
    is_set.then(|| FieldError::new("spec.service.spec.externalIPs", message))
}

/// The Slurm cluster of a Controller.
pub fn cluster_key(namespace: &str, controller: &str) -> ClusterKey {
    ClusterKey { group: names::GROUP, namespace: namespace.to_owned(), name: controller.to_owned() }
}
