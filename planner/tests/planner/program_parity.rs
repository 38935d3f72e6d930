//! The programs of all targets have the same tables, keys, actions, parameters, counters, meters and digests, except for the
//! differences listed here.

use std::collections::BTreeSet;

use ultima_p4runtime::config::v1::P4Info;
use ultima_p4runtime::config::v1::match_field::Match;
use ultima_p4runtime::names::Names;
use ultima_planner::fabric;
use ultima_planner::program::Program;

/// A program's P4Info, one line per fact: tables with keys, actions and sizes, actions' parameters, arrays and digests. Ids are
/// left out, because the controller looks them up by name.
fn said(names: &Names) -> BTreeSet<String> {
    let info: &P4Info = names.p4info();
    let mut lines = BTreeSet::new();
    let name = |id: u32| {
        let named = info.actions.iter().find_map(|action| {
            let preamble = action.preamble.as_ref()?;
            (preamble.id == id).then(|| preamble.name.clone())
        });
        named.expect("an action of the program")
    };
    let mut of_tables = BTreeSet::new();
    for table in &info.tables {
        let of = &table.preamble.as_ref().unwrap().name;
        lines.insert(format!("table {of} has {} places", table.size));
        for field in &table.match_fields {
            let Some(Match::MatchType(kind)) = field.r#match else {
                panic!("{of}: {} is of another architecture", field.name);
            };
            lines.insert(format!(
                "table {of} asks for {} ({} bits, match type {kind})",
                field.name, field.bitwidth
            ));
        }
        for action in &table.action_refs {
            lines.insert(format!("table {of} does {}", name(action.id)));
            of_tables.insert(action.id);
        }
        let default = name(table.const_default_action_id);
        lines.insert(format!("table {of} does {default} where no entry is"));
    }
    for action in &info.actions {
        let preamble = action.preamble.as_ref().unwrap();
        for param in action
            .params
            .iter()
            .filter(|_| of_tables.contains(&preamble.id))
        {
            let (of, bits) = (&preamble.name, param.bitwidth);
            lines.insert(format!("action {of} gets {} ({bits} bits)", param.name));
        }
    }
    for counter in &info.counters {
        let (of, unit) = (
            &counter.preamble.as_ref().unwrap().name,
            counter.spec.unwrap().unit,
        );
        lines.insert(format!(
            "counter {of} has {} places, unit {unit}",
            counter.size
        ));
    }
    for meter in &info.meters {
        let (of, unit) = (
            &meter.preamble.as_ref().unwrap().name,
            meter.spec.unwrap().unit,
        );
        lines.insert(format!("meter {of} has {} places, unit {unit}", meter.size));
    }
    for digest in &info.digests {
        let of = &digest.preamble.as_ref().unwrap().name;
        for member in names.digest(of).unwrap().members.iter() {
            let (name, bits) = (&member.name, member.bitwidth);
            lines.insert(format!("digest {of} has {name} ({bits} bits)"));
        }
    }
    lines
}

/// The P4Info of the embedded program for a target.
fn said_of(target: &str) -> BTreeSet<String> {
    let text = match target {
        "v1model" => include_str!("../../../topologies/star4.yaml").to_owned(),
        tofino => include_str!("../../../topologies/tofino32.yaml")
            .replace("target: tofino", &format!("target: {tofino}")),
    };
    let text = match target {
        "tofino2" => text.replace("port_map: wedge100bf-32x", "port_map: tofino2-32x400g"),
        _ => text,
    };
    let fabric = fabric::parse(&text, "fabric.yaml").unwrap();
    said(Program::own(&fabric).unwrap().names())
}

/// The lines that only one program has: `-` for the first, `+` for the second.
fn differences(first: &BTreeSet<String>, second: &BTreeSet<String>) -> Vec<String> {
    let only = |sign, of: &BTreeSet<String>, other| {
        of.difference(other)
            .map(|line| format!("{sign} {line}"))
            .collect::<Vec<_>>()
    };
    [only('-', first, second), only('+', second, first)].concat()
}

#[test]
fn tofino_and_v1model_programs_differ_only_as_listed() {
    let expected = [
        // A chip truncates only mirrored packets, in sessions that the controller configures.
        "+ action UltimaEgress.mirrors.set_session gets session (10 bits)",
        "+ table UltimaEgress.mirrors.session asks for egress_port (9 bits, match type 2)",
        "+ table UltimaEgress.mirrors.session asks for sealed (1 bits, match type 2)",
        "+ table UltimaEgress.mirrors.session does NoAction",
        "+ table UltimaEgress.mirrors.session does NoAction where no entry is",
        "+ table UltimaEgress.mirrors.session does UltimaEgress.mirrors.set_session",
        "+ table UltimaEgress.mirrors.session has 1024 places",
    ];
    assert_eq!(
        differences(&said_of("v1model"), &said_of("tofino")),
        expected
    );
}

#[test]
fn tofino1_and_tofino2_programs_differ_only_as_listed() {
    let expected = [
        "- action UltimaEgress.mirrors.set_session gets session (10 bits)",
        "+ action UltimaEgress.mirrors.set_session gets session (8 bits)",
    ];
    assert_eq!(
        differences(&said_of("tofino"), &said_of("tofino2")),
        expected
    );
}
