//! Objects by name, and the messages built from them.

use std::net::Ipv4Addr;
use ultima_p4runtime::bytestring::{Bytestring, BytestringError};
use ultima_p4runtime::config::v1::{P4Info, counter_spec, meter_spec};
use ultima_p4runtime::names::{EntryBuilder, EntryError, Names, P4InfoError, ReadError};
use ultima_p4runtime::v1::field_match::FieldMatchType;
use ultima_p4runtime::v1::{self, p4_data, table_action};
use ultima_p4runtime::{text, v1::P4Data};

const PROGRAM: &str = include_str!("../data/every_kind.p4info.txtpb");

fn names() -> Names {
    Names::new(text::parse(PROGRAM).unwrap()).unwrap()
}

/// Returns the error for the P4Info with one change.
fn refused(from: &str, to: &str) -> P4InfoError {
    assert!(PROGRAM.contains(from), "{from} is not in the program");
    Names::new(text::parse(&PROGRAM.replacen(from, to, 1)).unwrap()).unwrap_err()
}

fn filter(names: &Names) -> EntryBuilder<'_> {
    let entry = names.table("filter").unwrap().entry();
    entry
        .exact("port", 5u16)
        .unwrap()
        .exact("session", [0xab; 25])
        .unwrap()
        .priority(10)
}

fn action(entry: &v1::TableEntry) -> &v1::Action {
    match entry
        .action
        .as_ref()
        .and_then(|action| action.r#type.as_ref())
    {
        Some(table_action::Type::Action(action)) => action,
        other => panic!("{other:?} is not an action"),
    }
}

#[test]
fn an_entry_has_ids_and_canonical_values() {
    let names = names();
    let entry = names
        .table("Ingress.routing.route")
        .unwrap()
        .entry()
        .lpm("dst_addr", Ipv4Addr::new(0, 10, 1, 0), 24)
        .unwrap()
        .exact("vrf", 0u8)
        .unwrap()
        // The entry has its parameters in the order of declaration.
        .action(
            "forward",
            &[
                ("dst_mac", [0, 0, 0, 0, 1, 2].into()),
                ("port", 256u64.into()),
            ],
        )
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(
        text::print(&entry),
        text::print(
            &text::parse::<v1::TableEntry>(
                r#"table_id: 33554434
                match { field_id: 1 exact { value: "\000" } }
                match { field_id: 2 lpm { value: "\012\001\000" prefix_len: 24 } }
                action { action {
                    action_id: 16777217
                    params { param_id: 1 value: "\001\000" }
                    params { param_id: 2 value: "\001\002" }
                } }"#
            )
            .unwrap()
        )
    );
}

#[test]
fn every_kind_of_match_is_built() {
    let names = names();
    let entry = filter(&names)
        .ternary("src_addr", 0x0a00_0000u32, 0xff00_0000u32)
        .unwrap()
        .range("dst_port", 1024u16, 2047u16)
        .unwrap()
        .optional("vlan", 7u16)
        .unwrap()
        .action("drop", &[]);
    // `drop` may only be the default action.
    assert_eq!(
        entry.unwrap_err().to_string(),
        "table \"Ingress.acl.filter\": action \"Ingress.routing.drop\" may not be used in entries \
         other than the default"
    );

    let key = filter(&names)
        .ternary("src_addr", 0x0a00_0000u32, 0xff00_0000u32)
        .unwrap()
        .range("dst_port", 1024u16, 2047u16)
        .unwrap()
        .optional("vlan", 7u16)
        .unwrap()
        .key()
        .unwrap();
    assert_eq!((key.priority, &key.action), (10, &None));
    let matches: Vec<_> = key
        .r#match
        .iter()
        .map(|m| (m.field_id, m.field_match_type.as_ref().unwrap()))
        .collect();
    assert_eq!(
        matches.iter().map(|(id, _)| *id).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    let [
        (_, FieldMatchType::Exact(port)),
        (_, FieldMatchType::Ternary(src)),
        ..,
    ] = &matches[..]
    else {
        panic!("{matches:?}");
    };
    assert_eq!(port.value, [5]);
    assert_eq!(
        (&src.value[..], &src.mask[..]),
        (&[10, 0, 0, 0][..], &[255, 0, 0, 0][..])
    );
    let [
        ..,
        (_, FieldMatchType::Range(range)),
        (_, FieldMatchType::Optional(vlan)),
        _,
    ] = &matches[..]
    else {
        panic!("{matches:?}");
    };
    assert_eq!(
        (&range.low[..], &range.high[..]),
        (&[4, 0][..], &[7, 255][..])
    );
    assert_eq!(vlan.value, [7]);
}

#[test]
fn fields_that_match_anything_are_omitted() {
    let names = names();
    let key = filter(&names)
        .ternary("src_addr", 0u32, 0u32)
        .unwrap()
        .range("dst_port", 0u16, u16::MAX)
        .unwrap()
        .key()
        .unwrap();
    assert_eq!(
        key.r#match.iter().map(|m| m.field_id).collect::<Vec<_>>(),
        [1, 5]
    );

    let route = names.table("route").unwrap();
    let default = route
        .entry()
        .exact("vrf", 1u8)
        .unwrap()
        .lpm("dst_addr", 0u32, 0)
        .unwrap();
    assert_eq!(default.key().unwrap().r#match.len(), 1);
}

#[test]
fn the_default_entry_has_an_action_and_no_key() {
    let names = names();
    let filter = names.table("filter").unwrap();
    let entry = filter
        .default_entry()
        .action("drop", &[])
        .unwrap()
        .build()
        .unwrap();
    assert!(entry.is_default_action && entry.r#match.is_empty());
    assert_eq!(action(&entry).action_id, 16777218);

    let keyed = filter.default_entry().exact("port", 1u8).unwrap().key();
    assert_eq!(
        keyed.unwrap_err().to_string(),
        "table \"Ingress.acl.filter\": key or priority in the default entry, expected neither"
    );
    let scoped = filter.default_entry().action("label", &[]).unwrap_err();
    assert!(
        scoped
            .to_string()
            .ends_with("\"Ingress.acl.label\" may not be used in the default entry")
    );
}

#[test]
fn errors_for_invalid_keys_name_valid_values() {
    let names = names();
    let filter_table = names.table("filter").unwrap();
    let route = names.table("route").unwrap();
    let text = |result: Result<EntryBuilder<'_>, EntryError>| result.unwrap_err().to_string();

    assert_eq!(
        text(route.entry().exact("dst_adr", 1u8)),
        r#"table "Ingress.routing.route" has no match field "dst_adr"; there are "dst_addr", "vrf""#
    );
    assert_eq!(
        text(route.entry().exact("dst_addr", 1u8)),
        r#"table "Ingress.routing.route": "dst_addr" is matched lpm, not exact"#
    );
    assert_eq!(
        text(route.entry().exact("vrf", 1024u16)),
        r#"table "Ingress.routing.route": "vrf" has 10 bits, too few for 0x0400"#
    );
    assert_eq!(
        text(
            route
                .entry()
                .lpm("dst_addr", Ipv4Addr::new(10, 0, 1, 5), 24)
        ),
        r#"table "Ingress.routing.route": "dst_addr" is 0x0a000105, with bits outside its /24 prefix; inside it is 0x0a000100"#
    );
    assert_eq!(
        text(route.entry().lpm("dst_addr", 0u32, 33)),
        r#"table "Ingress.routing.route": "dst_addr" has 32 bits, too few for a prefix of 33"#
    );
    assert_eq!(
        text(
            filter_table
                .entry()
                .ternary("src_addr", 0x0a01u16, 0xff00u16)
        ),
        r#"table "Ingress.acl.filter": "src_addr" is 0x0a01, with bits outside mask 0xff00; inside it is 0x0a00"#
    );
    assert_eq!(
        text(filter_table.entry().range("dst_port", 256u16, 255u16)),
        r#"table "Ingress.acl.filter": "dst_port": range 0x0100 to 0xff is empty, expected low <= high"#
    );
    assert_eq!(
        text(route.entry().exact("vrf", 1u8).unwrap().exact("vrf", 1u8)),
        r#"table "Ingress.routing.route": "vrf" is given twice"#
    );
    // Also if the first match was a wildcard.
    assert_eq!(
        text(
            route
                .entry()
                .lpm("dst_addr", 0u8, 0)
                .unwrap()
                .lpm("dst_addr", 0u8, 0)
        ),
        r#"table "Ingress.routing.route": "dst_addr" is given twice"#
    );
    let ecmp = names.table("ecmp").unwrap();
    assert_eq!(
        text(ecmp.entry().exact("name", 1u8)),
        r#"table "Ingress.ecmp": the values of "name" are not numbers to the control plane"#
    );
    assert_eq!(
        text(ecmp.entry().exact("hash", 1u8)),
        r#"table "Ingress.ecmp": "hash" is matched bloom, not exact"#
    );
}

#[test]
fn incomplete_entries_are_refused() {
    let names = names();
    let filter_table = names.table("filter").unwrap();
    let text = |result: Result<v1::TableEntry, EntryError>| result.unwrap_err().to_string();

    assert_eq!(
        text(filter_table.entry().priority(1).key()),
        r#"table "Ingress.acl.filter": no value for "port", "session""#
    );
    assert_eq!(
        text(filter(&names).priority(0).key()),
        r#"table "Ingress.acl.filter": priority 0; ternary, range and optional fields need one above 0"#
    );
    assert_eq!(
        text(filter(&names).priority(-1).key()),
        r#"table "Ingress.acl.filter": priority -1; ternary, range and optional fields need one above 0"#
    );
    let route = names.table("route").unwrap();
    assert_eq!(
        text(route.entry().exact("vrf", 1u8).unwrap().priority(1).key()),
        r#"table "Ingress.routing.route": priority 1; without ternary, range or optional fields it has to be 0"#
    );
    assert_eq!(
        text(route.entry().exact("vrf", 1u8).unwrap().build()),
        r#"table "Ingress.routing.route": the entry has no action, expected one"#
    );
}

#[test]
fn wrong_actions_are_refused() {
    let names = names();
    let route = names.table("route").unwrap();
    let text = |name: &str, values: &[(&str, Bytestring)]| {
        route.entry().action(name, values).unwrap_err().to_string()
    };
    // The action exists, but not in this table.
    assert_eq!(
        text("label", &[]),
        r#"table "Ingress.routing.route" has no action "label"; there are "Ingress.routing.drop", "Ingress.routing.forward""#
    );
    assert_eq!(
        text("forward", &[("prot", 1u8.into())]),
        r#"action "Ingress.routing.forward" has no parameter "prot"; there are "port", "dst_mac""#
    );
    assert_eq!(
        text("forward", &[("port", 1u8.into())]),
        r#"action "Ingress.routing.forward": no value for "dst_mac""#
    );
    let twice = [
        ("port", 1u8.into()),
        ("dst_mac", 2u8.into()),
        ("port", 3u8.into()),
    ];
    assert_eq!(
        text("forward", &twice),
        r#"action "Ingress.routing.forward": "port" is given twice"#
    );
    let wide = [("port", 512u16.into()), ("dst_mac", 2u8.into())];
    assert_eq!(
        text("forward", &wide),
        r#"action "Ingress.routing.forward": "port" has 9 bits, too few for 0x0200"#
    );
    assert_eq!(
        names
            .table("ecmp")
            .unwrap()
            .entry()
            .action("forward", &[])
            .unwrap_err()
            .to_string(),
        r#"table "Ingress.ecmp" has an action profile: expected a member, a group or a set, not an action"#
    );
}

#[test]
fn indices_of_cells_are_checked() {
    let names = names();
    let received = names.counter("Ingress.received").unwrap();
    assert_eq!(
        (received.size, received.unit),
        (4, counter_spec::Unit::Both)
    );
    let cell = received.cell(3).unwrap();
    assert_eq!(
        (cell.counter_id, cell.index),
        (301989889, Some(v1::Index { index: 3 }))
    );
    assert_eq!(
        received.cell(4).unwrap_err().to_string(),
        r#"counter "Ingress.received": there is no cell 4, expected 0 to 3"#
    );
    assert_eq!(received.cells().index, None);

    let rate = names.meter("rate").unwrap();
    assert_eq!(rate.unit, meter_spec::Unit::Bytes);
    assert_eq!(rate.cell(7).unwrap().meter_id, 335544321);
    assert!(rate.cell(8).is_err() && rate.cells().meter_id == rate.id);

    let lost = names.register("lost").unwrap();
    assert_eq!(lost.cell(15).unwrap().register_id, 369098753);
    assert!(lost.cell(u64::MAX).is_err() && lost.cells().register_id == lost.id);
}

#[test]
fn controller_headers_are_packed_and_read() {
    let names = names();
    let header = names.controller_header("packet_in").unwrap();
    let metadata = header
        .pack(&[("reason", 3u8.into()), ("ingress_port", 300u16.into())])
        .unwrap();
    assert_eq!(header.read(&metadata, "ingress_port"), Ok(300u16.into()));
    assert_eq!(header.read(&metadata, "reason"), Ok(3u8.into()));
    assert_eq!(
        header
            .pack(&[("reason", 128u8.into()), ("ingress_port", 1u8.into())])
            .unwrap_err()
            .to_string(),
        r#"controller header "packet_in": "reason" has 7 bits, too few for 0x80"#
    );
    assert!(matches!(
        header.read(&metadata[..1], "reason"),
        Err(ReadError::Missing { .. })
    ));
    let empty = v1::PacketMetadata {
        metadata_id: 2,
        value: vec![],
    };
    assert!(matches!(
        header.read(&[empty], "reason"),
        Err(ReadError::Invalid {
            source: BytestringError::Empty,
            ..
        })
    ));
    assert!(names.controller_header("packet_out").is_err());
}

#[test]
fn digests_are_read_by_member() {
    let names = names();
    let digest = names.digest("loss_t").unwrap();
    let widths: Vec<_> = digest
        .members
        .iter()
        .map(|member| member.bitwidth)
        .collect();
    assert_eq!(widths, [16, 32, 4, 0, 0]);

    let data = |data| P4Data { data: Some(data) };
    let bits = |bytes: &[u8]| data(p4_data::Data::Bitstring(bytes.to_vec()));
    let members = vec![
        bits(&[0x01, 0x02]),
        bits(&[9]),
        data(p4_data::Data::EnumValue(vec![1])),
        data(p4_data::Data::Bool(true)),
    ];
    let message = data(p4_data::Data::Struct(v1::P4StructLike { members }));
    assert_eq!(digest.read(&message, "job"), Ok(258u16.into()));
    assert_eq!(digest.read(&message, "port"), Ok(9u8.into()));
    assert_eq!(digest.read(&message, "cause"), Ok(1u8.into()));
    assert!(matches!(
        digest.read(&message, "flagged"),
        Err(ReadError::NotANumber { .. })
    ));
    assert!(matches!(
        digest.read(&message, "nothing"),
        Err(ReadError::Unknown(_))
    ));

    let short = data(p4_data::Data::Struct(v1::P4StructLike::default()));
    assert!(matches!(
        digest.read(&short, "job"),
        Err(ReadError::Missing { .. })
    ));
    assert!(matches!(
        digest.read(&bits(&[1]), "job"),
        Err(ReadError::Missing { .. })
    ));

    let config = v1::digest_entry::Config {
        max_list_size: 1,
        ..Default::default()
    };
    assert_eq!(digest.entry(config).digest_id, 385875969);
}

#[test]
fn names_are_found_by_id() {
    let names = names();
    assert_eq!(
        names.tables.by_id(33554434).unwrap().name,
        "Ingress.routing.route"
    );
    assert_eq!(
        names.actions.by_id(16777218).unwrap().name,
        "Ingress.routing.drop"
    );
    assert!(names.counters.by_id(1).is_none());
    let wildcard = names.table("route").unwrap().all_entries();
    assert_eq!(
        wildcard,
        v1::TableEntry {
            table_id: 33554434,
            ..Default::default()
        }
    );
}

#[test]
fn contradictions_in_a_p4info_are_refused() {
    let text = |from, to| refused(from, to).to_string();
    assert_eq!(
        text(
            "action_refs { id: 16777217 }",
            "action_refs { id: 16777299 }"
        ),
        r#"table "Ingress.acl.filter" refers to an action with id 16777299, which the P4Info does not have"#
    );
    assert_eq!(
        text(
            "bitwidth: 9 match_type: EXACT",
            "bitwidth: -9 match_type: EXACT"
        ),
        r#"table "Ingress.acl.filter": the width of "port" is -9, which is negative"#
    );
    assert_eq!(
        text("match_type: TERNARY", ""),
        r#"table "Ingress.acl.filter": match field "src_addr" has no match type"#
    );
    assert_eq!(
        text("{ id: 2 name: \"src_addr\"", "{ id: 1 name: \"src_addr\""),
        r#"table "Ingress.acl.filter": id 1 is given twice, expected unique ids"#
    );
    assert_eq!(
        text(
            "params { id: 2 name: \"dst_mac\"",
            "params { id: 1 name: \"dst_mac\""
        ),
        r#"action "Ingress.routing.forward": id 1 is given twice, expected unique ids"#
    );
    assert_eq!(
        text("{ id: 2 name: \"src_addr\"", "{ id: 0 name: \"src_addr\""),
        r#"table "Ingress.acl.filter": "src_addr" has id 0, expected at least 1"#
    );
    assert_eq!(
        text(
            "params { id: 2 name: \"dst_mac\"",
            "params { name: \"dst_mac\""
        ),
        r#"action "Ingress.routing.forward": "dst_mac" has id 0, expected at least 1"#
    );
    // A table and a digest.
    assert_eq!(
        text("id: 385875969", "id: 33554434"),
        r#"digest "loss_t": id 33554434 is given twice, expected unique ids"#
    );
    assert_eq!(
        text("size: 4", "size: -4"),
        r#"counter "Ingress.received": the size is -4, which is negative"#
    );
    assert_eq!(
        text("struct { name: \"loss_t\" }", "struct { name: \"gain_t\" }"),
        r#"digest "loss_t" has type "gain_t", which the P4Info does not describe"#
    );
}

#[test]
fn the_p4info_of_ultima_survives_text_format_and_has_names() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../p4/compiled/v1model/ultima.p4info.txtpb"
    );
    let p4info: P4Info = text::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(
        text::parse::<P4Info>(&text::print(&p4info)),
        Ok(p4info.clone())
    );

    let names = Names::new(p4info.clone()).unwrap();
    assert_eq!(names.p4info(), &p4info);
    assert_eq!(names.tables.iter().count(), p4info.tables.len());
    for table in &names.tables {
        assert!(!table.actions.is_empty(), "{}", table.name);
    }
}

#[test]
fn entries_refer_to_members_groups_and_sets() {
    let names = names();
    let ways = names.action_profile("ways").unwrap();
    assert!(ways.has_selector && ways.size == 64);
    let values = [
        ("port", 3u16.into()),
        ("dst_mac", [2, 0, 0, 0, 0, 1].into()),
    ];
    let member = ways.member(7, "forward", &values).unwrap();
    assert_eq!((member.action_profile_id, member.member_id), (285212673, 7));
    let call = member.action.clone().unwrap();
    assert_eq!((call.action_id, call.params.len()), (16777217, 2));
    assert_eq!(
        ways.member(7, "drop", &[]).unwrap_err().to_string(),
        r#"action profile "Ingress.ways" has no action "drop"; there is "Ingress.routing.forward""#
    );
    let group = ways.group(9, [(7, 2), (8, 1)]);
    assert_eq!((group.group_id, group.members[0].weight), (9, 2));

    let hop = names.table("hop").unwrap();
    let entry = |vrf: u16| hop.entry().exact("vrf", vrf).unwrap();
    let kind = |entry: EntryBuilder| entry.build().unwrap().action.unwrap().r#type.unwrap();
    assert_eq!(
        kind(entry(1).member(7).unwrap()),
        table_action::Type::ActionProfileMemberId(7)
    );
    assert_eq!(
        kind(entry(1).group(9).unwrap()),
        table_action::Type::ActionProfileGroupId(9)
    );
    let set = kind(entry(1).one_shot([(call, 5)]).unwrap());
    let table_action::Type::ActionProfileActionSet(set) = set else {
        panic!("{set:?}");
    };
    assert_eq!(set.action_profile_actions[0].weight, 5);
    let refused = entry(1).action("forward", &values).unwrap_err();
    assert!(matches!(refused, EntryError::Indirect { .. }), "{refused}");
    let refused = filter(&names).member(7).unwrap_err();
    assert_eq!(
        refused.to_string(),
        r#"table "Ingress.acl.filter" has no action profile: expected an action, not a member, a group or a set"#
    );
}

#[test]
fn members_of_value_sets_are_built_like_keys() {
    let names = names();
    let tunnels = names.value_set("Parser.tunnels").unwrap();
    let member = |value: u16| tunnels.member().exact("", value).unwrap();
    let entry = tunnels.entry([member(0x22f3), member(0x893b)]).unwrap();
    assert_eq!((entry.value_set_id, entry.members.len()), (50331649, 2));
    let flows = names.value_set("flows").unwrap();
    let masked = flows.member().ternary("tag", 4u8, 6u8).unwrap();
    let member = masked.exact("port", 80u16).unwrap().build().unwrap();
    assert_eq!(
        member
            .iter()
            .map(|field| field.field_id)
            .collect::<Vec<_>>(),
        [1, 2]
    );
    assert_eq!(
        flows.entry([flows.member()]).unwrap_err().to_string(),
        r#"value set "Parser.flows": no value for "port""#
    );
    assert_eq!(flows.all_members().value_set_id, flows.id);
}
