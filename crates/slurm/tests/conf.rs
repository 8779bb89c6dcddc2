//! Configuration files: writing, parsing and rejected input.
//!
//! The table of values was checked against `scontrol` of Slurm 24.11.5 and 26.05.5, which report the value of a
//! `PluginDir` that does not exist.

use slurm::conf::{Conf, ConfBuilder, ConfError, Extra, Found, Item, Operator, Override, Record};
use slurm::conf::{NodeConf, Options, merge_options, shell_word};

fn pairs(text: &str) -> Result<Vec<(String, String)>, ConfError> {
    let conf = Conf::parse(text)?;
    let pairs = conf.lines().iter().flat_map(|line| match &line.item {
        Item::Pairs(pairs) => pairs.clone(),
        Item::Empty | Item::Include(_) => Vec::new(),
    });
    Ok(pairs.map(|pair| (pair.key().to_owned(), pair.value().to_owned())).collect())
}

#[test]
fn reads_values_as_slurm_does() {
    let table = [
        ("K=/x", "/x"),
        ("K = /x ", "/x"),
        ("\tK=/x\r\n", "/x"),
        ("K=/x # comment", "/x"),
        ("K=/a#b", "/a"),
        (r"K=/a\#b", "/a#b"),
        (r"K=/a\\", r"/a\"),
        ("K=\"/a b\"", "/a b"),
        ("K=\"\"", ""),
        (r#"K="/a \#\\b""#, r"/a #\b"),
        (r#"K=a"b"#, r#"a"b"#),
        ("K=\\\n/a", "/a"),
        ("K=/a\\\nb", "/ab"),
        ("K=/a \\ # the comment goes first\n", "/a"),
        ("K=/a # no continuation \\\n", "/a"),
        ("K=/a\\", "/a"),
        ("K=a=b,c=d", "a=b,c=d"),
        ("K==", "="),
        // The pitfall of a missing value.
        ("K= L=1", "L=1"),
    ];
    for (text, value) in table {
        assert_eq!(pairs(text).unwrap(), [("K".to_owned(), value.to_owned())], "{text}");
    }
}

#[test]
fn reads_whole_files() {
    let conf = Conf::parse(
        "# head\n\nclustername=one\nNodeName=n[1-2] CPUs=4 \\\n  Features=\"a,b\" # two\nInclude /etc/%c.conf\nClusterName=two\nA+=1\n",
    )
    .unwrap();
    assert_eq!(conf.get("CLUSTERNAME"), Some("two"), "the last value is used");
    assert_eq!(conf.get("CPUs"), None, "a node property is not a parameter");
    let node: Vec<_> = conf.records("nodename").flatten().map(|pair| (pair.key(), pair.value())).collect();
    assert_eq!(node, [("NodeName", "n[1-2]"), ("CPUs", "4"), ("Features", "a,b")]);
    let numbers: Vec<usize> = conf.lines().iter().map(|line| line.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 6, 7, 8]);
    assert_eq!(conf.records("A").flatten().next().unwrap().operator(), Operator::Add);
    assert_eq!(
        conf.to_string(),
        "# head\n\nclustername=one\nNodeName=n[1-2] CPUs=4 Features=a,b # two\nInclude /etc/%c.conf\nClusterName=two\nA+=1\n"
    );
}

#[test]
fn says_which_line_is_wrong() {
    let key = |key: &str| key.to_owned();
    let table = [
        ("A=1\nnonsense", ConfError::NotAPair { line: 2 }),
        ("A=1\n\n=2", ConfError::NotAPair { line: 3 }),
        ("A=1 \\\n B=2\nC=", ConfError::NoValue { line: 3, key: key("C") }),
        ("A=one two", ConfError::Trailing { line: 1, key: key("A") }),
        ("A=1 B", ConfError::Trailing { line: 1, key: key("A") }),
        ("A=\"one", ConfError::Quotes { line: 1, key: key("A") }),
        ("A=\"one\"two", ConfError::Quotes { line: 1, key: key("A") }),
        ("#\nInclude \n", ConfError::Include { line: 2 }),
        ("Include a b", ConfError::Include { line: 1 }),
        // Slurm recognizes the word only at the start of a line.
        (" Include a", ConfError::NotAPair { line: 1 }),
        ("A=1\0", ConfError::Control { line: 1, character: '\0' }),
    ];
    for (text, error) in table {
        assert_eq!(Conf::parse(text), Err(error), "{text}");
    }
    let error = Conf::parse("StoragePass=my secret").unwrap_err().to_string();
    assert_eq!(
        error,
        "line 1: the text after the value of StoragePass is not Key=Value: quote values that contain spaces"
    );
}

#[test]
fn one_value_stays_one_value() {
    type Set = for<'a> fn(&'a mut ConfBuilder, &str, &str) -> Result<&'a mut ConfBuilder, ConfError>;
    let refused = |set: Set, value: &str, found| {
        let error = set(&mut ConfBuilder::new(), "Key", value).map(drop);
        assert_eq!(error, Err(ConfError::Value { key: "Key".into(), found }), "{value:?}");
    };
    let kinds: [Set; 3] = [ConfBuilder::word, ConfBuilder::name, ConfBuilder::text];
    for set in kinds {
        refused(set, "", Found::Nothing);
        for value in ["a\nSlurmUser=root", "a\r", "a\x0bb", "a\u{2028}b", "\n"] {
            refused(set, value, Found::LineBreak);
        }
        refused(set, "a\0", Found::Control);
        refused(set, "a\x1b[0m", Found::Control);
        refused(set, "\"a", Found::Quote);
    }
    for value in ["a SlurmUser=root", " a", "a\tb", "a\u{a0}b"] {
        refused(ConfBuilder::word, value, Found::Blank);
    }
    refused(ConfBuilder::word, "a#b", Found::Hash);
    refused(ConfBuilder::word, "a\\", Found::Backslash);
    refused(ConfBuilder::text, "a \"b\"", Found::Quote);
    for (value, character) in [("a,b", ','), ("a[1-9]", '['), ("a b", ' '), ("a=b", '='), ("ä", 'ä')] {
        refused(ConfBuilder::name, value, Found::NotInName(character));
    }
    let list = ConfBuilder::new().list("Key", ["a", "b,c"]).map(drop);
    assert_eq!(list, Err(ConfError::Value { key: "Key".into(), found: Found::Comma }));
    for key in ["", "a b", "a=", "a\n", "#"] {
        assert_eq!(ConfBuilder::new().word(key, "x").map(drop), Err(ConfError::Key { key: key.into() }));
    }
    assert_eq!(ConfBuilder::new().comment("a\nb").map(drop), Err(ConfError::Comment));

    let error = ConfBuilder::new().word("ClusterName", "a b").map(drop).unwrap_err();
    assert_eq!(error.to_string(), "the value of ClusterName contains whitespace: remove it");
}

#[test]
fn passwords_are_written_but_not_shown() {
    let mut conf = ConfBuilder::new();
    for password in ["simple", "a b", "#1", r"back\slash", r#"quo"te"#, " lead", "ü"] {
        conf.text("StoragePass", password).unwrap();
    }
    let text = conf.to_string();
    assert_eq!(
        text,
        "StoragePass=simple\nStoragePass=\"a b\"\nStoragePass=\\#1\nStoragePass=back\\\\slash\nStoragePass=quo\"te\n\
         StoragePass=\" lead\"\nStoragePass=ü\n"
    );
    let read: Vec<String> = pairs(&text).unwrap().into_iter().map(|(_, value)| value).collect();
    assert_eq!(read, ["simple", "a b", "#1", r"back\slash", r#"quo"te"#, " lead", "ü"]);
    let extra = Extra::new("StoragePass=simple");
    let shown = format!("{conf:?} {extra:?} {:?}", Conf::parse(&text));
    assert!(!shown.contains("simple") && !shown.contains("slash"), "{shown}");
}

fn slurm_conf() -> Result<ConfBuilder, ConfError> {
    let mut conf = ConfBuilder::new();
    conf.section("GENERAL")?
        .name("ClusterName", "demo")?
        .name("SlurmUser", "slurm")?
        .word("SlurmctldHost", "demo-controller-0(demo-controller-0.demo-controller-internal.ns)")?
        .number("SlurmctldPort", 6817_u16)?
        .number("MaxNodeCount", 65_536_u32)?
        .section("PLUGINS & PARAMETERS")?
        .word("AuthType", "auth/slurm")?
        .list("AuthAltParameters", ["jwt_key=/etc/slurm/jwt.key"])?
        .list("AuthInfo", ["use_client_ids"])?
        .list("SlurmctldParameters", ["enable_configless", "reconfig_on_restart"])?
        .section("PROLOG & EPILOG")?
        .word("Prolog", "a.sh")?
        .word("Prolog", "b.sh")?
        .section("NODESET & PARTITION")?;
    conf.record(Record::new("NodeSet", "gpu")?.name("Feature", "gpu")?);
    let options = Options::parse("State=UP MaxTime=UNLIMITED\n")?;
    conf.record(Record::new("PartitionName", "gpu")?.name("Nodes", "gpu")?.options(&options)?);
    Ok(conf)
}

const SLURM_CONF: &str = "\
#
### GENERAL ###
ClusterName=demo
SlurmUser=slurm
SlurmctldHost=demo-controller-0(demo-controller-0.demo-controller-internal.ns)
SlurmctldPort=6817
MaxNodeCount=65536
#
### PLUGINS & PARAMETERS ###
AuthType=auth/slurm
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
AuthInfo=use_client_ids
SlurmctldParameters=enable_configless,reconfig_on_restart
#
### PROLOG & EPILOG ###
Prolog=a.sh
Prolog=b.sh
#
### NODESET & PARTITION ###
NodeSet=gpu Feature=gpu
PartitionName=gpu Nodes=gpu State=UP MaxTime=UNLIMITED
";

#[test]
fn writes_our_part_the_user_s_part_and_the_united_lists() {
    let conf = slurm_conf().unwrap();
    assert_eq!(conf.to_string(), SLURM_CONF);
    assert_eq!(conf.render(&Extra::default()).unwrap(), SLURM_CONF);
    assert_eq!(conf.render(&Extra::new(" \n")).unwrap(), SLURM_CONF);
    assert_eq!(
        conf.render(&Extra::new("\nGresTypes=gpu\n\n")).unwrap(),
        format!("{SLURM_CONF}#\n### EXTRA CONFIG ###\nGresTypes=gpu\n")
    );

    let extra = Extra::new(
        "# mine\nslurmctldparameters=Idle_On_Node_Suspend,ENABLE_CONFIGLESS, max_powered_nodes=5\n\
         NodeName=static AuthInfo=this_is_no_parameter\n\
         AuthAltParameters=userclaimfield=Sun,jwt_key=/other,jwks=/Path/JWKS.json\nPrologFlags=Contain\\",
    );
    let rendered = conf.render(&extra).unwrap();
    let tail = "\
#
### EXTRA CONFIG ###
# mine
slurmctldparameters=Idle_On_Node_Suspend,ENABLE_CONFIGLESS, max_powered_nodes=5
NodeName=static AuthInfo=this_is_no_parameter
AuthAltParameters=userclaimfield=Sun,jwt_key=/other,jwks=/Path/JWKS.json
PrologFlags=Contain\\

#
### MERGED CONFIG ###
AuthAltParameters=jwks=/Path/JWKS.json,jwt_key=/etc/slurm/jwt.key,userclaimfield=Sun
";
    assert_eq!(rendered, format!("{SLURM_CONF}{tail}"));
    assert_eq!(extra.problems(), [ConfError::Trailing { line: 2, key: "slurmctldparameters".into() }]);

    let quoted = Extra::new("SlurmctldParameters=\"Idle_On_Node_Suspend,ENABLE_CONFIGLESS, max_powered_nodes=5\"");
    let rendered = conf.render(&quoted).unwrap();
    let merged = "SlurmctldParameters=enable_configless,Idle_On_Node_Suspend,max_powered_nodes=5,reconfig_on_restart\n";
    assert!(rendered.ends_with(&format!("### MERGED CONFIG ###\n{merged}")), "{rendered}");
    assert_eq!(
        Conf::parse(&rendered).unwrap().get("slurmctldparameters"),
        merged.trim_end().split_once('=').map(|x| x.1)
    );
}

#[test]
fn writes_the_other_files() {
    let mut conf = ConfBuilder::new();
    let slurmdbd = |conf: &mut ConfBuilder| {
        conf.section("GENERAL")?
            .name("DbdHost", "a-accounting-0")?
            .number("DbdPort", 6819_u16)?
            .section("PLUGINS & PARAMETERS")?
            .list("AuthAltParameters", ["jwt_key=/etc/slurm/jwt.key"])?
            .list("AuthInfo", ["use_client_ids"])?
            .section("STORAGE")?
            .word("StorageHost", "mariadb.db.svc")?
            .text("StoragePass", "p#ss w\\rd")?
            .section("LOGGING")?
            .word("LogFile", "/dev/null")?
            .list("Empty", [])
            .map(drop)
    };
    slurmdbd(&mut conf).unwrap();
    assert_eq!(
        conf.render(&Extra::new("AuthInfo=ttl=60\n# end")).unwrap(),
        "#\n### GENERAL ###\nDbdHost=a-accounting-0\nDbdPort=6819\n#\n### PLUGINS & PARAMETERS ###\n\
         AuthAltParameters=jwt_key=/etc/slurm/jwt.key\nAuthInfo=use_client_ids\n#\n### STORAGE ###\n\
         StorageHost=mariadb.db.svc\nStoragePass=\"p\\#ss w\\\\rd\"\n#\n### LOGGING ###\nLogFile=/dev/null\n\
         #\n### EXTRA CONFIG ###\nAuthInfo=ttl=60\n# end\n#\n### MERGED CONFIG ###\nAuthInfo=ttl=60,use_client_ids\n"
    );

    let mut cgroup = ConfBuilder::new();
    cgroup.word("CgroupPlugin", "cgroup/v2").unwrap().word("IgnoreSystemd", "yes").unwrap();
    assert_eq!(cgroup.to_string(), "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n");

    let mut gres = ConfBuilder::new();
    gres.record(Record::new("Name", "gpu").unwrap().word("File", "/dev/nvidia[0-3]").unwrap());
    assert_eq!(gres.to_string(), "Name=gpu File=/dev/nvidia[0-3]\n");
}

#[test]
fn options_are_united_by_name_without_changing_them() {
    let table: [(&[&str], &str, &[&str]); 5] = [
        (&["b", "a"], "", &["a", "b"]),
        (&["a"], "A,c,,c", &["a", "c"]),
        (&["k=/Ours"], "K=/Theirs,z=/Path", &["k=/Ours", "z=/Path"]),
        (&[], "B=1,a,b=2", &["a", "B=1"]),
        (&["x"], " y , Z ", &["x", "y", "Z"]),
    ];
    for (ours, theirs, merged) in table {
        assert_eq!(merge_options(ours.iter().copied(), theirs), merged, "{ours:?} {theirs}");
    }
}

#[test]
fn says_what_the_user_overrides() {
    let conf = slurm_conf().unwrap();
    let extra = Extra::new(
        "SlurmUser=slurm\n\nclustername=other\nAuthInfo=ttl=60\nNew=1\nPartitionName=gpu Nodes=ALL\nPartitionName=new Nodes=ALL\nSlurmctldHost=x\n",
    );
    let override_ = |key: &str, line| Override { key: key.into(), line };
    assert_eq!(
        conf.overrides(&extra),
        [override_("clustername", 3), override_("PartitionName", 6), override_("SlurmctldHost", 8)]
    );
}

#[test]
fn options_of_a_line_stay_on_it() {
    let partition = |text: &str| {
        Record::new("PartitionName", "p")?.name("Nodes", "p")?.options(&Options::parse(text)?).map(|record| {
            let mut conf = ConfBuilder::new();
            conf.record(record);
            conf.to_string()
        })
    };
    assert_eq!(partition("").unwrap(), "PartitionName=p Nodes=p\n");
    assert_eq!(
        partition("\nState=UP\n  Default=YES AllowGroups=\"a b\" QOS=\"\"\n").unwrap(),
        "PartitionName=p Nodes=p State=UP Default=YES AllowGroups=\"a b\" QOS=\"\"\n"
    );
    let key = |key: &str| key.to_owned();
    let value = |key: &str, found| ConfError::Value { key: key.to_owned(), found };
    let table = [
        ("State=UP\nPartitionName=evil Nodes=ALL", ConfError::Starts { key: key("PartitionName") }),
        ("State=UP nodeset=x", ConfError::Starts { key: key("nodeset") }),
        ("nodes=ALL", ConfError::Taken { key: key("nodes") }),
        ("State=UP State=DOWN", ConfError::Taken { key: key("State") }),
        ("A=1 # rest", ConfError::Trailing { line: 1, key: key("A") }),
        ("A=1\nInclude /etc/passwd", ConfError::Trailing { line: 2, key: key("A") }),
        ("A=a#b", value("A", Found::Hash)),
        ("A=a\\", value("A", Found::Backslash)),
        ("A=\"a\nb\"", value("A", Found::LineBreak)),
        ("A=a\0", value("A", Found::Control)),
        ("A=a\"b", value("A", Found::Quote)),
        ("Topology= Weight=1", ConfError::NoValue { line: 1, key: key("Topology") }),
        ("A =1", ConfError::NotAPair { line: 1 }),
        ("A+=1", ConfError::NotAPair { line: 1 }),
    ];
    for (text, error) in table {
        assert_eq!(partition(text), Err(error), "{text}");
    }
    assert!(matches!(Record::new("PartitionName", "a b"), Err(ConfError::Value { .. })));
}

#[test]
fn node_options_become_one_sorted_line() {
    let table = [
        ("", "Features=n"),
        ("RealMemory=1000 CPUs=4", "CPUs=4 Features=n RealMemory=1000"),
        ("Feature=b,a Features=c,n,", "Features=a,b,c,n"),
        ("gres=gpu:a:1 Gres=gpu:b:2", "Features=n gres=gpu:a:1,gpu:b:2"),
        ("Weight=2\nComment=\"a b\"", "Comment=\"a b\" Features=n Weight=2"),
        ("Topology=topo-switch:s1,topo-block:b1", "Features=n Topology=topo-switch:s1,topo-block:b1"),
    ];
    for (text, line) in table {
        let mut conf = NodeConf::parse(text).unwrap();
        assert_eq!(conf.feature("n").unwrap().to_string(), line);
    }
    assert!(matches!(NodeConf::parse("NodeName=x"), Err(ConfError::Starts { .. })));
    assert!(matches!(NodeConf::parse("RealMemory"), Err(ConfError::NotAPair { .. })));

    let mut conf = NodeConf::parse("corespeccount=2").unwrap();
    conf.set_default("CoreSpecCount", "4").unwrap().set_default("MemSpecLimit", "10").unwrap();
    assert_eq!(conf.to_string(), "corespeccount=2 MemSpecLimit=10");
    assert_eq!(conf.get("CORESPECCOUNT").as_deref(), Some("2"));
    assert!(conf.set_default("A", "1 B=2").is_err() && conf.feature("a,b").is_err() && conf.feature("a b").is_err());
    assert_eq!(shell_word("Comment=$(id) it's"), r"'Comment=$(id) it'\''s'");
}
