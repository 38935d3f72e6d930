//! The JSON schemas of the YAML files: docs/schema has what `ultima schema` prints, and the schemas agree with the parser.

use serde_json::Value;
use ultima_planner::{fabric, job};

const TOPOLOGIES: [(&str, &str); 7] = [
    (
        "dumbbell",
        include_str!("../../../topologies/dumbbell.yaml"),
    ),
    (
        "leaf-spine",
        include_str!("../../../topologies/leaf-spine.yaml"),
    ),
    ("star16", include_str!("../../../topologies/star16.yaml")),
    ("star4", include_str!("../../../topologies/star4.yaml")),
    (
        "two-switches",
        include_str!("../../../topologies/two-switches.yaml"),
    ),
    (
        "tofino32",
        include_str!("../../../topologies/tofino32.yaml"),
    ),
    (
        "tofino32-pair",
        include_str!("../../../topologies/tofino32-pair.yaml"),
    ),
];

/// A job with every field.
const JOB: &str = "
name: train
members: [h1, h2, h3, h4, h4]
gather: unicast
seed: 7
loss_threshold: 10
weight: 2
evict_after_s: 30
sealed: true
";

fn accepts(schema: &Value, yaml: &str) -> bool {
    let document: Value = serde_yaml::from_str(yaml).expect("YAML");
    let validator = jsonschema::validator_for(schema).expect("a schema");
    validator.is_valid(&document)
}

#[test]
fn committed_schemas_are_up_to_date() {
    for (name, schema, copy) in [
        (
            "fabric",
            fabric::schema(),
            include_str!("../../../docs/schema/fabric.json"),
        ),
        (
            "job",
            job::schema(),
            include_str!("../../../docs/schema/job.json"),
        ),
    ] {
        let now = serde_json::to_string_pretty(&schema).expect("JSON") + "\n";
        assert!(
            now == copy,
            "ultima schema {name} > docs/schema/{name}.json"
        );
    }
}

#[test]
fn the_schemas_accept_the_projects_files() {
    let schema = fabric::schema();
    for (name, text) in TOPOLOGIES {
        assert!(accepts(&schema, text), "{name}");
        assert!(text.starts_with("# yaml-language-server: $schema=../docs/schema/fabric.json\n"));
    }
    assert!(accepts(&job::schema(), JOB));
    job::parse(JOB, "job.yaml").expect("so does the reader");
}

#[test]
fn the_schemas_reject_what_the_parser_rejects() {
    let schema = job::schema();
    for (from, to) in [
        ("name: train", "nam: train"),
        ("name: train", "name: a b"),
        ("[h1, h2, h3, h4, h4]", "[h1]"),
        ("unicast", "broadcast"),
        ("seed: 7", "seed: seven"),
        ("weight: 2", "weight: 101"),
        ("weight: 2", "groups: 1"),
        ("sealed: true", "sealed: 1"),
        ("evict_after_s: 30", "evict_after_s: 86401"),
    ] {
        let wrong = JOB.replace(from, to);
        assert!(!accepts(&schema, &wrong), "{to}");
        assert!(job::parse(&wrong, "job.yaml").is_err(), "{to}");
    }

    let schema = fabric::schema();
    let (_, good) = TOPOLOGIES[0];
    for (from, to) in [
        ("name: left", "nam: left"),
        ("name: left", "name: a/b"),
        ("name: left }", "name: left, target: tofino9 }"),
        ("ranks: 2", "ranks: 0"),
        ("ranks: 2", "ranks: two"),
        ("[h1, left/1]", "[h1]"),
        ("[h1, left/1]", "[h1, left/1], mtu: 100"),
        ("a_to_b: { loss", "a_to_b: { lost"),
        ("protocol: tcp", "protocol: sctp"),
    ] {
        assert!(good.contains(from), "{from}");
        let wrong = good.replacen(from, to, 1);
        assert!(!accepts(&schema, &wrong), "{to}");
        assert!(fabric::parse(&wrong, "f.yaml").is_err(), "{to}");
    }
}
