//! The admission policy that keeps the workers of a deleted set from the garbage collector.

use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, Client, ResourceExt, api::ListParams};
use slurm_operator_api::common::vocabulary::Vocabulary;

use crate::{failure::call, lock::lock};

/// How long an answer is used. Policies change rarely.
const KEPT: SignedDuration = SignedDuration::from_mins(1);

/// Whether the policy is in force. Clones share the last answer.
#[derive(Clone, Default)]
pub struct DrainPolicy {
    last: Arc<Mutex<Option<Answer>>>,
    /// Without a cluster nothing is known.
    is_offline: bool,
}

/// When it was looked for, and whether it is in force, if known.
type Answer = (Timestamp, Option<bool>);

impl DrainPolicy {
    /// Without a cluster.
    pub fn offline() -> Self {
        Self { is_offline: true, ..Self::default() }
    }

    /// Whether a policy about sets of this API group denies anything; `None` if that may not be read.
    pub async fn is_in_force(&self, client: &Client, vocabulary: &Vocabulary, now: Timestamp) -> Option<bool> {
        if self.is_offline {
            return None;
        }
        let last = *lock(&self.last);
        if let Some((_, found)) = last.filter(|(at, _)| now.duration_since(*at).abs() < KEPT) {
            return found;
        }
        // An answer that is a little old is better than none.
        let found = find(client, vocabulary).await.or(last.and_then(|(_, found)| found));
        *lock(&self.last) = Some((now, found));
        found
    }
}

async fn find(client: &Client, vocabulary: &Vocabulary) -> Option<bool> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let all = ListParams::default();
    let policies = call("listing", || "ValidatingAdmissionPolicies".to_owned(), policies.list(&all)).await.ok()?;
    let bindings =
        call("listing", || "ValidatingAdmissionPolicyBindings".to_owned(), bindings.list(&all)).await.ok()?;
    let is_about_sets = |policy: &&ValidatingAdmissionPolicy| {
        let kind = policy.spec.as_ref().and_then(|spec| spec.param_kind.as_ref());
        kind.is_some_and(|kind| {
            let group = kind.api_version.as_deref().and_then(|version| version.split('/').next());
            group == Some(vocabulary.group) && kind.kind.as_deref() == Some(vocabulary.set_kind)
        })
    };
    let is_bound = |policy: &ValidatingAdmissionPolicy| {
        bindings.iter().filter_map(|binding| binding.spec.as_ref()).any(|binding| {
            binding.policy_name.as_deref() == Some(&policy.name_any())
                && binding.validation_actions.iter().flatten().any(|action| action == "Deny")
        })
    };
    Some(policies.iter().filter(is_about_sets).any(is_bound))
}
