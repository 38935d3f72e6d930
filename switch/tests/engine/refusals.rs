//! Invalid programs and their errors.

use serde_json::{Value, json};
use ultima_p4runtime::config::v1::p4_data_type_spec::TypeSpec;
use ultima_p4runtime::config::v1::p4_new_type_spec::Representation;
use ultima_p4runtime::config::v1::p4_new_type_translation::{SdnString, SdnType};
use ultima_p4runtime::config::v1::{Action, Digest, P4DataTypeSpec, P4Info, P4NamedType, Preamble};
use ultima_p4runtime::text;
use ultima_switch::engine::{Limits, LoadError};

const COPIES: &[u8] = include_bytes!("../programs/copies.json");
const COPIES_INFO: &str = include_str!("../programs/copies.p4info.txtpb");
const LOOKUPS: &[u8] = include_bytes!("../programs/lookups.json");
const LOOKUPS_INFO: &str = include_str!("../programs/lookups.p4info.txtpb");

fn refused(json: &[u8], p4info: &P4Info) -> String {
    match ultima_switch::p4info::load(json, p4info, Limits::default()) {
        Err(error) => {
            let text = error.to_string();
            assert!(!text.contains('\n'), "{text}");
            text
        }
        Ok(_) => panic!("the program loads"),
    }
}

/// The error for the copies program with a change.
fn changed(pointer: &str, value: Value) -> String {
    let mut program: Value = serde_json::from_slice(COPIES).unwrap();
    *program
        .pointer_mut(pointer)
        .unwrap_or_else(|| panic!("no {pointer}")) = value;
    refused(
        program.to_string().as_bytes(),
        &text::parse(COPIES_INFO).unwrap(),
    )
}

/// The error for a program with action profiles or value sets, with a change.
fn altered(program: &[u8], p4info: &str, change: impl FnOnce(&mut Value, &mut P4Info)) -> String {
    let mut program: Value = serde_json::from_slice(program).unwrap();
    let mut p4info = text::parse(p4info).unwrap();
    change(&mut program, &mut p4info);
    refused(program.to_string().as_bytes(), &p4info)
}

/// The error for the copies program with one more attribute.
fn extended(pointer: &str, name: &str, value: Value) -> String {
    let mut program: Value = serde_json::from_slice(COPIES).unwrap();
    let object = program.pointer_mut(pointer).and_then(Value::as_object_mut);
    object.expect("an object").insert(name.into(), value);
    refused(
        program.to_string().as_bytes(),
        &text::parse(COPIES_INFO).unwrap(),
    )
}

#[test]
fn unknown_constructs_are_rejected_by_name() {
    let action = "/actions/1/primitives/1";
    assert_eq!(
        changed(&format!("{action}/op"), json!("teleport")),
        "action Serve.truncate_frame, teleport: primitive teleport with 1 parameter is not supported by this switch"
    );
    assert_eq!(
        changed(&format!("{action}/parameters"), json!([])),
        "action Serve.truncate_frame, truncate: primitive truncate with 0 parameters is not supported by this switch"
    );
    assert_eq!(
        changed("/__meta__/version", json!([3, 0])),
        "__meta__: format version 3.0 is not supported by this switch"
    );
    assert!(extended("", "teleporters", json!([])).contains("unknown field `teleporters`"));
    assert!(extended("/pipelines/0/tables/0", "wings", json!(2)).contains("unknown field `wings`"));
    assert_eq!(
        changed(
            "/extern_instances",
            json!([{"name": "wormhole", "id": 0, "type": "t"}])
        ),
        "wormhole: an extern instance is not supported by this switch"
    );
    assert!(
        changed("/pipelines/0/tables/0/type", json!("circular"))
            .ends_with("table type circular is not supported by this switch")
    );
    assert!(
        changed(
            "/pipelines/0/conditionals/0/expression/value/op",
            json!("<=>")
        )
        .ends_with("operation <=> is not supported by this switch")
    );
}

#[test]
fn references_to_missing_objects_are_rejected() {
    assert_eq!(
        changed("/parsers/0/init_state", json!("begin")),
        "parser parser: there is no state begin"
    );
    assert_eq!(
        changed("/deparsers/0/order", json!(["orders", "disorder"])),
        "deparser deparser: there is no header disorder"
    );
    assert_eq!(
        changed("/pipelines/0/init_table", json!("nowhere")),
        "pipeline ingress: there is no node nowhere"
    );
    assert_eq!(
        changed("/headers/0/header_type", json!("t")),
        "header scalars: there is no type t"
    );
    assert_eq!(
        changed("/headers/1/id", json!(0)),
        "header standard_metadata: id 0 is taken"
    );
    assert_eq!(
        changed("/parsers", json!([])),
        "parser: expected one, found 0"
    );
}

#[test]
fn headers_of_different_types_are_not_assigned() {
    let other_type = json!([
        {"type": "header", "value": "copy"},
        {"type": "header", "value": "orders"},
    ]);
    let mut program: Value = serde_json::from_slice(COPIES).unwrap();
    let primitive = program.pointer_mut("/actions/1/primitives/1").unwrap();
    *primitive = json!({"op": "assign_header", "parameters": other_type});
    let text = refused(
        program.to_string().as_bytes(),
        &text::parse(COPIES_INFO).unwrap(),
    );
    let at = "action Serve.truncate_frame, assign_header";
    assert_eq!(text, format!("{at}: the two sides are of different types"));
}

#[test]
fn a_pipeline_with_a_loop_is_rejected() {
    let mut program: Value = serde_json::from_slice(COPIES).unwrap();
    let ingress = program.pointer_mut("/pipelines/0").unwrap();
    let first = ingress["conditionals"][0]["name"].clone();
    for condition in ingress["conditionals"].as_array_mut().unwrap() {
        condition["false_next"] = first.clone();
    }
    let text = refused(
        program.to_string().as_bytes(),
        &text::parse(COPIES_INFO).unwrap(),
    );
    assert_eq!(text, "pipelines: a packet could run in circles");
}

#[test]
fn limits_are_checked() {
    let p4info = text::parse(COPIES_INFO).unwrap();
    // The program has 8 counter cells and then 4 meter cells, which count more because they are larger.
    let refused = |cells| {
        let limits = Limits {
            array_cells: cells,
            ..Limits::default()
        };
        ultima_switch::p4info::load(COPIES, &p4info, limits)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(7),
        "counter Serve.seen: number of cells, with those before, is 8, the limit is 7"
    );
    let text = refused(15);
    assert!(
        text.starts_with("meter Serve.speed: number of cells, "),
        "{text}"
    );
    assert!(text.ends_with(", the limit is 15"), "{text}");
    let limits = Limits {
        table_entries: 3,
        ..Limits::default()
    };
    let error = ultima_switch::p4info::load(COPIES, &p4info, limits).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table Serve.marks: number of entries is 4, the limit is 3"
    );
}

#[test]
fn a_program_must_match_its_p4info() {
    let lookups: P4Info = text::parse(LOOKUPS_INFO).unwrap();
    let copies: P4Info = text::parse(COPIES_INFO).unwrap();
    assert_eq!(
        refused(COPIES, &lookups),
        "program and P4Info disagree: the P4Info has no table Serve.marks"
    );
    assert!(
        refused(LOOKUPS, &copies).starts_with("program and P4Info disagree: the P4Info has no")
    );
    assert!(refused(COPIES, &P4Info::default()).starts_with("program and P4Info disagree: "));
    let parsing = include_bytes!("../programs/parsing.json");
    assert_eq!(
        refused(parsing, &copies).split(',').next(),
        Some("program and P4Info disagree: the program has nothing of what it lists")
    );
    // p4c omits tables that no packet reaches, maybe all of them.
    ultima_switch::p4info::load(parsing, &lookups, Limits::default())
        .expect("a program without tables");

    let mut other = lookups.clone();
    other.tables[1].match_fields.pop();
    assert_eq!(
        refused(LOOKUPS, &other),
        "program and P4Info disagree: table Lookups.prefix has 2 key fields, its P4Info 1"
    );
    let mut other = lookups.clone();
    other.tables[1].match_fields.swap(0, 1);
    assert!(refused(LOOKUPS, &other).contains("table Lookups.prefix, key field 0 is"));
    let mut other = lookups.clone();
    other.tables[1].action_refs.clear();
    assert!(refused(LOOKUPS, &other).contains("has action Lookups.set_prefix, its P4Info has not"));
    let mut other = lookups;
    other
        .actions
        .iter_mut()
        .for_each(|action| action.params.clear());
    assert!(refused(LOOKUPS, &other).contains("has other parameters in the P4Info"));
    let mut other = copies;
    other.counters[0].size = 9;
    assert!(refused(COPIES, &other).contains("counter Serve.seen has 8 cells, 9 in the P4Info"));
}

#[test]
fn a_p4info_must_not_contradict_itself_or_the_program() {
    let refused =
        |change: fn(&mut P4Info)| altered(COPIES, COPIES_INFO, |_, p4info| change(p4info));
    let disagree = "program and P4Info disagree: ";
    let unnamed = "number 1 of the P4Info has no id or no name";
    assert_eq!(
        refused(|p4info| preamble(&mut p4info.tables[0].preamble).id = 0),
        format!("{disagree}table {unnamed}")
    );
    let twice = refused(|p4info| {
        let id = preamble(&mut p4info.actions[0].preamble).id;
        preamble(&mut p4info.actions[1].preamble).id = id;
    });
    assert!(
        twice.contains("is given twice, expected unique ids"),
        "{twice}"
    );
    let twice = refused(|p4info| p4info.registers.push(p4info.registers[0].clone()));
    assert!(twice.contains("register \"Serve.memory\""), "{twice}");
    assert_eq!(
        refused(|p4info| p4info.tables[0].match_fields[0].bitwidth = 9),
        format!(
            "{disagree}table Serve.marks, match field hdr.orders.argument has 8 bits, 9 in the P4Info"
        )
    );
    let narrow = refused(|p4info| {
        let mark = |action: &&mut Action| !action.params.is_empty();
        let action = p4info.actions.iter_mut().find(mark).unwrap();
        action.params[0].bitwidth = 3;
    });
    assert!(narrow.contains(" bits, 3 in the P4Info"), "{narrow}");
    assert!(narrow.contains(", parameter "), "{narrow}");
}

fn preamble(preamble: &mut Option<Preamble>) -> &mut Preamble {
    preamble.as_mut().unwrap()
}

#[test]
fn invalid_json_is_rejected_with_its_position() {
    let p4info = P4Info::default();
    let error = ultima_switch::p4info::load(b"{\n \"headers\": [,]}", &p4info, Limits::default())
        .unwrap_err();
    assert!(matches!(error, LoadError::Json { line: 2, .. }), "{error}");
    assert!(refused(b"", &p4info).starts_with("line 1, column 0: "));
    assert!(refused(b"3", &p4info).contains("struct Program"));
}

#[test]
fn action_profiles_must_match_the_p4info() {
    let altered = |change: fn(&mut Value, &mut P4Info)| {
        let p4info = include_str!("../programs/profiles.p4info.txtpb");
        altered(include_bytes!("../programs/profiles.json"), p4info, change)
    };
    let disagree = "program and P4Info disagree: ";
    assert_eq!(
        altered(|_, p4info| p4info.action_profiles.clear()),
        format!("{disagree}the P4Info has no action profile members")
    );
    assert_eq!(
        altered(|_, p4info| p4info.action_profiles[0].with_selector = true),
        format!("{disagree}only one of them gives action profile members a selector")
    );
    assert_eq!(
        altered(|_, p4info| p4info.tables[0].implementation_id = 7),
        format!(
            "{disagree}table Choose.shared_action has action profile members, in the P4Info another \
             or none"
        )
    );
    assert_eq!(
        altered(|_, p4info| p4info.action_profiles[0].size = 1 << 30),
        "action profile members: number of members is 1073741824, the limit is 1048576"
    );
    assert_eq!(
        altered(|program, _| {
            program["pipelines"][0]["tables"][1]["action_profile"] = json!("ghost");
        }),
        "table Choose.shared_action: there is no action profile ghost"
    );
    assert_eq!(
        altered(|program, _| {
            program["pipelines"][0]["tables"][1]["type"] = json!("simple");
        }),
        format!(
            "{disagree}table Choose.shared_action has no action profile, but one in the P4Info"
        )
    );
    assert_eq!(
        altered(|program, _| {
            let profile = &mut program["pipelines"][0]["action_profiles"][1];
            profile["selector"]["algo"] = json!("dice");
        }),
        "selector of counted_selector: hash algorithm dice is not supported by this switch"
    );
}

#[test]
fn value_sets_must_match_the_p4info() {
    let altered = |change: fn(&mut Value, &mut P4Info)| {
        let p4info = include_str!("../programs/value_sets.p4info.txtpb");
        altered(
            include_bytes!("../programs/value_sets.json"),
            p4info,
            change,
        )
    };
    let disagree = "program and P4Info disagree: ";
    assert_eq!(
        altered(|_, p4info| p4info.value_sets.clear()),
        format!("{disagree}the P4Info has no value set Read.kinds")
    );
    assert_eq!(
        altered(|_, p4info| p4info.value_sets[0].r#match[0].bitwidth = 9),
        format!("{disagree}value set Read.kinds has 8 bits, 9 in the P4Info")
    );
    assert_eq!(
        altered(|_, p4info| p4info.value_sets[1].r#match.swap(0, 1)),
        "parser parser, state by_flow: the key does not have the fields of value set Read.flows"
    );
    let case = "parser parser, state by_kind";
    fn state(program: &mut Value, name: &str, value: Value) {
        let states = program["parsers"][0]["parse_states"].as_array_mut();
        let state = states.unwrap().iter_mut().find(|s| s["name"] == "by_kind");
        state.unwrap()["transitions"][0][name] = value;
    }
    assert_eq!(
        altered(|program, _| state(program, "value", json!("ghost"))),
        format!("{case}: there is no value set ghost")
    );
    assert_eq!(
        altered(|program, _| state(program, "mask", json!("0xf0"))),
        format!("{case}: a mask on a value set is not supported by this switch")
    );
}

#[test]
fn types_translated_to_strings_are_rejected() {
    let altered = |change: fn(&mut Value, &mut P4Info)| {
        let p4info = include_str!("../programs/translated.p4info.txtpb");
        altered(
            include_bytes!("../programs/translated.json"),
            p4info,
            change,
        )
    };
    let strings =
        "a type that @p4runtime_translation maps to strings is not supported by this switch";
    // In a P4Info, a type translated to strings has width 0.
    assert_eq!(
        altered(|_, p4info| p4info.tables[0].match_fields[0].bitwidth = 0),
        format!("table Translate.masked_port, match field port: {strings}")
    );
    assert_eq!(
        altered(|_, p4info| {
            let params = p4info.actions.iter_mut().flat_map(|it| &mut it.params);
            params.for_each(|param| param.bitwidth *= i32::from(param.name != "port"));
        }),
        format!("action Translate.leave, parameter port: {strings}")
    );
}

#[test]
fn a_digest_of_a_type_translated_to_strings_is_rejected() {
    let text = altered(
        include_bytes!("../programs/translated.json"),
        include_str!("../programs/translated.p4info.txtpb"),
        |program, p4info| {
            program["learn_lists"] = json!([{"name": "learn_t", "id": 1, "elements": []}]);
            let types = &mut p4info.type_info.as_mut().unwrap().new_types;
            let port = types.get_mut("outside_port_t").unwrap();
            let Some(Representation::TranslatedType(to)) = &mut port.representation else {
                panic!("{port:?}");
            };
            to.sdn_type = Some(SdnType::SdnString(SdnString {}));
            let name = "outside_port_t".to_owned();
            p4info.digests.push(Digest {
                preamble: Some(Preamble {
                    id: 0x1700_0001,
                    name: "learn_t".into(),
                    ..Preamble::default()
                }),
                type_spec: Some(P4DataTypeSpec {
                    type_spec: Some(TypeSpec::NewType(P4NamedType { name })),
                }),
            });
        },
    );
    assert_eq!(
        text,
        "digest learn_t: type outside_port_t, which @p4runtime_translation maps to strings (expected a width in bits), \
         is not supported by this switch"
    );
}

#[test]
fn single_rate_meters_are_rejected() {
    let mut p4info: P4Info = text::parse(COPIES_INFO).unwrap();
    let spec = p4info.meters[0].spec.as_mut().unwrap();
    spec.r#type = 1;
    assert_eq!(
        refused(COPIES, &p4info),
        "meter Serve.speed: a single rate is not supported by this switch"
    );
}
