//! The names of the phases, in the order of a run.

/// From the start of the process until its readiness endpoint reports success.
pub const START: &str = "start";
/// From the creation of Controller and `RestApi` until the pods of slurmctld and slurmrestd are ready.
pub const CLUSTER: &str = "cluster";
/// From the creation of the `NodeSet` until the pod of every worker exists.
pub const CREATED: &str = "created";
/// Until the pod of every worker is ready.
pub const READY: &str = "ready";
/// Until each pod has the conditions of its Slurm node.
pub const REGISTERED: &str = "registered";
/// Until the operator stops writing.
pub const SETTLED: &str = "settled";
/// A minute in which only the loads of Slurm nodes change.
pub const IDLE: &str = "idle";
/// From the start of a job on a tenth of the nodes until their workers are protected.
pub const JOBS_START: &str = "jobs start";
/// From the end of the job until no worker is protected.
pub const JOBS_END: &str = "jobs end";
/// From a new pod template until all workers are created from it, ready and registered.
pub const ROLL: &str = "roll";
/// Thousands of unrelated objects are created and deleted.
pub const NOISE: &str = "noise";
/// From the start of a job on all nodes, and of thousands that wait, until all workers are protected.
pub const JOBS_START_ALL: &str = "all busy";
/// A minute in which a worker is to be removed, all workers are busy, and thousands of jobs are waiting.
pub const MANY_JOBS: &str = "many jobs";
/// From the end of all jobs until no worker is protected.
pub const JOBS_END_ALL: &str = "all free";
/// From `replicas: 0` until no worker exists.
pub const SCALE_IN: &str = "scale-in";
/// From the deletion of the `NodeSet` until it is gone.
pub const DELETED: &str = "deleted";

/// The phases in which lists of jobs are large.
pub const WITH_MANY_JOBS: [&str; 3] = [JOBS_START_ALL, MANY_JOBS, JOBS_END_ALL];

/// From no workers to registered workers.
pub const SCALE_OUT: [&str; 4] = [CREATED, READY, REGISTERED, SETTLED];
