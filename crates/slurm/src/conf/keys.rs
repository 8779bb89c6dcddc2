//! The keys of Slurm's configuration files, by release.
//!
//! A key that Slurm does not know ends the daemon that reads the file, and so does a value that is not of its kind. Of plugins
//! with keys of their own (`acct_gather.conf`, `mpi.conf`) the keys of all plugins are known here.

use crate::version::SlurmVersion;

/// The releases in the table, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Release {
    V24_11,
    V25_05,
    V25_11,
    V26_05,
}

use Release::{V24_11, V25_05, V25_11, V26_05};

impl Release {
    pub(super) const ALL: [Self; 4] = [V24_11, V25_05, V25_11, V26_05];

    /// `None` for a release that is not in the table.
    pub(super) fn of(version: SlurmVersion) -> Option<Self> {
        let is_same = |other: &Self| {
            let other = other.version();
            (other.major, other.minor) == (version.major, version.minor)
        };
        Self::ALL.into_iter().find(is_same)
    }

    pub(super) const fn version(self) -> SlurmVersion {
        match self {
            V24_11 => SlurmVersion::new(24, 11),
            V25_05 => SlurmVersion::new(25, 5),
            V25_11 => SlurmVersion::new(25, 11),
            V26_05 => SlurmVersion::new(26, 5),
        }
    }
}

/// A file, or a kind of line with keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    SlurmConf,
    Node,
    Partition,
    NodeSet,
    DownNodes,
    PowerAction,
    Cgroup,
    Gres,
    GresRecord,
    AcctGather,
    BurstBuffer,
    Helpers,
    HelpersRecord,
    JobContainer,
    JobContainerRecord,
    Mpi,
    Oci,
    Slurmdbd,
    TopologyBlock,
    Block,
    TopologyRing,
    Ring,
    TopologyTree,
    Switch,
}

impl Table {
    /// The keys of a file; `None` for files with another syntax. Those of topology.conf depend on the plugin.
    pub(super) fn of_file(name: &str) -> Option<Self> {
        Some(match name {
            "acct_gather.conf" => Self::AcctGather,
            "burst_buffer.conf" => Self::BurstBuffer,
            "cgroup.conf" => Self::Cgroup,
            "gres.conf" => Self::Gres,
            "helpers.conf" => Self::Helpers,
            "job_container.conf" => Self::JobContainer,
            "mpi.conf" => Self::Mpi,
            "oci.conf" => Self::Oci,
            "slurm.conf" => Self::SlurmConf,
            "slurmdbd.conf" => Self::Slurmdbd,
            _ => return None,
        })
    }

    /// The keys of topology.conf; `None` for plugins that do not read it.
    pub(super) fn of_topology(plugin: &str) -> Option<Self> {
        let name = plugin.strip_prefix("topology/").unwrap_or(plugin);
        match name {
            "block" => Some(Self::TopologyBlock),
            "ring" => Some(Self::TopologyRing),
            "tree" => Some(Self::TopologyTree),
            _ => None,
        }
    }

    /// The keys that may follow this key on its line.
    pub(super) fn record(self, key: &str) -> Option<Self> {
        let found = RECORDS.iter().find(|(table, first, _)| *table == self && first.eq_ignore_ascii_case(key));
        found.map(|(.., record)| *record)
    }

    /// Where its keys belong, for messages.
    fn place(self) -> &'static str {
        match self {
            Self::SlurmConf => "slurm.conf",
            Self::Node => "a NodeName line of slurm.conf",
            Self::Partition => "a PartitionName line of slurm.conf",
            Self::NodeSet => "a NodeSet line of slurm.conf",
            Self::DownNodes => "a DownNodes line of slurm.conf",
            Self::PowerAction => "a PowerAction line of slurm.conf",
            Self::Cgroup => "cgroup.conf",
            Self::Gres | Self::GresRecord => "gres.conf",
            Self::AcctGather => "acct_gather.conf",
            Self::BurstBuffer => "burst_buffer.conf",
            Self::Helpers | Self::HelpersRecord => "helpers.conf",
            Self::JobContainer | Self::JobContainerRecord => "job_container.conf",
            Self::Mpi => "mpi.conf",
            Self::Oci => "oci.conf",
            Self::Slurmdbd => "slurmdbd.conf",
            Self::TopologyBlock | Self::Block | Self::TopologyRing | Self::Ring | Self::TopologyTree | Self::Switch => {
                "topology.conf"
            }
        }
    }

    /// Whether Slurm ignores unknown keys.
    pub(super) fn is_lenient(self) -> bool {
        self == Self::Mpi
    }
}

/// Keys that start a line with more keys: the file, the key, and the keys that follow.
const RECORDS: &[(Table, &str, Table)] = &[
    (Table::SlurmConf, "DownNodes", Table::DownNodes),
    (Table::SlurmConf, "NodeName", Table::Node),
    (Table::SlurmConf, "NodeSet", Table::NodeSet),
    (Table::SlurmConf, "PartitionName", Table::Partition),
    (Table::SlurmConf, "PowerAction", Table::PowerAction),
    (Table::Gres, "Name", Table::GresRecord),
    (Table::Gres, "NodeName", Table::GresRecord),
    (Table::Helpers, "Feature", Table::HelpersRecord),
    (Table::Helpers, "NodeName", Table::HelpersRecord),
    (Table::JobContainer, "BasePath", Table::JobContainerRecord),
    (Table::JobContainer, "NodeName", Table::JobContainerRecord),
    (Table::TopologyBlock, "BlockName", Table::Block),
    (Table::TopologyRing, "RingName", Table::Ring),
    (Table::TopologyTree, "SwitchName", Table::Switch),
];

/// What the value of a key must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anything, as far as the parser of the file is concerned.
    Text,
    Bool,
    Float,
    U16,
    U32,
    U64,
}

impl Kind {
    /// Returns what the value should be, if Slurm could not read it.
    pub(super) fn objection(self, value: &str) -> Option<&'static str> {
        let (is_good, wanted) = match self {
            Self::Text => (true, ""),
            Self::Bool => (is_bool(value), "yes or no"),
            Self::Float => (is_infinite(value) || value.parse::<f64>().is_ok(), "a number"),
            Self::U16 => (number(value, false, u16::MAX.into()), "a number from 0 to 65535"),
            Self::U32 => (number(value, true, u32::MAX.into()), "a number from 0 to 4294967295"),
            Self::U64 => (number(value, true, u64::MAX), "a number"),
        };
        // Slurm reads an empty number as 0.
        let is_good = is_good || (value.is_empty() && self != Self::Bool);
        (!is_good).then_some(wanted)
    }
}

fn is_bool(value: &str) -> bool {
    ["yes", "up", "true", "1", "no", "down", "false", "0"].iter().any(|word| word.eq_ignore_ascii_case(value))
}

fn is_infinite(value: &str) -> bool {
    ["UNLIMITED", "INFINITE"].iter().any(|word| word.eq_ignore_ascii_case(value))
}

/// A number as C writes it: decimal, hexadecimal or octal.
fn number(value: &str, may_have_unit: bool, max: u64) -> bool {
    let text = value.trim_start().strip_prefix('+').unwrap_or(value.trim_start());
    let (text, factor) = match text.strip_suffix(['k', 'K']).filter(|_| may_have_unit) {
        Some(text) => (text, 1024),
        None => (text, 1),
    };
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let parsed = match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => u64::from_str_radix(digits, 16),
        (None, Some(digits)) if !digits.is_empty() => u64::from_str_radix(digits, 8),
        _ => text.parse(),
    };
    is_infinite(value) || parsed.is_ok_and(|number| number.checked_mul(factor).is_some_and(|number| number <= max))
}

/// What Slurm does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Known(Kind),
    /// It logs that the key has no effect.
    Ignored,
    /// It ends, and says that the key was removed.
    Removed,
}

/// Keys of a table with the same fate in the same releases.
struct Group {
    table: Table,
    fate: Fate,
    since: Release,
    /// The first release without them.
    until: Option<Release>,
    names: &'static str,
}

impl Group {
    fn is_in(&self, release: Option<Release>) -> bool {
        release.is_none_or(|release| self.since <= release && self.until.is_none_or(|until| release < until))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.names.split_ascii_whitespace()
    }

    fn has(&self, key: &str) -> bool {
        self.names().any(|name| name.eq_ignore_ascii_case(key))
    }
}

/// What a release does with a key; `None` if it does not know it. Without a release: what any of them does.
pub(super) fn fate(table: Table, key: &str, release: Option<Release>) -> Option<Fate> {
    let found = GROUPS.iter().filter(|group| group.table == table && group.is_in(release) && group.has(key));
    // Of several releases, one that knows it.
    found.map(|group| group.fate).min_by_key(|fate| match fate {
        Fate::Known(_) => 0,
        Fate::Ignored => 1,
        Fate::Removed => 2,
    })
}

/// What a user may have meant with an unknown key, as the end of a sentence.
pub(super) fn hint(table: Table, key: &str, release: Option<Release>) -> Option<String> {
    let elsewhere = GROUPS.iter().find(|group| group.table == table && group.has(key));
    if let Some(Group { fate: Fate::Known(_), since, until, .. }) = elsewhere {
        return Some(match until {
            Some(until) => format!("it was removed in {}", until.version()),
            None => format!("it came with {}", since.version()),
        });
    }
    if let Some(near) = nearest(table, key, release) {
        return Some(format!("did you mean {near}?"));
    }
    let other = GROUPS.iter().find(|group| group.has(key) && group.is_in(release) && group.table != table)?;
    Some(format!("it belongs in {}", other.table.place()))
}

/// No key of Slurm is longer.
const MAX_KEY: usize = 64;

/// The known key that differs least.
fn nearest(table: Table, key: &str, release: Option<Release>) -> Option<&'static str> {
    let is_usable = |group: &&Group| matches!(group.fate, Fate::Known(_)) && group.is_in(release);
    let names = GROUPS.iter().filter(|group| group.table == table).filter(is_usable).flat_map(Group::names);
    nearest_of(key, names)
}

/// The name that differs least from a word, if it is likely to be meant.
pub(super) fn nearest_of<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > MAX_KEY {
        return None;
    }
    let measured = names.map(|name| (distance(word, name), name));
    // A quarter of the characters may be wrong, but two always: `Flie`.
    let limit = (word.len() / 4).max(2);
    measured.min().filter(|(distance, name)| *distance <= limit && *distance < name.len()).map(|(_, name)| name)
}

/// How many characters must be inserted, removed, replaced or swapped with their neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_ascii_lowercase().into_bytes(), b.to_ascii_lowercase().into_bytes());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (row, x) in a.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, y) in b.iter().enumerate() {
            let at = |line: &[usize], index: usize| line.get(index).copied().unwrap_or(MAX_KEY * 2);
            let mut cost =
                (at(&last, column) + usize::from(x != y)).min(at(&last, column + 1) + 1).min(at(&current, column) + 1);
            let is_swapped = row > 0 && column > 0 && a.get(row - 1) == Some(y) && b.get(column - 1) == Some(x);
            if is_swapped {
                cost = cost.min(at(&before_last, column - 1) + 1);
            }
            current.push(cost);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last.last().copied().unwrap_or_default()
}

const fn always(table: Table, kind: Kind, names: &'static str) -> Group {
    Group { table, fate: Fate::Known(kind), since: V24_11, until: None, names }
}

const fn since(table: Table, since: Release, kind: Kind, names: &'static str) -> Group {
    Group { table, fate: Fate::Known(kind), since, until: None, names }
}

const fn until(table: Table, until: Release, kind: Kind, names: &'static str) -> Group {
    Group { table, fate: Fate::Known(kind), since: V24_11, until: Some(until), names }
}

const fn ignored(table: Table, since: Release, names: &'static str) -> Group {
    Group { table, fate: Fate::Ignored, since, until: None, names }
}

const fn removed(table: Table, names: &'static str) -> Group {
    Group { table, fate: Fate::Removed, since: V24_11, until: None, names }
}

// The tables of options in Slurm's sources, read in 24.11.7, 25.05.8, 25.11.7 and 26.05.3.
#[rustfmt::skip]
const GROUPS: &[Group] = &[
    always(Table::SlurmConf, Kind::Bool, "\
        AllowSpecResourcesUsage DisableRootJobs PriorityFavorSmall TrackWCKey UsePAM"),
    always(Table::SlurmConf, Kind::Text, "\
        AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost AccountingStorageHost \
        AccountingStorageParameters AccountingStoragePass AccountingStorageTRES AccountingStorageType \
        AccountingStoreFlags AcctGatherEnergyType AcctGatherFilesystemType AcctGatherInfinibandType \
        AcctGatherInterconnectType AcctGatherProfileType AuthAltParameters AuthAltTypes AuthInfo AuthType BackupAddr \
        BackupController BcastExclude BcastParameters BurstBufferParameters BurstBufferType CertmgrParameters \
        CertmgrType CliFilterPlugins ClusterName CommunicationParameters ControlAddr ControlMachine CpuFreqDef \
        CpuFreqGovernors CredType CryptoType DataParserParameters DebugFlags DependencyParameters DownNodes \
        EnforcePartLimits Epilog EpilogSlurmctld FederationParameters GpuFreqDef GresTypes HashPlugin \
        HealthCheckNodeState HealthCheckProgram InteractiveStepOptions JobAcctGatherFrequency JobAcctGatherParams \
        JobAcctGatherType JobCompHost JobCompLoc JobCompParams JobCompPass JobCompType JobCompUser JobContainerType \
        JobSubmitPlugins LaunchParameters LaunchType Licenses LogTimeFormat MailDomain MailProg MCSParameters \
        MCSPlugin MpiDefault MpiParams NodeFeaturesPlugins NodeName NodeSet PartitionName PluginDir PlugStackConfig \
        PreemptExemptTime PreemptMode PreemptParameters PreemptType PrEpParameters PrEpPlugins PriorityCalcPeriod \
        PriorityDecayHalfLife PriorityFlags PriorityMaxAge PriorityParameters PrioritySiteFactorParameters \
        PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod PriorityWeightTRES PrivateData ProctrackType \
        Prolog PrologFlags PrologSlurmctld PropagateResourceLimits PropagateResourceLimitsExcept RebootProgram \
        ReconfigFlags RequeueExit RequeueExitHold ResumeFailProgram ResumeProgram ResvEpilog ResvProlog RoutePlugin \
        SbcastParameters SchedulerParameters SchedulerType ScronParameters SelectType SelectTypeParameters \
        SlurmctldAddr SlurmctldDebug SlurmctldHost SlurmctldLogFile SlurmctldParameters SlurmctldPidFile \
        SlurmctldPort SlurmctldPrimaryOffProg SlurmctldPrimaryOnProg SlurmctldSyslogDebug SlurmdDebug SlurmdLogFile \
        SlurmdParameters SlurmdPidFile SlurmdSpoolDir SlurmdSyslogDebug SlurmdUser SlurmSchedLogFile SlurmUser \
        SrunEpilog SrunPortRange SrunProlog StateSaveLocation SuspendExcNodes SuspendExcParts SuspendExcStates \
        SuspendProgram SuspendTime SwitchParameters SwitchType TaskEpilog TaskPlugin TaskPluginParam TaskProlog \
        TLSParameters TLSType TmpFS TopologyParam TopologyPlugin UnkillableStepProgram X11Parameters"),
    always(Table::SlurmConf, Kind::U16, "\
        AccountingStoragePort AcctGatherNodeFreq BatchStartTimeout CompleteWait EioTimeout FairShareDampeningFactor \
        GroupUpdateForce GroupUpdateTime HealthCheckInterval InactiveLimit JobFileAppend JobRequeue KillOnBadExit \
        KillWait MaxTasksPerNode MessageTimeout OverTimeLimit PrologEpilogTimeout PropagatePrioProcess ResumeRate \
        ResumeTimeout ResvOverRun ReturnToService SchedulerTimeSlice SlurmctldTimeout SlurmdTimeout \
        SlurmSchedLogLevel SuspendRate SuspendTimeout TCPTimeout TreeWidth UnkillableStepTimeout VSizeFactor \
        WaitTime"),
    always(Table::SlurmConf, Kind::U32, "\
        EpilogMsgTime FirstJobId JobCompPort KeepAliveTime MaxArraySize MaxBatchRequeue MaxDBDMsgs MaxJobCount \
        MaxJobId MaxNodeCount MaxStepCount MinJobAge PriorityWeightAge PriorityWeightAssoc PriorityWeightFairshare \
        PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS SlurmdPort"),
    always(Table::SlurmConf, Kind::U64, "\
        DefCPUPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode MaxMemPerCPU MaxMemPerNode"),
    until(Table::SlurmConf, V25_05, Kind::U16, "GetEnvTimeout"),
    until(Table::SlurmConf, V25_11, Kind::Text, "AccountingStorageUser"),
    since(Table::SlurmConf, V25_05, Kind::Text, "CertgenParameters CertgenType"),
    since(Table::SlurmConf, V25_05, Kind::U16, "EpilogTimeout PrologTimeout"),
    since(Table::SlurmConf, V25_11, Kind::Text, "\
        CliFilterParameters HttpParserType JobCompPassScript MetricsType NamespaceType UrlParserType"),
    since(Table::SlurmConf, V26_05, Kind::Text, "\
        LicenseParameters MetricsAuthUsers MetricsParameters PowerAction SlurmctldHttpAuthParameters \
        SlurmdHttpAuthParameters"),
    since(Table::SlurmConf, V26_05, Kind::U16, "HealthCheckTimeout"),
    ignored(Table::SlurmConf, V24_11, "\
        CoreSpecPlugin ExtSensorsFreq ExtSensorsType FastSchedule JobCredentialPrivateKey \
        JobCredentialPublicCertificate PowerParameters PowerPlugin"),
    ignored(Table::SlurmConf, V25_05, "GetEnvTimeout"),
    ignored(Table::SlurmConf, V25_11, "AccountingStorageUser"),
    removed(Table::SlurmConf, "AccountingStorageLoc AccountingStoreJobComment FrontendName SallocDefaultCommand"),
    always(Table::Node, Kind::Text, "\
        BcastAddr CpuBind CPUSpecList Feature Features Gres NodeAddr NodeHostname Port Reason State TRESWeights"),
    always(Table::Node, Kind::U16, "\
        Boards CoreSpecCount CoresPerSocket CPUs Procs RestrictedCoresPerGPU Sockets SocketsPerBoard ThreadsPerCore"),
    always(Table::Node, Kind::U32, "TmpDisk Weight"),
    always(Table::Node, Kind::U64, "MemSpecLimit RealMemory"),
    since(Table::Node, V25_05, Kind::Text, "Topology"),
    since(Table::Node, V25_11, Kind::Text, "GresConf Parameters"),
    since(Table::Node, V26_05, Kind::Text, "SuspendTime"),
    always(Table::Partition, Kind::Bool, "\
        Default DisableRootJobs ExclusiveTopo ExclusiveUser Hidden LLN PowerDownOnIdle ReqResv RootOnly"),
    always(Table::Partition, Kind::Text, "\
        AllocNodes AllowAccounts AllowGroups AllowQos Alternate CpuBind DefaultTime DenyAccounts DenyQos MaxTime \
        Nodes OverSubscribe OverTimeLimit PreemptMode QOS SelectTypeParameters Shared State SuspendTime \
        TRESBillingWeights"),
    always(Table::Partition, Kind::U16, "Priority PriorityJobFactor PriorityTier ResumeTimeout SuspendTimeout"),
    always(Table::Partition, Kind::U32, "GraceTime MaxCPUsPerNode MaxCPUsPerSocket MaxNodes MinNodes"),
    always(Table::Partition, Kind::U64, "\
        DefCPUPerGPU DefMemPerCPU DefMemPerGPU DefMemPerNode MaxMemPerCPU MaxMemPerNode"),
    since(Table::Partition, V25_05, Kind::Text, "Topology"),
    since(Table::Partition, V26_05, Kind::Text, "Exclusive"),
    always(Table::NodeSet, Kind::Text, "Feature Nodes"),
    always(Table::DownNodes, Kind::Text, "Reason State"),
    since(Table::PowerAction, V26_05, Kind::Text, "Location Program"),
    always(Table::Cgroup, Kind::Bool, "\
        ConstrainCores ConstrainDevices ConstrainRAMSpace ConstrainSwapSpace EnableControllers IgnoreSystemd \
        IgnoreSystemdOnFailure MemoryLimitEnforcement SignalChildrenProcesses"),
    always(Table::Cgroup, Kind::Float, "\
        AllowedRAMSpace AllowedSwapSpace MaxRAMPercent MaxSwapPercent MemoryLimitThreshold"),
    always(Table::Cgroup, Kind::Text, "AllowedDevicesFile CgroupMountpoint CgroupPlugin"),
    always(Table::Cgroup, Kind::U64, "MemorySwappiness MinRAMSpace SystemdTimeout"),
    since(Table::Cgroup, V25_05, Kind::Text, "EnableExtraControllers"),
    since(Table::Cgroup, V25_11, Kind::Text, "CgroupSlice"),
    since(Table::Cgroup, V26_05, Kind::Bool, "CgroupJobIdPaths"),
    ignored(Table::Cgroup, V24_11, "CgroupAutomount"),
    removed(Table::Cgroup, "CgroupReleaseAgentDir"),
    always(Table::Gres, Kind::Text, "AutoDetect Name NodeName"),
    always(Table::GresRecord, Kind::Text, "\
        AutoDetect Cores Count CPUs File Files Flags Link Links MultipleFiles Name Type"),
    always(Table::AcctGather, Kind::Bool, "\
        EnergyIPMIAssumeBmcOwner EnergyIPMIBridgeSensors EnergyIPMICalcAdjustment EnergyIPMIDiscreteReading \
        EnergyIPMIEntitySensorNames EnergyIPMIIgnoreNonInterpretableSensors EnergyIPMIIgnoreScanningDisabled \
        EnergyIPMIInterpretOemData EnergyIPMIRereadSdrCache EnergyIPMISharedSensors EnergyXCCFake"),
    always(Table::AcctGather, Kind::Text, "\
        EnergyIPMIDriverDevice EnergyIPMIk_g EnergyIPMIPassword EnergyIPMIPowerSensors EnergyIPMIUsername \
        EnergyIPMIVariable ProfileHDF5Default ProfileHDF5Dir ProfileInfluxDBDatabase ProfileInfluxDBDefault \
        ProfileInfluxDBHost ProfileInfluxDBPass ProfileInfluxDBRTPolicy ProfileInfluxDBUser SysfsInterfaces"),
    always(Table::AcctGather, Kind::U32, "\
        EnergyIPMIAuthenticationType EnergyIPMICipherSuiteId EnergyIPMIDisableAutoProbe EnergyIPMIDriverAddress \
        EnergyIPMIDriverType EnergyIPMIFrequency EnergyIPMIk_g_len EnergyIPMIPrivilegeLevel \
        EnergyIPMIProtocolVersion EnergyIPMIRegisterSpacing EnergyIPMIRetransmissionTimeout EnergyIPMISessionTimeout \
        EnergyIPMITimeout EnergyIPMIWorkaroundFlags InfinibandOFEDPort InterconnectOFEDPort ProfileInfluxDBTimeout"),
    since(Table::AcctGather, V25_11, Kind::U32, "ProfileInfluxDBFrequency"),
    since(Table::AcctGather, V26_05, Kind::Text, "ProfileInfluxDBExtraTags ProfileInfluxDBFlags"),
    always(Table::BurstBuffer, Kind::Text, "\
        AllowUsers CreateBuffer DefaultPool DenyUsers DestroyBuffer Directive Flags GetSysState GetSysStatus \
        Granularity Pools StartStageIn StartStageOut StopStageIn StopStageOut"),
    always(Table::BurstBuffer, Kind::U32, "OtherTimeout PollInterval StageInTimeout StageOutTimeout ValidateTimeout"),
    always(Table::Helpers, Kind::Text, "AllowUserBoot Feature MutuallyExclusive NodeName"),
    always(Table::Helpers, Kind::U32, "BootTime ExecTime"),
    always(Table::HelpersRecord, Kind::Text, "Feature Flags Helper"),
    always(Table::JobContainer, Kind::Bool, "AutoBasePath EntireStepInNS Shared"),
    always(Table::JobContainer, Kind::Text, "BasePath CloneNSEpilog CloneNSScript Dirs NodeName"),
    always(Table::JobContainer, Kind::U32, "CloneNSEpilog_Wait CloneNSScript_Wait"),
    always(Table::JobContainerRecord, Kind::Bool, "AutoBasePath EntireStepInNS Shared"),
    always(Table::JobContainerRecord, Kind::Text, "BasePath CloneNSEpilog CloneNSScript Dirs InitScript"),
    always(Table::JobContainerRecord, Kind::U32, "CloneNSEpilog_Wait CloneNSScript_Wait"),
    always(Table::Mpi, Kind::Bool, "\
        PMIxDirectConn PMIxDirectConnEarly PMIxDirectConnUCX PMIxDirectSameArch PMIxFenceBarrier"),
    always(Table::Mpi, Kind::Text, "PMIxCliTmpDirBase PMIxCollFence PMIxEnv PMIxNetDevicesUCX PMIxTlsUCX"),
    always(Table::Mpi, Kind::U32, "PMIxDebug PMIxTimeout"),
    since(Table::Mpi, V25_11, Kind::Bool, "PMIxShareServerTopology"),
    always(Table::Oci, Kind::Bool, "DisableCleanup IgnoreFileConfigJson"),
    always(Table::Oci, Kind::Text, "\
        ContainerPath CreateEnvFile DebugFlags DisableHooks EnvExclude FileDebug MountSpoolDir RunTimeCreate \
        RunTimeDelete RunTimeEnvExclude RunTimeKill RunTimeQuery RunTimeRun RunTimeStart SrunArgs SrunPath \
        StdIODebug SyslogDebug"),
    always(Table::Slurmdbd, Kind::Bool, "\
        AllowNoDefAcct AllResourcesAbsolute ArchiveEvents ArchiveJobs ArchiveResvs ArchiveSteps ArchiveSuspend \
        ArchiveTXN ArchiveUsage DisableCoordDBD TrackSlurmctldDown TrackWCKey"),
    always(Table::Slurmdbd, Kind::Text, "\
        ArchiveDir ArchiveScript AuthAltParameters AuthAltTypes AuthInfo AuthType CommunicationParameters DbdAddr \
        DbdBackupHost DbdHost DebugFlags DebugLevel DebugLevelSyslog DefaultQOS HashPlugin LogFile LogTimeFormat \
        MaxQueryTimeRange Parameters PidFile PluginDir PrivateData PurgeEventAfter PurgeJobAfter PurgeResvAfter \
        PurgeStepAfter PurgeSuspendAfter PurgeTXNAfter PurgeUsageAfter SlurmUser StorageBackupHost StorageHost \
        StorageLoc StorageParameters StoragePass StorageType StorageUser TLSParameters TLSType"),
    always(Table::Slurmdbd, Kind::U16, "CommitDelay DbdPort MessageTimeout StoragePort TCPTimeout"),
    always(Table::Slurmdbd, Kind::U32, "\
        JobPurge PurgeEventMonths PurgeJobMonths PurgeStepMonths PurgeSuspendMonths PurgeTXNMonths PurgeUsageMonths \
        StepPurge"),
    since(Table::Slurmdbd, V25_11, Kind::Bool, "DisableArchiveCommands"),
    since(Table::Slurmdbd, V25_11, Kind::Text, "StoragePassScript"),
    since(Table::Slurmdbd, V25_11, Kind::U32, "MaxPurgeLimit"),
    since(Table::Slurmdbd, V26_05, Kind::Bool, "ArchiveJobEnv ArchiveJobScript DisableRollups"),
    since(Table::Slurmdbd, V26_05, Kind::Text, "PurgeJobEnvAfter PurgeJobScriptAfter"),
    always(Table::TopologyBlock, Kind::Text, "BlockName BlockSizes"),
    always(Table::Block, Kind::Text, "Nodes"),
    since(Table::TopologyRing, V26_05, Kind::Text, "RingName"),
    since(Table::Ring, V26_05, Kind::Text, "Nodes"),
    always(Table::TopologyTree, Kind::Text, "SwitchName"),
    always(Table::Switch, Kind::Text, "Nodes Switches"),
    always(Table::Switch, Kind::U32, "LinkSpeed"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_key_that_was_meant() {
        for (table, key, release, expected) in [
            (Table::SlurmConf, "SchedulerParamters", V26_05, Some("did you mean SchedulerParameters?")),
            (Table::SlurmConf, "slurmctldprameters", V24_11, Some("did you mean SlurmctldParameters?")),
            (Table::GresRecord, "Flie", V24_11, Some("did you mean File?")),
            (Table::Partition, "MaxTiem", V26_05, Some("did you mean MaxTime?")),
            (Table::SlurmConf, "MetricsType", V24_11, Some("it came with 25.11")),
            (Table::SlurmConf, "MaxTime", V26_05, Some("it belongs in a PartitionName line of slurm.conf")),
            (Table::SlurmConf, "ConstrainRAMSpace", V26_05, Some("it belongs in cgroup.conf")),
            (Table::SlurmConf, "Xyzzy", V26_05, None),
        ] {
            assert_eq!(hint(table, key, Some(release)).as_deref(), expected, "{key}");
        }
    }

    #[test]
    fn fates_follow_the_release() {
        let of = |key: &str, release| fate(Table::SlurmConf, key, release);
        for release in Release::ALL {
            assert_eq!(of("slurmctldport", Some(release)), Some(Fate::Known(Kind::Text)));
            assert_eq!(of("PowerPlugin", Some(release)), Some(Fate::Ignored));
            assert_eq!(of("SallocDefaultCommand", Some(release)), Some(Fate::Removed));
            assert_eq!(of("PrologTimeout", Some(release)).is_some(), release >= V25_05);
        }
        assert_eq!(of("GetEnvTimeout", Some(V24_11)), Some(Fate::Known(Kind::U16)));
        assert_eq!(of("GetEnvTimeout", Some(V25_05)), Some(Fate::Ignored));
        assert_eq!(of("GetEnvTimeout", None), Some(Fate::Known(Kind::U16)), "some release knows it");
        assert_eq!(of("SchedulerParamters", None), None);
    }

    #[test]
    fn values_are_read_as_in_c() {
        for (kind, good, bad) in [
            (
                Kind::U16,
                &["0", "65535", "0x10", "017", "unlimited", "+7", ""][..],
                &["65536", "-1", "1k", "ten", "1 2"][..],
            ),
            (Kind::U32, &["4294967295", "4k", "INFINITE", "0"], &["4294967296", "4194304k", "4M", "1.5"]),
            (Kind::U64, &["18446744073709551615", "1K"], &["18446744073709551616", "x"]),
            (Kind::Bool, &["YES", "no", "up", "Down", "1", "false"], &["", "on", "2"]),
            (Kind::Float, &["99.5", "100", "unlimited"], &["50%"]),
            (Kind::Text, &["", "anything"], &[]),
        ] {
            assert!(good.iter().all(|value| kind.objection(value).is_none()), "{kind:?} {good:?}");
            assert!(bad.iter().all(|value| kind.objection(value).is_some()), "{kind:?} {bad:?}");
        }
    }

    #[test]
    fn no_key_is_in_a_table_twice_for_one_release() {
        for release in Release::ALL {
            for group in GROUPS.iter().filter(|group| group.is_in(Some(release))) {
                for name in group.names() {
                    let same = GROUPS.iter().filter(|other| other.table == group.table && other.is_in(Some(release)));
                    assert_eq!(same.filter(|other| other.has(name)).count(), 1, "{name} in {:?}", group.table);
                }
            }
        }
        let starts = RECORDS.iter().all(|(table, first, _)| fate(*table, first, None).is_some());
        assert!(starts, "records start with known keys");
    }
}
