//! Programs that ask for too much: the engine rejects them, and loading a mebibyte of JSON never takes gigabytes.

use serde_json::{Value, json};
use ultima_p4runtime::config::v1::p4_data_type_spec::TypeSpec;
use ultima_p4runtime::config::v1::{
    Digest, P4DataTypeSpec, P4Info, P4NamedType, P4StructTypeSpec, P4TypeInfo, Preamble,
    p4_struct_type_spec::Member,
};
use ultima_p4runtime::text;
use ultima_switch::engine::Limits;

use super::memory;

/// Memory that loading one program may take, in bytes.
const MOST: isize = 64 << 20;
/// Width of the widest field, in bits.
const WIDEST: u32 = 65_535 * 8;

fn program() -> Value {
    serde_json::from_slice(include_bytes!("../programs/testbed.json")).unwrap()
}

fn p4info() -> P4Info {
    text::parse(include_str!("../programs/testbed.p4info.txtpb")).unwrap()
}

/// Asserts that the engine rejects a program with this text in the error.
fn refused(program: &Value, p4info: &P4Info, expected: &str) {
    let json = serde_json::to_vec(program).unwrap();
    assert!(json.len() <= 1 << 20, "{} bytes", json.len());
    let (error, peak) =
        memory::peak(|| ultima_switch::p4info::load(&json, p4info, Limits::default()).err());
    let text = error.expect("it is refused").to_string();
    assert!(
        text.contains(expected),
        "{expected:?} is not in {text:.300}"
    );
    assert!(text.len() < 1000, "{} characters", text.len());
    assert!(peak < MOST, "loading takes {peak} bytes");
}

/// Adds a header `wide` with one field of the greatest width.
fn with_wide_header(program: &mut Value) {
    let types = program["header_types"].as_array_mut().unwrap();
    types.push(json!({"name": "wide_t", "id": 900, "fields": [["value", WIDEST]]}));
    let headers = program["headers"].as_array_mut().unwrap();
    headers.push(json!({"name": "wide", "id": 900, "header_type": "wide_t", "metadata": false}));
}

fn wide() -> Value {
    json!({"type": "field", "value": ["wide", "value"]})
}

#[test]
fn arguments() {
    let mut program = program();
    let params = vec![json!({"name": "p", "bitwidth": WIDEST}); 20_000];
    program["actions"][0]["runtime_data"] = params.into();
    refused(&program, &p4info(), "size of its parameters in bytes");
}

#[test]
fn parameters_of_actions_in_many_tables() {
    let mut program = program();
    let params = vec![json!({"name": "p", "bitwidth": 1}); 8000];
    let action = json!({"name": "a", "id": 900, "runtime_data": params, "primitives": []});
    program["actions"].as_array_mut().unwrap().push(action);
    let table = program["pipelines"][0]["tables"][0].clone();
    let tables = (0..1000).map(|number| {
        let mut table = table.clone();
        table["name"] = format!("t{number}").into();
        table["key"] = json!([]);
        let default = table["default_entry"]["action_id"].clone();
        table["action_ids"] = json!([900, default]);
        table["actions"] = json!([]);
        table["next_tables"] = json!({});
        table["base_default_next"] = Value::Null;
        table.as_object_mut().unwrap().remove("source_info");
        table
    });
    program["pipelines"][0]["tables"] = tables.collect::<Vec<_>>().into();
    program["pipelines"][0]["conditionals"] = json!([]);
    program["pipelines"][0]["init_table"] = "t0".into();
    refused(&program, &p4info(), "number of action parameters");
}

#[test]
fn actions_that_a_table_lists_many_times() {
    let mut program = program();
    let id = program["pipelines"][0]["tables"][0]["action_ids"][0].clone();
    program["pipelines"][0]["tables"][0]["action_ids"] = vec![id; 200_000].into();
    refused(&program, &p4info(), "is there twice");
}

#[test]
fn keys_of_tables() {
    let mut program = program();
    with_wide_header(&mut program);
    let part = json!({"match_type": "ternary", "target": ["wide", "value"], "mask": null});
    let table = &mut program["pipelines"][0]["tables"][0];
    table["key"] = vec![part; 8000].into();
    table["match_type"] = "ternary".into();
    let entry = json!({"match_key": [], "action_entry": {"action_id": 10, "action_data": []}});
    table["entries"] = json!([entry]);
    refused(&program, &p4info(), "width of the key in bits");
}

#[test]
fn keys_of_parser_states() {
    let mut program = program();
    let part = json!({"type": "lookahead", "value": [0, WIDEST]});
    let state = &mut program["parsers"][0]["parse_states"][0];
    state["transition_key"] = vec![part; 10_000].into();
    refused(&program, &p4info(), "width of the key in bits");
}

#[test]
fn inputs_of_calculations() {
    for part in [
        json!({"type": "hexstr", "value": "0x1", "bitwidth": WIDEST}),
        json!({"type": "header", "value": "wide"}),
        wide(),
    ] {
        let mut program = program();
        with_wide_header(&mut program);
        let input = vec![part; 10_000];
        let calculation = json!({"name": "c", "id": 900, "algo": "crc32", "input": input});
        program["calculations"] = json!([calculation]);
        refused(&program, &p4info(), "calculation c: ");
    }
}

#[test]
fn headers_of_a_deparser() {
    let mut program = program();
    with_wide_header(&mut program);
    program["deparsers"][0]["order"] = vec!["wide"; 100_000].into();
    refused(&program, &p4info(), "size in bytes");
}

#[test]
fn unions_and_their_stacks() {
    let mut program = program();
    let header = json!({"name": "h", "id": 900, "header_type": "probe_t", "metadata": false});
    program["headers"].as_array_mut().unwrap().push(header);
    let members: Vec<_> = (0..40_000)
        .map(|n| json!([format!("m{n}"), "probe_t"]))
        .collect();
    let union =
        |ids: Vec<u32>| json!({"name": "u", "id": 1, "union_type": "u_t", "header_ids": ids});
    let mut many = program.clone();
    many["header_union_types"] = json!([{"name": "u_t", "id": 1, "headers": members}]);
    many["header_unions"] = json!([union(vec![900; 40_000])]);
    refused(&many, &p4info(), "number of members");

    let few: Vec<_> = members[..200].to_vec();
    program["header_union_types"] = json!([{"name": "u_t", "id": 1, "headers": few}]);
    program["header_unions"] = json!([union(vec![900; 200])]);
    let ids = vec![1; 60_000];
    let stack = json!({"name": "s", "id": 1, "union_type": "u_t", "header_union_ids": ids});
    program["header_union_stacks"] = vec![stack; 6].into();
    refused(&program, &p4info(), "number of elements");
}

#[test]
fn meters() {
    let mut program = program();
    let mut p4info = p4info();
    let limit = Limits::default().array_cells as i64;
    p4info.meters[0].size = limit;
    program["meter_arrays"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .filter(|meter| meter["is_direct"] == false)
        .for_each(|meter| meter["size"] = limit.into());
    refused(&program, &p4info, "number of cells");
}

#[test]
fn messages_of_digests() {
    let mut program = program();
    with_wide_header(&mut program);
    let list = json!({"name": "d", "id": 1, "elements": vec![wide(); 10_000]});
    program["learn_lists"] = json!([list]);
    refused(&program, &p4info(), "size in bytes");
}

#[test]
fn nested_types() {
    let mut program = program();
    let list = json!({"name": "d", "id": 1, "elements": []});
    program["learn_lists"] = json!([list]);
    let named = |depth: usize| P4DataTypeSpec {
        type_spec: Some(TypeSpec::Struct(P4NamedType {
            name: format!("s{depth}"),
        })),
    };
    // Ten structs, each with ten members of the next: expanded, a billion structs.
    let structs = (0..10).map(|depth| {
        let member = |number: usize| Member {
            name: format!("m{number}"),
            type_spec: Some(named(depth + 1)),
        };
        let count = if depth == 9 { 0 } else { 10 };
        let members = (0..count).map(member).collect();
        (
            format!("s{depth}"),
            P4StructTypeSpec {
                members,
                ..Default::default()
            },
        )
    });
    let types = P4TypeInfo {
        structs: structs.collect(),
        ..P4TypeInfo::default()
    };
    let digest = Digest {
        preamble: Some(Preamble {
            id: 0x1700_0001,
            name: "d".into(),
            ..Preamble::default()
        }),
        type_spec: Some(named(0)),
    };
    let p4info = P4Info {
        type_info: Some(types),
        digests: vec![digest],
        ..p4info()
    };
    refused(&program, &p4info, "a type of more than 4096 parts");
}
