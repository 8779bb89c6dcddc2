//! The names of the phases, in the order in which a run goes through them.

/// From the start of the process until it says that it is ready.
pub const START: &str = "start";
/// From the Slurm cluster's objects until the pods of slurmctld and slurmrestd are ready.
pub const CLUSTER: &str = "cluster";
/// From the `NodeSet` until every worker's pod is there.
pub const CREATED: &str = "created";
/// Until every worker's pod is ready.
pub const READY: &str = "ready";
/// Until each pod has the conditions of its Slurm node.
pub const REGISTERED: &str = "registered";
/// Until the operator writes nothing more.
pub const SETTLED: &str = "settled";
/// A minute of nothing, except that nodes' loads change.
pub const IDLE: &str = "idle";
/// From a job on a tenth of the nodes until these workers are protected.
pub const BUSY: &str = "jobs start";
/// From the job's end until no worker is protected.
pub const FREE: &str = "jobs end";
/// From a new template until all workers are made from it and registered.
pub const ROLL: &str = "roll";
/// Thousands of objects that are none of the operator's business.
pub const NOISE: &str = "noise";
/// From the wish for no workers until none is there.
pub const SCALE_IN: &str = "scale-in";
/// From the deletion of the `NodeSet` until it is gone.
pub const DELETED: &str = "deleted";

/// From nothing to registered workers.
pub const RISING: [&str; 4] = [CREATED, READY, REGISTERED, SETTLED];
