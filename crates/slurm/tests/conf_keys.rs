//! What each release of Slurm accepts in its configuration files.

use slurm::{
    conf::{Severity, check, check_node, check_partition},
    version::SlurmVersion,
};

const RELEASES: [&str; 4] = ["24.11", "25.05", "25.11", "26.05"];

fn version(text: &str) -> Option<SlurmVersion> {
    text.parse().ok()
}

/// What is wrong, with `warning: ` where it ends nothing.
fn findings(file: &str, text: &str, release: &str) -> Vec<String> {
    let text_of = |found: slurm::conf::Finding| match found.severity {
        Severity::Error => found.text,
        Severity::Warning => format!("warning: {}", found.text),
    };
    check(file, text, version(release)).into_iter().map(text_of).collect()
}

#[test]
fn a_mistyped_key_is_an_error_that_says_what_was_meant() {
    for (file, text, release, expected) in [
        (
            "slurm.conf",
            "\n# head\nSchedulerParamters=defer",
            "26.05",
            "line 3: SchedulerParamters is not known to Slurm 26.05; did you mean SchedulerParameters?",
        ),
        (
            "slurm.conf",
            "NodeName=n1 CPUs=4 \\\n RealMemroy=1",
            "26.05.3",
            "line 1: RealMemroy is not known to Slurm 26.05; did you mean RealMemory?",
        ),
        (
            "slurm.conf",
            "PartitionName=p Nodes=ALL MaxTIem=1",
            "24.11",
            "line 1: MaxTIem is not known to Slurm 24.11; did you mean MaxTime?",
        ),
        (
            "slurm.conf",
            "MetricsType=metrics/openmetrics",
            "25.05.8",
            "line 1: MetricsType is not known to Slurm 25.05; it came with 25.11",
        ),
        (
            "slurm.conf",
            "ConstrainCores=yes",
            "26.05",
            "line 1: ConstrainCores is not known to Slurm 26.05; it belongs in cgroup.conf",
        ),
        ("slurm.conf", "Foo=1", "26.05", "line 1: Foo is not known to Slurm 26.05"),
        (
            "gres.conf",
            "Name=gpu Flie=/dev/nope",
            "24.11",
            "line 1: Flie is not known to Slurm 24.11; did you mean File?",
        ),
        (
            "cgroup.conf",
            "CgroupReleaseAgentDir=/x",
            "24.11",
            "line 1: CgroupReleaseAgentDir was removed, and Slurm ends with it: remove it",
        ),
        (
            "slurm.conf",
            "GetEnvTimeout=5",
            "25.05",
            "warning: line 1: Slurm ignores GetEnvTimeout, which has no effect any more: remove it",
        ),
        (
            "mpi.conf",
            "PMIxDebugg=1",
            "26.05",
            "warning: line 1: PMIxDebugg is not known to Slurm 26.05; did you mean PMIxDebug?",
        ),
        (
            "slurm.conf",
            "MaxJobCount=ten",
            "26.05",
            "line 1: the value of MaxJobCount must be a number from 0 to 4294967295",
        ),
        ("slurm.conf", "NodeName=n1 CPUs=65536", "26.05", "line 1: the value of CPUs must be a number from 0 to 65535"),
        ("cgroup.conf", "ConstrainCores=on", "26.05", "line 1: the value of ConstrainCores must be yes or no"),
        (
            "slurm.conf",
            "ReturnToService=2 MaxJobCount=7",
            "26.05",
            "line 1: the text after the value of ReturnToService is not Key=Value: quote values that contain spaces",
        ),
        ("slurm.conf", "prose", "26.05", "line 1 is not Key=Value: correct it, or comment it out with #"),
    ] {
        assert_eq!(findings(file, text, release), [expected]);
    }
    let all = findings("slurm.conf", "Foo1=\nSlurmctldDebug=info\nMaxJobCount=x\n", "26.05");
    assert_eq!(all.len(), 2, "all lines are reported at once: {all:?}");
}

#[test]
fn an_unknown_release_gives_warnings_only() {
    let text = "SchedulerParamters=defer\nMaxJobCount=ten\nMetricsType=x\nGetEnvTimeout=1\nSallocDefaultCommand=x\n";
    for version in [None, version("24.05"), version("27.05.1")] {
        let found = check("slurm.conf", text, version);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().all(|found| found.severity == Severity::Warning), "{found:?}");
        assert!(found[0].text.contains("Slurm 24.11 to 26.05, and the "), "{found:?}");
        assert!(found[0].text.ends_with("; did you mean SchedulerParameters?"), "{found:?}");
    }
}

#[test]
fn options_of_partitions_and_nodes() {
    assert_eq!(check_partition("MaxTime=UNLIMITED Default=YES OverSubscribe=EXCLUSIVE", version("24.11")), []);
    assert_eq!(check_node("Weight=10 Gres=gpu:8 Features=a,b RealMemory=1024", version("24.11")), []);
    let [found] = &check_partition("Defualt=YES", version("24.11"))[..] else { panic!() };
    assert_eq!(found.text, "Defualt is not known to Slurm 24.11; did you mean Default?");
    let [found] = &check_node("Weigth=1", version("26.05"))[..] else { panic!() };
    assert!(found.is_error() && found.text.ends_with("did you mean Weight?"), "{found:?}");
    let [found] = &check_node("Topology=default:sw1", version("24.11"))[..] else { panic!() };
    assert!(found.text.ends_with("it came with 25.05"), "{found:?}");
    assert!(check_node("no equals sign", None)[0].is_error());
}

#[test]
fn other_files_pass() {
    for name in ["topology.yaml", "job_submit.lua", "plugstack.conf", "prolog.sh"] {
        assert_eq!(check(name, "A=1\n- b", version("26.05")), [], "{name}");
    }
}

#[test]
fn configurations_of_real_clusters_pass() {
    let common = "\
        ClusterName=prod\nSlurmctldHost=ctl1(10.0.0.1)\nSlurmctldHost=ctl2\nSlurmctldPort=6817-6820\n\
        authtype=auth/slurm\nProctrackType=proctrack/cgroup\nTaskPlugin=task/cgroup,task/affinity\n\
        SelectType=select/cons_tres\nSelectTypeParameters=CR_Core_Memory\nSchedulerParameters=bf_continue,defer\n\
        SchedulerParameters+=bf_window=2880\nMaxArraySize=100001\nMaxJobCount=10k\nInactiveLimit=0\nTreeWidth=128\n\
        PriorityType=priority/multifactor\nPriorityDecayHalfLife=7-0\nAccountingStorageTRES=gres/gpu,gres/gpu:h100\n\
        JobAcctGatherFrequency=task=30,energy=60\nPrologFlags=Contain,Alloc,X11\nMaxMemPerNode=UNLIMITED\n\
        Prolog=/opt/site/prolog.d/*\nEpilog=epilog.sh\nHealthCheckProgram=/usr/sbin/nhc\nHealthCheckNodeState=IDLE,CYCLE\n\
        GresTypes=gpu\nNodeName=DEFAULT Sockets=2 CoresPerSocket=64 ThreadsPerCore=1 State=UNKNOWN\n\
        NodeName=gpu[001-128] Gres=gpu:h100:8(S:0-1) RealMemory=2000000 MemSpecLimit=16000 Feature=h100,ib Weight=100\n\
        NodeSet=big Nodes=gpu[001-064]\nPartitionName=DEFAULT MaxTime=2-00:00:00 DefMemPerCPU=4000\n\
        PartitionName=main Nodes=big Default=YES QOS=main TRESBillingWeights=\"CPU=1.0,Mem=0.25G,GRES/gpu=8\"\n\
        DownNodes=gpu007 State=DOWN Reason=\"bad disk\"\nInclude more.conf\n";
    let new = "MetricsType=metrics/openmetrics\nNamespaceType=namespace/linux\nPrologTimeout=300\n\
               PartitionName=excl Nodes=ALL Exclusive=TOPO Topology=block\nPowerAction=cycle Program=/opt/cycle Location=controller\n";
    for release in RELEASES {
        assert_eq!(findings("slurm.conf", common, release), [""; 0], "{release}");
        for (file, text) in [
            (
                "cgroup.conf",
                "CgroupPlugin=autodetect\nIgnoreSystemd=yes\nConstrainRAMSpace=yes\nAllowedRAMSpace=98.5\n",
            ),
            (
                "gres.conf",
                "AutoDetect=nvml\nNodeName=gpu[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-7] Cores=0-63\nName=tmp Count=1T Flags=CountOnly\n",
            ),
            ("oci.conf", "IgnoreFileConfigJson=true\nRunTimeQuery=\"runc state %n\"\nSrunArgs=a\nSrunArgs=b\n"),
            (
                "job_container.conf",
                "AutoBasePath=true\nBasePath=/scratch Dirs=/tmp,/dev/shm\nNodeName=n[1-2] BasePath=/nvme Shared=true\n",
            ),
            (
                "helpers.conf",
                "Feature=mig=on,mig=off Helper=/opt/mig Flags=rebootless\nMutuallyExclusive=mig=on,mig=off\nBootTime=600\n",
            ),
            ("acct_gather.conf", "EnergyIPMIFrequency=10\nProfileHDF5Dir=/profile\nInterconnectOFEDPort=1\n"),
            (
                "slurmdbd.conf",
                "DbdHost=db\nStorageType=accounting_storage/mysql\nStoragePass=\"a b\"\nPurgeJobAfter=12months\n",
            ),
            ("burst_buffer.conf", "Directive=BB_LUA\nPollInterval=30\n"),
            ("mpi.conf", "PMIxDirectConn=true\nPMIxTimeout=300\n"),
        ] {
            assert_eq!(findings(file, text, release), [""; 0], "{file} {release}");
        }
    }
    assert_eq!(findings("slurm.conf", new, "26.05"), [""; 0]);
    assert_eq!(findings("slurm.conf", new, "24.11").len(), 6);
}

#[test]
fn the_keys_of_the_manual_pages_pass() {
    let mut count = 0;
    for (file, first, releases, keys) in MANUAL {
        for release in ["24.11", "26.05"].iter().filter(|release| *releases == "both" || releases == *release) {
            for key in keys.split_ascii_whitespace() {
                // Every kind of value can be 1.
                let text = if first.is_empty() { format!("{key}=1") } else { format!("{first}=1 {key}=1") };
                assert_eq!(findings(file, &text, release), [""; 0], "{text} in {file} of {release}");
                count += 1;
            }
        }
    }
    assert!(count > 800, "{count}");
}

/// The keys that the manual pages of 24.11 and 26.05 list: the file, the key that starts the line, the release.
#[rustfmt::skip]
const MANUAL: &[(&str, &str, &str, &str)] = &[
    ("slurm.conf", "", "both", "\
        AccountingStorageBackupHost AccountingStorageEnforce AccountingStorageExternalHost AccountingStorageHost \
        AccountingStorageParameters AccountingStoragePass AccountingStoragePort AccountingStorageTRES \
        AccountingStorageType AccountingStoreFlags AcctGatherEnergyType AcctGatherFilesystemType \
        AcctGatherInterconnectType AcctGatherNodeFreq AcctGatherProfileType AllowSpecResourcesUsage \
        AuthAltParameters AuthAltTypes AuthInfo AuthType BatchStartTimeout BcastExclude BcastParameters \
        BurstBufferType CliFilterPlugins ClusterName CommunicationParameters CompleteWait CpuFreqDef \
        CpuFreqGovernors CredType DataParserParameters DebugFlags DefCpuPerGPU DefMemPerCPU DefMemPerGPU \
        DefMemPerNode DependencyParameters DisableRootJobs EioTimeout EnforcePartLimits Epilog EpilogMsgTime \
        EpilogSlurmctld FairShareDampeningFactor FederationParameters FirstJobId GpuFreqDef GresTypes \
        GroupUpdateForce GroupUpdateTime HashPlugin HealthCheckInterval HealthCheckNodeState HealthCheckProgram \
        InactiveLimit InteractiveStepOptions JobAcctGatherFrequency JobAcctGatherParams JobAcctGatherType \
        JobCompHost JobCompLoc JobCompParams JobCompPass JobCompPort JobCompType JobCompUser JobFileAppend \
        JobRequeue JobSubmitPlugins KillOnBadExit KillWait LaunchParameters Licenses LogTimeFormat MailDomain \
        MailProg MaxArraySize MaxBatchRequeue MaxDBDMsgs MaxJobCount MaxJobId MaxMemPerCPU MaxMemPerNode \
        MaxNodeCount MaxStepCount MaxTasksPerNode MCSParameters MCSPlugin MessageTimeout MinJobAge MpiDefault \
        MpiParams NodeFeaturesPlugins OverTimeLimit PluginDir PlugStackConfig PreemptExemptTime PreemptMode \
        PreemptParameters PreemptType PrEpParameters PrEpPlugins PriorityCalcPeriod PriorityDecayHalfLife \
        PriorityFavorSmall PriorityFlags PriorityMaxAge PriorityParameters PrioritySiteFactorParameters \
        PrioritySiteFactorPlugin PriorityType PriorityUsageResetPeriod PriorityWeightAge PriorityWeightAssoc \
        PriorityWeightFairshare PriorityWeightJobSize PriorityWeightPartition PriorityWeightQOS PriorityWeightTRES \
        PrivateData ProctrackType Prolog PrologEpilogTimeout PrologFlags PrologSlurmctld PropagatePrioProcess \
        PropagateResourceLimits PropagateResourceLimitsExcept RebootProgram ReconfigFlags RequeueExit \
        RequeueExitHold ResumeFailProgram ResumeProgram ResumeRate ResumeTimeout ResvEpilog ResvOverRun ResvProlog \
        ReturnToService SchedulerParameters SchedulerTimeSlice SchedulerType ScronParameters SelectType \
        SelectTypeParameters SlurmctldAddr SlurmctldDebug SlurmctldHost SlurmctldLogFile SlurmctldParameters \
        SlurmctldPidFile SlurmctldPort SlurmctldPrimaryOffProg SlurmctldPrimaryOnProg SlurmctldSyslogDebug \
        SlurmctldTimeout SlurmdDebug SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdPort SlurmdSpoolDir \
        SlurmdSyslogDebug SlurmdTimeout SlurmdUser SlurmSchedLogFile SlurmSchedLogLevel SlurmUser SrunEpilog \
        SrunPortRange SrunProlog StateSaveLocation SuspendExcNodes SuspendExcParts SuspendExcStates SuspendProgram \
        SuspendRate SuspendTime SuspendTimeout SwitchParameters SwitchType TaskEpilog TaskPlugin TaskPluginParam \
        TaskProlog TCPTimeout TmpFS TopologyParam TopologyPlugin TrackWCKey TreeWidth UnkillableStepProgram \
        UnkillableStepTimeout UsePAM VSizeFactor WaitTime X11Parameters"),
    ("slurm.conf", "", "24.11", "\
        AccountingStorageUser BackupAddr BackupController ControlAddr ControlMachine GetEnvTimeout \
        JobContainerType"),
    ("slurm.conf", "", "26.05", "\
        CertgenParameters CertgenType CertmgrParameters CertmgrType CliFilterParameters EpilogTimeout \
        HealthCheckTimeout HttpParserType JobCompPassScript LicenseParameters MetricsAuthUsers MetricsParameters \
        MetricsType NamespaceType PrologTimeout SlurmctldHttpAuthParameters SlurmdHttpAuthParameters"),
    ("slurm.conf", "NodeName", "both", "\
        BcastAddr Boards CoreSpecCount CoresPerSocket CpuBind CPUs CpuSpecList Features Gres MemSpecLimit NodeAddr \
        NodeHostname Port Procs RealMemory Reason RestrictedCoresPerGPU Sockets SocketsPerBoard State \
        ThreadsPerCore TmpDisk Weight"),
    ("slurm.conf", "NodeName", "26.05", "\
        Parameters SuspendTime Topology"),
    ("slurm.conf", "PartitionName", "both", "\
        AllocNodes AllowAccounts AllowGroups AllowQos Alternate CpuBind Default DefaultTime DefCpuPerGPU \
        DefMemPerCPU DefMemPerGPU DefMemPerNode DenyAccounts DenyQos DisableRootJobs GraceTime Hidden LLN \
        MaxCPUsPerNode MaxCPUsPerSocket MaxMemPerCPU MaxMemPerNode MaxNodes MaxTime MinNodes Nodes OverSubscribe \
        OverTimeLimit PowerDownOnIdle PreemptMode PriorityJobFactor PriorityTier QOS ReqResv ResumeTimeout \
        RootOnly SelectTypeParameters State SuspendTime SuspendTimeout TRESBillingWeights"),
    ("slurm.conf", "PartitionName", "24.11", "\
        ExclusiveTopo ExclusiveUser Shared"),
    ("slurm.conf", "PartitionName", "26.05", "\
        Exclusive Topology"),
    ("slurm.conf", "NodeSet", "both", "\
        Feature Nodes"),
    ("slurm.conf", "DownNodes", "both", "\
        Reason State"),
    ("slurm.conf", "PowerAction", "26.05", "\
        Location Program"),
    ("cgroup.conf", "", "both", "\
        AllowedRAMSpace AllowedSwapSpace CgroupMountpoint CgroupPlugin ConstrainCores ConstrainDevices \
        ConstrainRAMSpace ConstrainSwapSpace EnableControllers IgnoreSystemd IgnoreSystemdOnFailure MaxRAMPercent \
        MaxSwapPercent MemorySwappiness MinRAMSpace SignalChildrenProcesses SystemdTimeout"),
    ("cgroup.conf", "", "26.05", "\
        CgroupJobIdPaths CgroupSlice EnableExtraControllers"),
    ("gres.conf", "NodeName", "both", "\
        AutoDetect Cores Count File Flags Links MultipleFiles Name Type"),
    ("slurmdbd.conf", "", "both", "\
        AllowNoDefAcct AllResourcesAbsolute ArchiveDir ArchiveEvents ArchiveJobs ArchiveResvs ArchiveScript \
        ArchiveSteps ArchiveSuspend ArchiveTXN ArchiveUsage AuthAltParameters AuthAltTypes AuthInfo AuthType \
        CommitDelay CommunicationParameters DbdAddr DbdBackupHost DbdHost DbdPort DebugFlags DebugLevel \
        DebugLevelSyslog DefaultQOS DisableCoordDBD HashPlugin LogFile LogTimeFormat MaxQueryTimeRange \
        MessageTimeout Parameters PidFile PluginDir PrivateData PurgeEventAfter PurgeJobAfter PurgeResvAfter \
        PurgeStepAfter PurgeSuspendAfter PurgeTXNAfter PurgeUsageAfter SlurmUser StorageBackupHost StorageHost \
        StorageLoc StorageParameters StoragePass StoragePort StorageType StorageUser TCPTimeout TrackSlurmctldDown \
        TrackWCKey"),
    ("slurmdbd.conf", "", "26.05", "\
        ArchiveJobEnv ArchiveJobScript DisableArchiveCommands DisableRollups MaxPurgeLimit PurgeJobEnvAfter \
        PurgeJobScriptAfter StoragePassScript TLSParameters TLSType"),
    ("oci.conf", "", "both", "\
        ContainerPath DebugFlags DisableCleanup DisableHooks EnvExclude FileDebug MountSpoolDir RunTimeCreate \
        RunTimeDelete RunTimeEnvExclude RunTimeKill RunTimeQuery RunTimeRun RunTimeStart SrunArgs SrunPath \
        StdIODebug SyslogDebug"),
    ("acct_gather.conf", "", "both", "\
        EnergyIPMICalcAdjustment EnergyIPMIFrequency EnergyIPMIPassword EnergyIPMIPowerSensors \
        EnergyIPMITimeout EnergyIPMIUsername InfinibandOFEDPort ProfileHDF5Default ProfileHDF5Dir \
        ProfileInfluxDBDatabase ProfileInfluxDBDefault ProfileInfluxDBHost ProfileInfluxDBPass \
        ProfileInfluxDBRTPolicy ProfileInfluxDBTimeout ProfileInfluxDBUser SysfsInterfaces"),
    ("acct_gather.conf", "", "26.05", "\
        ProfileInfluxDBExtraTags ProfileInfluxDBFlags ProfileInfluxDBFrequency"),
    ("job_container.conf", "NodeName", "both", "\
        AutoBasePath BasePath CloneNSEpilog CloneNSEpilog_Wait CloneNSScript CloneNSScript_Wait EntireStepInNS \
        InitScript Shared"),
    ("job_container.conf", "NodeName", "24.11", "\
        Dirs"),
    ("helpers.conf", "", "both", "\
        AllowUserBoot BootTime ExecTime Feature MutuallyExclusive"),
    ("mpi.conf", "", "both", "\
        PMIxCliTmpDirBase PMIxCollFence PMIxDebug PMIxDirectConn PMIxDirectConnEarly PMIxDirectConnUCX \
        PMIxDirectSameArch PMIxEnv PMIxFenceBarrier PMIxNetDevicesUCX PMIxTimeout PMIxTlsUCX"),
    ("mpi.conf", "", "26.05", "\
        PMIxShareServerTopology"),
];
