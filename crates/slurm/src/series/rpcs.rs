//! The series of slurmctld's statistics.

use std::{collections::HashSet, time::Duration};

use super::{Kind, Series, SeriesError, Writer};
use crate::wire::Diag;

/// A value from the number of calls and their time in microseconds; none if it is zero.
type Value = fn(u64, u64) -> Option<String>;

/// Other names of two families.
const CALLS_ALIAS: &str = "slurm_rpc_calls_total";
const SECONDS_ALIAS: &str = "slurm_rpc_duration_seconds_total";

/// The series of slurmctld's statistics; also under their other names, if wanted.
pub fn of_rpcs(diag: &Diag, aliases: bool) -> Result<Series, SeriesError> {
    let mut writer = Writer::default();
    let name = "slurm_controller_server_thread_count";
    writer.family(name, Kind::Gauge, "Threads of slurmctld");
    writer.sample(name, &[], diag.server_thread_count);

    let mut seen = HashSet::new();
    let types: Vec<_> = diag.rpcs_by_message_type.iter().filter(|rpc| seen.insert(rpc.message_type.as_str())).collect();
    let mut by_type = |name: &str, label: &str, help: &str, value: Value| {
        writer.family(name, Kind::Counter, help);
        for rpc in &types {
            if let Some(value) = value(rpc.count, rpc.total_time) {
                writer.sample(name, &[(label, &rpc.message_type)], value);
            }
        }
    };
    let (calls, seconds) = ("Calls that slurmctld has answered, by type", "Time that slurmctld took for them, by type");
    by_type("slurm_controller_rpc_calls_total", "message_type", calls, count);
    by_type("slurm_controller_rpc_duration_seconds_total", "message_type", seconds, time);
    if aliases {
        by_type(CALLS_ALIAS, "method", calls, count);
        by_type(SECONDS_ALIAS, "method", seconds, time);
    }

    let mut seen = HashSet::new();
    let users: Vec<_> = diag.rpcs_by_user.iter().filter(|rpc| seen.insert((rpc.user_id, rpc.user.as_str()))).collect();
    let mut by_user = |name: &str, help: &str, value: Value| {
        writer.family(name, Kind::Counter, help);
        for rpc in &users {
            if let Some(value) = value(rpc.count, rpc.total_time) {
                writer.sample(name, &[("user", &rpc.user), ("user_id", &rpc.user_id.to_string())], value);
            }
        }
    };
    by_user("slurm_controller_rpc_user_calls_total", "Calls that slurmctld has answered, by user", count);
    let help = "Time that slurmctld took for them, by user";
    by_user("slurm_controller_rpc_user_duration_seconds_total", help, time);
    writer.finish()
}

fn count(count: u64, _: u64) -> Option<String> {
    (count > 0).then(|| count.to_string())
}

/// Microseconds as seconds.
fn time(_: u64, micros: u64) -> Option<String> {
    (micros > 0).then(|| Duration::from_micros(micros).as_secs_f64().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{RpcByType, RpcByUser};

    #[test]
    fn statistics_have_their_names_and_aliases() {
        let of_type = |name: &str, count, total_time| RpcByType {
            message_type: name.to_owned(),
            count,
            total_time,
            ..RpcByType::default()
        };
        let ping = of_type("REQUEST_PING", 5_000_000_000, 1_500_000);
        let diag = Diag {
            server_thread_count: 3,
            rpcs_by_message_type: vec![ping.clone(), ping, of_type("REQUEST_NEVER", 0, 0)],
            rpcs_by_user: vec![RpcByUser {
                user: "ann".into(),
                user_id: 401,
                count: 2,
                total_time: 3,
                ..RpcByUser::default()
            }],
            ..Diag::default()
        };
        let series = of_rpcs(&diag, false).unwrap();
        let samples = |series: &Series| -> Vec<String> {
            series.text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let all = [
            "slurm_controller_server_thread_count 3",
            "slurm_controller_rpc_calls_total{message_type=\"REQUEST_PING\"} 5000000000",
            "slurm_controller_rpc_duration_seconds_total{message_type=\"REQUEST_PING\"} 1.5",
            "slurm_controller_rpc_user_calls_total{user=\"ann\",user_id=\"401\"} 2",
            "slurm_controller_rpc_user_duration_seconds_total{user=\"ann\",user_id=\"401\"} 0.000003",
        ];
        assert_eq!(samples(&series), all);
        let aliased = samples(&of_rpcs(&diag, true).unwrap());
        assert_eq!(aliased.len(), all.len() + 2);
        assert!(aliased.contains(&"slurm_rpc_calls_total{method=\"REQUEST_PING\"} 5000000000".to_owned()));
        assert!(aliased.contains(&"slurm_rpc_duration_seconds_total{method=\"REQUEST_PING\"} 1.5".to_owned()));
    }
}
