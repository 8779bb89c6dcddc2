//! The configuration for a trial: a slurmctld and a slurmd that read it before those of the cluster do.
//!
//! With the real files they would take over from a backup, register in slurmdbd, run programs and reach real nodes. So all that refers
//! to the world around is replaced or left out, and what is left out is named.

use std::collections::BTreeSet;

use slurm::{
    conf::{Conf, Item, Line, Pair, QOS_KEYS},
    hostlist,
};

use super::Files;

/// The host name of the trial.
pub const TRIAL_HOST: &str = "trial";

/// The folder that slurmctld and slurmd of a trial share.
pub const TRIAL_FOLDER: &str = "/trial";

/// The files of a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrialFiles {
    pub files: Files,
    /// What was left out, for a message.
    pub not_tried: BTreeSet<String>,
    /// Devices that slurmd of the cluster has, and the trial does not.
    pub devices: BTreeSet<String>,
}

/// Keys of slurm.conf that the trial sets itself, or that mean nothing to it.
const OWN: &[&str] = &[
    "AccountingStorageBackupHost",
    "AccountingStorageExternalHost",
    "AccountingStorageHost",
    "AccountingStoragePass",
    "AccountingStoragePort",
    "AccountingStorageType",
    "AccountingStorageUser",
    "SlurmSchedLogFile",
    "SlurmctldAddr",
    "SlurmctldHost",
    "SlurmctldLogFile",
    "SlurmctldPidFile",
    "SlurmdLogFile",
    "SlurmdPidFile",
    "SlurmdSpoolDir",
    "StateSaveLocation",
];

/// Keys of slurm.conf that need slurmdbd. Without slurmdbd, they are tried: slurmctld may not start with them.
const OF_SLURMDBD: &[&str] =
    &["AccountingStorageEnforce", "AccountingStorageTRES", "PriorityWeightFairshare", "PriorityWeightTRES"];

/// The same for partitions.
const OF_SLURMDBD_IN_PARTITIONS: &[&str] = &["AllowQos", "DenyQos", "QOS", "TRESBillingWeights"];

/// Keys of slurm.conf that need another database, or that run programs by themselves.
const OUTSIDE: &[&str] = &[
    "HealthCheckProgram",
    "JobCompHost",
    "JobCompLoc",
    "JobCompParams",
    "JobCompPass",
    "JobCompPassScript",
    "JobCompPort",
    "JobCompType",
    "JobCompUser",
    "MailProg",
    "ResumeFailProgram",
    "ResumeProgram",
    "SlurmctldPrimaryOffProg",
    "SlurmctldPrimaryOnProg",
    "SuspendProgram",
];

/// Keys of nodes with addresses.
const ADDRESSES: &[&str] = &["BcastAddr", "NodeAddr"];

/// What is known of slurmdbd.
#[derive(Clone, Copy)]
struct Slurmdbd {
    is_used: bool,
    /// The QOS of partitions exist there.
    knows_qos: bool,
}

/// The files of a trial of `wanted`. `live_gres` is gres.conf as it is in use: what running slurmd have already is not tried again,
/// because the trial has no GPUs. `knows_qos`: those of partitions were compared with slurmdbd.
pub fn trial_files(wanted: &Files, live_gres: Option<&str>, knows_qos: bool) -> TrialFiles {
    let mut trial = TrialFiles { files: wanted.clone(), ..TrialFiles::default() };
    let main = wanted.get("slurm.conf").and_then(|file| parse(file)).unwrap_or_default();
    let slurmdbd = Slurmdbd {
        is_used: main.get("AccountingStorageType").is_some_and(|plugin| plugin.ends_with("slurmdbd")),
        knows_qos,
    };
    let mut names = vec!["slurm.conf".to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(name) = names.pop() {
        let Some(conf) = wanted.get(&name).and_then(|file| parse(file)).filter(|_| seen.insert(name.clone())) else {
            continue;
        };
        names.extend(conf.lines().iter().filter_map(|line| match &line.item {
            Item::Include(file) => Some(file.clone()),
            _ => None,
        }));
        let mut text: String = conf.lines().iter().filter_map(|line| trial.slurm_conf_line(line, slurmdbd)).collect();
        if name == "slurm.conf" {
            text.push_str(&own_lines());
        }
        trial.files.insert(name, text.into_bytes());
    }
    if let Some(conf) = wanted.get("gres.conf").and_then(|file| parse(file)) {
        let in_use = Conf::parse(live_gres.unwrap_or_default()).unwrap_or_default();
        let text: String = conf.lines().iter().filter_map(|line| trial.gres_conf_line(line, &in_use)).collect();
        trial.files.insert("gres.conf".to_owned(), text.into_bytes());
    }
    trial
}

/// What Slurm cannot parse is left to Slurm.
fn parse(file: &[u8]) -> Option<Conf> {
    Conf::parse(std::str::from_utf8(file).ok()?).ok()
}

fn own_lines() -> String {
    format!(
        "SlurmctldHost={TRIAL_HOST}(127.0.0.1)\n\
         StateSaveLocation={TRIAL_FOLDER}/state\n\
         SlurmctldPidFile={TRIAL_FOLDER}/slurmctld.pid\n\
         SlurmdSpoolDir={TRIAL_FOLDER}/%n\n\
         SlurmdPidFile={TRIAL_FOLDER}/%n.pid\n\
         AccountingStorageType=accounting_storage/none\n"
    )
}

impl TrialFiles {
    fn slurm_conf_line(&mut self, line: &Line, slurmdbd: Slurmdbd) -> Option<String> {
        let pairs = match &line.item {
            Item::Empty => return None,
            Item::Include(_) => return Some(format!("{line}\n")),
            Item::Pairs(pairs) => pairs,
        };
        let first = pairs.first()?;
        if has(OWN, first) {
            return None;
        }
        if has(OUTSIDE, first) || slurmdbd.is_used && has(OF_SLURMDBD, first) {
            self.not_tried.insert(first.key().to_owned());
            return None;
        }
        if first.has_key("NodeName") {
            let text = joined(pairs.iter().filter(|pair| !has(ADDRESSES, pair)));
            let is_default = first.value().eq_ignore_ascii_case("DEFAULT");
            return Some(if is_default { format!("{text}\n") } else { format!("{text} NodeAddr=127.0.0.1\n") });
        }
        if first.has_key("PartitionName") && slurmdbd.is_used {
            let is_checked = |pair: &Pair| slurmdbd.knows_qos && has(QOS_KEYS, pair);
            let left_out = pairs.iter().filter(|pair| has(OF_SLURMDBD_IN_PARTITIONS, pair) && !is_checked(pair));
            self.not_tried.extend(left_out.map(|pair| format!("{} of partition {}", pair.key(), first.value())));
            return Some(format!("{}\n", joined(pairs.iter().filter(|pair| !has(OF_SLURMDBD_IN_PARTITIONS, pair)))));
        }
        Some(format!("{}\n", joined(pairs)))
    }

    /// A line that is in use: it needs no device and detects none. Any other: it is for every slurmd, so that it is tried.
    fn gres_conf_line(&mut self, line: &Line, in_use: &Conf) -> Option<String> {
        let Item::Pairs(pairs) = &line.item else { return None };
        if !in_use.lines().iter().any(|other| other.item == line.item) {
            let text = joined(pairs.iter().filter(|pair| !pair.has_key("NodeName")));
            return (!text.is_empty()).then(|| format!("{text}\n"));
        }
        let files = pairs.iter().filter(|pair| pair.has_key("File") || pair.has_key("MultipleFiles"));
        self.devices.extend(files.flat_map(|pair| hostlist::expand(pair.value()).unwrap_or_default()));
        let text = |pair: &Pair| {
            if pair.has_key("AutoDetect") { "AutoDetect=off".to_owned() } else { pair.to_string() }
        };
        Some(format!("{}\n", pairs.iter().map(text).collect::<Vec<_>>().join(" ")))
    }
}

fn has(keys: &[&str], pair: &Pair) -> bool {
    keys.iter().any(|key| pair.has_key(key))
}

fn joined<'a>(pairs: impl IntoIterator<Item = &'a Pair>) -> String {
    pairs.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Files {
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    fn text(trial: &TrialFiles, name: &str) -> String {
        String::from_utf8(trial.files[name].clone()).unwrap()
    }

    fn slurm_conf(lines: &str) -> (String, Vec<String>) {
        let trial = trial_files(&files(&[("slurm.conf", lines)]), None, false);
        let text = text(&trial, "slurm.conf");
        let text = text.strip_suffix(&own_lines()).unwrap().to_owned();
        (text, trial.not_tried.into_iter().collect())
    }

    #[test]
    fn each_line_is_kept_replaced_or_left_out() {
        let table = [
            (
                "ClusterName=c\n# comment\nSchedulerType=sched/builtin",
                "ClusterName=c\nSchedulerType=sched/builtin\n",
                &[][..],
            ),
            ("SlurmctldHost=a(a.b)\nSlurmctldHost=b(b.b)\nSlurmctldAddr=c", "", &[]),
            ("StateSaveLocation=/s\nSlurmdSpoolDir=/d\nSlurmdPidFile=/p\nslurmctldpidfile=/p", "", &[]),
            ("SlurmdLogFile=/l\nSlurmctldLogFile=/l\nSlurmSchedLogFile=/l", "", &[]),
            (
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=db\nAccountingStoragePort=6819",
                "",
                &[],
            ),
            (
                "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageEnforce=limits\nAccountingStorageTRES=gres/gpu",
                "",
                &["AccountingStorageEnforce", "AccountingStorageTRES"],
            ),
            (
                "ResumeProgram=/r\nSuspendProgram=/s\nSuspendTime=9",
                "SuspendTime=9\n",
                &["ResumeProgram", "SuspendProgram"],
            ),
            ("SlurmctldPrimaryOnProg=/on", "", &["SlurmctldPrimaryOnProg"]),
            ("JobCompType=jobcomp/mysql\nJobCompHost=db", "", &["JobCompHost", "JobCompType"]),
            (
                "NodeName=a[1-2] NodeAddr=10.0.0.[1-2] BcastAddr=x CPUs=4",
                "NodeName=a[1-2] CPUs=4 NodeAddr=127.0.0.1\n",
                &[],
            ),
            ("NodeName=b State=CLOUD", "NodeName=b State=CLOUD NodeAddr=127.0.0.1\n", &[]),
            ("AccountingStorageTRES=gres/gpu", "AccountingStorageTRES=gres/gpu\n", &[]),
            ("PartitionName=p Nodes=ALL QOS=q", "PartitionName=p Nodes=ALL QOS=q\n", &[]),
            ("NodeName=DEFAULT CPUs=2 NodeAddr=n", "NodeName=DEFAULT CPUs=2\n", &[]),
            (
                "AccountingStorageType=accounting_storage/slurmdbd\nPartitionName=p Nodes=ALL QOS=q AllowQos=q MaxTime=\"1-0\"",
                "PartitionName=p Nodes=ALL MaxTime=1-0\n",
                &["AllowQos of partition p", "QOS of partition p"],
            ),
            (
                "NodeSet=s Feature=s\nPartitionName=s Nodes=s \\\n  Default=YES",
                "NodeSet=s Feature=s\nPartitionName=s Nodes=s Default=YES\n",
                &[],
            ),
        ];
        for (lines, expected, not_tried) in table {
            let (text, left_out) = slurm_conf(lines);
            assert_eq!(
                (text.as_str(), left_out),
                (expected, not_tried.iter().map(|key| (*key).to_owned()).collect()),
                "{lines}"
            );
        }
    }

    #[test]
    fn qos_that_exist_in_slurmdbd_are_checked_though_not_tried() {
        let lines = "AccountingStorageType=accounting_storage/slurmdbd\n\
                     PartitionName=p Nodes=ALL QOS=q AllowQos=q DenyQos=r TRESBillingWeights=CPU=1";
        let trial = trial_files(&files(&[("slurm.conf", lines)]), None, true);
        assert!(text(&trial, "slurm.conf").starts_with("PartitionName=p Nodes=ALL\n"), "{trial:?}");
        assert_eq!(trial.not_tried.into_iter().collect::<Vec<_>>(), ["TRESBillingWeights of partition p"]);
    }

    #[test]
    fn the_trial_is_its_own_cluster() {
        let trial = trial_files(&files(&[("slurm.conf", "ClusterName=c\n")]), None, false);
        let text = text(&trial, "slurm.conf");
        let conf = Conf::parse(&text).unwrap();
        assert_eq!(conf.records("SlurmctldHost").count(), 1);
        assert_eq!(conf.get("SlurmctldHost"), Some("trial(127.0.0.1)"));
        assert_eq!(conf.get("StateSaveLocation"), Some("/trial/state"));
        assert_eq!(conf.get("AccountingStorageType"), Some("accounting_storage/none"));
        assert!(conf.get("SlurmdSpoolDir").unwrap().starts_with(TRIAL_FOLDER));
    }

    #[test]
    fn included_files_are_treated_alike() {
        let wanted = files(&[
            ("slurm.conf", "Include nodes.conf\n"),
            ("nodes.conf", "NodeName=a NodeAddr=10.0.0.1\nInclude more.conf\nInclude slurm.conf\n"),
            ("more.conf", "ResumeProgram=/r\n"),
            ("other.conf", "ResumeProgram=/r\n"),
        ]);
        let trial = trial_files(&wanted, None, false);
        assert_eq!(
            text(&trial, "nodes.conf"),
            "NodeName=a NodeAddr=127.0.0.1\nInclude more.conf\nInclude slurm.conf\n"
        );
        assert_eq!(
            (text(&trial, "more.conf").as_str(), text(&trial, "other.conf").as_str()),
            ("", "ResumeProgram=/r\n")
        );
    }

    #[test]
    fn what_slurm_cannot_parse_stays_for_slurm_to_say_so() {
        let wanted = files(&[("slurm.conf", "ClusterName=c\nnonsense\n"), ("plugstack.conf", "required x.so\n")]);
        assert_eq!(trial_files(&wanted, None, false).files, wanted);
    }

    #[test]
    fn lines_of_gres_conf_that_are_in_use_need_no_gpu() {
        let live = "AutoDetect=nvml\nNodeName=a-[0-1] Name=gpu File=/dev/nvidia[0-1]\n";
        let wanted = format!("{live}Name=gpu File=/dev/nvidia2\nNodeName=b-0 AutoDetect=rsmi\n");
        let trial = trial_files(&files(&[("gres.conf", &wanted)]), Some(live), false);
        assert_eq!(
            text(&trial, "gres.conf"),
            "AutoDetect=off\nNodeName=a-[0-1] Name=gpu File=/dev/nvidia[0-1]\nName=gpu File=/dev/nvidia2\nAutoDetect=rsmi\n"
        );
        assert_eq!(trial.devices.into_iter().collect::<Vec<_>>(), ["/dev/nvidia0", "/dev/nvidia1"]);
    }
}
