//! Traces of the test programs, frame by frame, without a running switch.

use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session, multicast_group};
use ultima_p4runtime::text as p4text;
use ultima_p4runtime::v1::{Entity, TableEntry, Update, WriteRequest};
use ultima_switch::ProgramFiles;
use ultima_switch::engine::{DropCause, Limits};
use ultima_switch::trace::{
    Bench, BenchError, Fate, MAX_COPIES, MAX_EVENTS, Origin, PacketTrace, Step, VERSION,
};

macro_rules! program {
    ($name:literal) => {
        ProgramFiles {
            json: include_bytes!(concat!("../programs/", $name, ".json")).to_vec(),
            p4info: Some(include_str!(concat!("../programs/", $name, ".p4info.txtpb")).to_owned()),
        }
    };
}

fn bench(files: ProgramFiles) -> (Bench, Names) {
    let names = Names::new(p4text::parse(files.p4info.as_deref().unwrap()).unwrap()).unwrap();
    (Bench::new(files, Limits::default()).unwrap(), names)
}

fn write(bench: &mut Bench, entities: Vec<Entity>) {
    let request = WriteRequest {
        updates: entities.into_iter().map(Update::insert).collect(),
        ..WriteRequest::default()
    };
    bench.write(request).unwrap();
}

fn group(id: u32, replicas: &[(u32, u32)]) -> Entity {
    let replicas = replicas
        .iter()
        .map(|&(port, instance)| Replica { port, instance });
    multicast_group(id, replicas).unwrap().into()
}

fn session(id: u32, replicas: &[(u32, u32)]) -> Entity {
    let replicas = replicas
        .iter()
        .map(|&(port, instance)| Replica { port, instance });
    clone_session(id, replicas).unwrap().into()
}

/// Traces a frame, and checks that the trace survives conversion to JSON and back.
fn trace(bench: &mut Bench, port: u16, frame: &[u8]) -> PacketTrace {
    let trace = bench.trace(port, frame).unwrap();
    assert_eq!((trace.version, trace.port), (VERSION, port));
    assert_eq!(trace.frame.0, frame);
    let json = serde_json::to_string(&trace).unwrap();
    assert_eq!(serde_json::from_str::<PacketTrace>(&json).unwrap(), trace);
    trace
}

/// The texts of a copy's events.
fn events_of(trace: &PacketTrace, copy: u16) -> Vec<&str> {
    let steps = trace.events.iter().filter(|step| step.copy == copy);
    steps.map(|step| step.text.as_str()).collect()
}

/// The first event whose text begins with `start`.
fn step_of<'a>(trace: &'a PacketTrace, start: &str) -> &'a Step {
    let mut steps = trace.events.iter();
    let found = steps.find(|step| step.text.starts_with(start));
    found.unwrap_or_else(|| panic!("{start:?} is not in\n{trace}"))
}

/// The lines of a table's lookup.
fn lookup<'a>(trace: &'a PacketTrace, table: &str) -> Vec<&'a str> {
    step_of(trace, &format!("table {table}: "))
        .text
        .lines()
        .collect()
}

/// A frame of the program `testbed` with a probe.
fn probe(dst: u64, payload: usize) -> Vec<u8> {
    let mut frame = dst.to_be_bytes()[2..].to_vec();
    frame.extend([2, 0, 0, 0, 0, 0xaa, 0x88, 0xb5, 7, 0, 0, 0, 9]);
    frame.resize(19 + payload, 0xee);
    frame
}

fn entry(names: &Names, table: &str, key: u64, action: &str, params: &[(&str, u64)]) -> TableEntry {
    let table = names.table(table).unwrap();
    let params: Vec<(&str, Bytestring)> = params
        .iter()
        .map(|(name, value)| (*name, (*value).into()))
        .collect();
    let entry = table.entry().exact("hdr.ethernet.dst", key).unwrap();
    entry.action(action, &params).unwrap().build().unwrap()
}

#[test]
fn a_unicast_packet_from_parser_to_wire() {
    let (mut bench, names) = bench(program!("testbed"));
    let forward = entry(
        &names,
        "IngressPipe.forward",
        1,
        "IngressPipe.send",
        &[("port", 4)],
    );
    write(&mut bench, vec![forward.into()]);
    let frame = probe(1, 3);
    let trace = trace(&mut bench, 3, &frame);
    assert!(trace.complete && trace.dropped.is_none(), "{trace}");
    let count = step_of(&trace, "count ");
    let source = count.source.as_ref().unwrap();
    assert_eq!((source.file.as_str(), source.line), ("testbed.p4", 119));
    assert!(source.text.starts_with("received.count("), "{source:?}");
    let [copy] = trace.copies.as_slice() else {
        panic!("{trace}")
    };
    assert_eq!((copy.copy, copy.of, copy.port, copy.rid), (1, 0, 4, 0));
    assert_eq!((copy.origin, copy.fate), (Origin::Unicast, Fate::Left));
    assert_eq!(copy.frame.as_ref().unwrap().0, frame);
    let page = trace.to_string();
    let mut lines = page.lines();
    // In this order.
    for line in [
        "22 bytes at port 3, 0.000000 s",
        "    0010  00 00 09 ee ee ee",
        "  ingress from port 3",
        "    state start at byte 0",
        "      extract ethernet, 14 bytes: dst=0x1 src=0x200000000aa type=0x88b5",
        "      select ethernet.type=0x88b5: 0x88b5, go to probe",
        "    state probe at byte 14",
        "      extract probe, 5 bytes: kind=0x7 number=0x9",
        "      go to accept",
        "    parsed 19 bytes, 3 bytes of payload",
        "    statements  [testbed.p4:119]",
        "      count IngressPipe.received[0x3]: 1 packet, 22 bytes  [testbed.p4:119]",
        "    table IngressPipe.acl: miss  [testbed.p4:86]",
        "      hdr.ethernet.src = 0x200000000aa (ternary)",
        "      hdr.ethernet.type = 0x88b5 (range)",
        "      hdr.probe.$valid$ = 0x1 (optional)",
        "    table IngressPipe.forward: hit  [testbed.p4:69]",
        "      hdr.ethernet.dst = 0x1 (exact 0x1)",
        "      counter 1 packet, 22 bytes",
        "      action IngressPipe.send(port=0x4)",
        "    if hdr.probe.isValid(): true  [testbed.p4:125]",
        "      write IngressPipe.last_number[0x0]: 0x0 -> 0x9  [testbed.p4:126]",
        "    copy 1 to port 4, unicast",
        "copy 1: to port 4, unicast",
        "  deparser: ethernet + probe + 3 bytes of payload = 22 bytes",
        "  left the port",
        "    0010  00 00 09 ee ee ee",
    ] {
        assert!(
            lines.any(|found| found == line),
            "no line {line:?} in\n{page}"
        );
    }
    let written = step_of(&trace, "standard_metadata.egress_spec: ");
    assert_eq!(written.text, "standard_metadata.egress_spec: 0x0 -> 0x4");
}

#[test]
fn every_match_kind_is_traced() {
    let (mut bench, names) = bench(program!("testbed"));
    let acl = names.table("IngressPipe.acl").unwrap();
    let entry = acl
        .entry()
        .ternary("hdr.ethernet.src", 0xa0u8, 0xf0u8)
        .unwrap();
    let entry = entry
        .range("hdr.ethernet.type", 0x8000u16, 0x9000u16)
        .unwrap();
    let entry = entry
        .priority(5)
        .action("IngressPipe.deny", &[])
        .unwrap()
        .build()
        .unwrap();
    let metered = names.table("IngressPipe.metered").unwrap();
    let prefix = metered
        .entry()
        .lpm("hdr.ethernet.src", 0x0200_0000_0000u64, 8)
        .unwrap();
    let prefix = prefix
        .action("IngressPipe.watch", &[])
        .unwrap()
        .build()
        .unwrap();
    write(&mut bench, vec![prefix.into()]);
    let found = trace(&mut bench, 3, &probe(1, 0));
    let found = lookup(&found, "IngressPipe.metered");
    assert_eq!(
        found[..2],
        [
            "table IngressPipe.metered: hit",
            "  hdr.ethernet.src = 0x200000000aa (lpm 0x20000000000/8)"
        ]
    );

    write(&mut bench, vec![entry.into()]);
    let denied = trace(&mut bench, 3, &probe(1, 0));
    assert_eq!(
        lookup(&denied, "IngressPipe.acl"),
        [
            "table IngressPipe.acl: hit, priority 5",
            "  hdr.ethernet.src = 0x200000000aa (ternary 0xa0 &&& 0xf0)",
            "  hdr.ethernet.type = 0x88b5 (range 0x8000..0x9000)",
            "  hdr.probe.$valid$ = 0x1 (optional)",
            "  action IngressPipe.deny()",
        ]
    );
    // `exit` ends ingress: the next table is never applied.
    let events = events_of(&denied, 0);
    assert!(events.contains(&"exit()"), "{denied}");
    let later = |event: &&str| event.starts_with("table IngressPipe.metered");
    assert!(!events.iter().any(later), "{denied}");
    assert_eq!(denied.dropped, Some(DropCause::Program));
}

#[test]
fn parser_errors_select_and_lookahead() {
    let (mut bench, _) = bench(program!("parsing"));
    for (frame, start) in [
        (&[3, 10, 0xff][..], "parser error TooMany at byte 2"),
        (&[3], "parser error PacketTooShort at byte 0"),
        (
            &[1, 0, 2, 4, 6, 8],
            "parser error StackOutOfBounds at byte 5",
        ),
        (&[5, 16, 1, 2, 3], "advance 2 bytes"),
    ] {
        step_of(&trace(&mut bench, 1, frame), start);
    }
    let masked = trace(&mut bench, 1, &[0x83, 0x12, 0x77]);
    let select = &step_of(&masked, "select ").text;
    assert!(
        select.ends_with(": 0x8002 &&& 0xf003, go to behind"),
        "{select}"
    );
    let ahead = trace(&mut bench, 1, &[4, 0, 0x12, 0x34]);
    let writes = |event: &&str| event.contains("ahead: ") && event.ends_with(" -> 0x1234");
    assert!(events_of(&ahead, 0).iter().any(writes), "{ahead}");
}

#[test]
fn value_sets_are_named() {
    let (mut bench, _) = bench(program!("value_sets"));
    let entries = "updates { type: MODIFY entity { value_set_entry { value_set_id: 66286720
        members { match { field_id: 1 exact { value: \"\\x09\" } } } } } }";
    bench.write(p4text::parse(entries).unwrap()).unwrap();
    let mut cases = |kind: u8| -> Vec<String> {
        let traced = trace(&mut bench, 1, &[1, kind, 0, 0, 0, 0]);
        let selects = events_of(&traced, 0).into_iter();
        let selects = selects.filter_map(|text| text.strip_prefix("select ")?.split_once(": "));
        selects.map(|(_, case)| case.to_owned()).collect()
    };
    let by_kind = "0x01, go to by_kind";
    assert_eq!(
        cases(9)[..2],
        [by_kind, "value set Read.kinds, go to found_kind"]
    );
    assert_eq!(cases(8)[..2], [by_kind, "default, go to missed"]);
}

/// A frame for the program `copies`, whose header `orders` selects what the program does.
fn orders(order: u8, argument: u8, value: u32) -> Vec<u8> {
    let mut frame = vec![order, argument, 0, 2];
    frame.extend(value.to_be_bytes());
    frame.extend([0xaa, 0xbb]);
    frame
}

#[test]
fn replicas_and_clones_are_traced_one_by_one() {
    let (mut bench, _) = bench(program!("copies"));
    write(
        &mut bench,
        vec![group(7, &[(5, 1), (6, 2)]), session(3, &[(8, 9)])],
    );
    let multicast = trace(&mut bench, 1, &orders(3, 7, 5));
    let copies: Vec<_> = multicast
        .copies
        .iter()
        .map(|copy| (copy.port, copy.rid, copy.origin, copy.fate))
        .collect();
    let origin = Origin::Multicast { group: 7 };
    assert_eq!(
        copies,
        [(6, 2, origin, Fate::Left), (5, 1, origin, Fate::Left)]
    );
    // Each copy writes its RID into its frame.
    for (copy, rid) in [(1, 2), (2, 1)] {
        let events = events_of(&multicast, copy);
        let written = format!("copy.rid: 0x0 -> {rid:#x}");
        assert!(events.contains(&written.as_str()), "{multicast}");
    }

    let clone = trace(&mut bench, 1, &orders(2, 3, 5));
    let copies: Vec<_> = clone
        .copies
        .iter()
        .map(|copy| (copy.of, copy.port, copy.origin))
        .collect();
    let origin = Origin::Clone { session: 3 };
    assert_eq!(copies, [(0, 8, origin), (0, 2, Origin::Unicast)]);
    // The clone is parsed from the received frame, which is not a second pass.
    let passes = events_of(&clone, 0)
        .into_iter()
        .filter(|event| event.starts_with("ingress from"));
    assert_eq!(passes.count(), 1);

    let egress = trace(&mut bench, 1, &orders(20, 3, 5));
    let copies: Vec<_> = egress
        .copies
        .iter()
        .map(|copy| (copy.of, copy.port, copy.origin))
        .collect();
    assert_eq!(copies, [(0, 2, Origin::Unicast), (1, 8, origin)]);

    let nowhere = trace(&mut bench, 1, &orders(2, 4, 5));
    assert!(events_of(&nowhere, 0).contains(&"no clone session 4: no clone"));
    assert_eq!(nowhere.copies.len(), 1);
}

#[test]
fn resubmitted_and_recirculated_packets_are_traced() {
    let (mut bench, _) = bench(program!("copies"));
    let again = trace(&mut bench, 1, &orders(4, 2, 5));
    let mut arrivals = events_of(&again, 0);
    arrivals.retain(|event| event.contains("ingress"));
    let resubmitted = "resubmitted: ingress again, 10 bytes";
    assert_eq!(arrivals, ["ingress from port 1", resubmitted, resubmitted]);
    let round = trace(&mut bench, 1, &orders(21, 2, 5));
    let fates: Vec<_> = round
        .copies
        .iter()
        .map(|copy| (copy.of, copy.fate))
        .collect();
    assert_eq!(
        fates,
        [
            (0, Fate::Recirculated),
            (1, Fate::Recirculated),
            (2, Fate::Left)
        ]
    );
    let again = |event: &&str| event.starts_with("recirculated: ingress again, ");
    assert!(events_of(&round, 1).iter().any(again), "{round}");
}

#[test]
fn drops_have_a_cause() {
    let (mut bench, _) = bench(program!("copies"));
    let dropped = |bench: &mut Bench, frame: Vec<u8>| trace(bench, 1, &frame).dropped;
    assert_eq!(
        dropped(&mut bench, orders(0, 0, 0)),
        Some(DropCause::Program)
    );
    assert_eq!(
        dropped(&mut bench, orders(3, 9, 0)),
        Some(DropCause::EmptyGroup)
    );
    assert_eq!(
        dropped(&mut bench, orders(12, 0, 0)),
        Some(DropCause::Assertion)
    );
    let egress = trace(&mut bench, 1, &orders(22, 0, 0));
    assert_eq!(egress.dropped, None);
    assert_eq!(
        (egress.copies[0].fate, egress.copies[0].cause),
        (Fate::Dropped, Some(DropCause::Program))
    );
    assert_eq!(egress.copies[0].frame, None);
}

#[test]
fn loops_end_at_the_limits_and_are_traced() {
    let (mut copies, _) = bench(program!("copies"));
    let jumps = trace(&mut copies, 1, &orders(13, 255, 100_000));
    assert_eq!(jumps.dropped, Some(DropCause::JumpLimit));
    assert!(!jumps.complete && jumps.omitted > 0);
    assert!(jumps.events.len() <= MAX_EVENTS + 1);
    step_of(&jumps, "dropped: limit of jumps in actions reached");
    let passes = trace(&mut copies, 1, &orders(4, 255, 0));
    assert_eq!(passes.dropped, Some(DropCause::PassLimit));

    let (mut parsing, _) = bench(program!("parsing"));
    let states = trace(&mut parsing, 1, &[6, 0]);
    assert_eq!(states.dropped, Some(DropCause::ParserLimit));
    assert!(states.copies.is_empty());
}

#[test]
fn too_many_copies_are_not_followed() {
    let (mut bench, _) = bench(program!("copies"));
    let replicas: Vec<_> = (1..=u32::from(MAX_COPIES) + 3)
        .map(|rid| (5, rid))
        .collect();
    write(&mut bench, vec![group(7, &replicas)]);
    let traced = trace(&mut bench, 1, &orders(3, 7, 5));
    assert_eq!(traced.copies.len(), usize::from(MAX_COPIES));
    assert!(traced.copies.iter().all(|copy| copy.fate == Fate::Left));
    assert!(!traced.complete);
}

#[test]
fn counters_meters_and_registers_are_traced() {
    let (mut bench, _) = bench(program!("copies"));
    for (frame, start) in [
        (orders(7, 2, 5), "read Serve."),
        (orders(14, 2, 5), "log: value 5 of port 2"),
        (orders(8, 2, 5), "hash "),
        (orders(6, 2, 5), "meter Serve.speed[0x2]: green"),
    ] {
        step_of(&trace(&mut bench, 1, &frame), start);
    }
    let outside = trace(&mut bench, 1, &orders(7, 200, 5));
    let read = &step_of(&outside, "read ").text;
    assert!(read.ends_with("[0xc8]: no such cell"), "{read}");
    let cut = trace(&mut bench, 1, &orders(5, 4, 5));
    let step = step_of(&cut, "deparser: ");
    assert!(
        step.text.contains(", truncated by ") && step.text.ends_with(" = 4 bytes"),
        "{cut}"
    );
    assert_eq!(cut.copies[0].frame.as_ref().unwrap().0.len(), 4);
}

#[test]
fn digests_show_their_values() {
    let (mut bench, names) = bench(program!("controller"));
    let digest = names.digest("sighting_t").unwrap();
    let digest = digest.entry(Default::default()).digest_id;
    let sources = names.table("IngressPipe.sources").unwrap();
    let entry = sources
        .entry()
        .exact("hdr.ethernet.src", 0x0200_0000_00aau64);
    let entry = entry.unwrap().action("IngressPipe.learn", &[]).unwrap();
    write(&mut bench, vec![entry.build().unwrap().into()]);
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xaa, 0x08, 0x00];
    frame.resize(60, 0);
    let traced = trace(&mut bench, 3, &frame);
    let expected = format!("digest {digest}: 0x200000000aa 0x3");
    assert!(
        events_of(&traced, 0).contains(&expected.as_str()),
        "{traced}"
    );
}

#[test]
fn invalid_requests_are_rejected() {
    let (mut bench, names) = bench(program!("testbed"));
    let error = bench.trace(511, &[0; 60]).unwrap_err();
    assert_eq!(error.to_string(), "port 511: expected 0 to 510");
    let good = entry(
        &names,
        "IngressPipe.forward",
        1,
        "IngressPipe.send",
        &[("port", 4)],
    );
    let mut wrong = good.clone();
    wrong.table_id = 1;
    let updates = vec![Update::insert(good), Update::insert(wrong)];
    let request = WriteRequest {
        updates,
        ..WriteRequest::default()
    };
    let error = bench.write(request).unwrap_err();
    assert!(
        matches!(error, BenchError::Update { number: 2, .. }),
        "{error}"
    );
}

#[test]
fn lookups_name_the_member_or_group_of_an_action_profile() {
    let (mut bench, names) = bench(program!("profiles"));
    let spread = names.action_profile("spread").unwrap();
    let member = spread.member(7, "answer", &[("number", 42u8.into())]);
    let entry = |key: u8| {
        let table = names.table("spread_exact").unwrap();
        table.entry().exact("hdr.ask.key", key).unwrap()
    };
    let entities = vec![
        member.unwrap().into(),
        spread.group(3, [(7, 1)]).into(),
        spread.group(4, []).into(),
        entry(1).member(7).unwrap().build().unwrap().into(),
        entry(2).group(3).unwrap().build().unwrap().into(),
        entry(3).group(4).unwrap().build().unwrap().into(),
    ];
    write(&mut bench, entities);
    for (key, end) in [
        (1, ["  member 7", "  action Choose.answer(number=0x2a)"]),
        (2, ["  group 3", "  action Choose.answer(number=0x2a)"]),
        (3, ["  group 4", "  no action"]),
    ] {
        let trace = trace(&mut bench, 1, &[2, key, 0, 0, 0, 0, 0, 0]);
        let lines = lookup(&trace, "Choose.spread_exact");
        assert_eq!(lines[lines.len() - 2..], end);
    }
    let miss = trace(&mut bench, 1, &[2, 9, 0, 0, 0, 0, 0, 0]);
    let lines = lookup(&miss, "Choose.spread_exact");
    assert_eq!(
        lines,
        [
            "table Choose.spread_exact: miss",
            "  hdr.ask.key = 0x9 (exact)",
            "  no action"
        ]
    );
}
