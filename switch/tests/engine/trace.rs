//! Traces of the test programs, frame by frame, without a running switch.

use ultima_p4runtime::bytestring::Bytestring;
use ultima_p4runtime::names::Names;
use ultima_p4runtime::replication::{Replica, clone_session, multicast_group};
use ultima_p4runtime::text as p4text;
use ultima_p4runtime::v1::{Entity, TableEntry, Update, WriteRequest};
use ultima_switch::ProgramFiles;
use ultima_switch::engine::{DropCause, Limits};
use ultima_switch::trace::{
    Bench, BenchError, Event, Fate, MAX_COPIES, MAX_EVENTS, Matched, Named, Origin, PacketTrace,
    Step, Value, Via, text,
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

/// Traces a frame, and checks that nothing is lost on the way to JSON and back.
fn trace(bench: &mut Bench, port: u16, frame: &[u8]) -> PacketTrace {
    let trace = bench.trace(port, frame).unwrap();
    assert_eq!((trace.version, trace.port), (1, port));
    assert_eq!(trace.frame.0, frame);
    let json = serde_json::to_string(&trace).unwrap();
    assert_eq!(serde_json::from_str::<PacketTrace>(&json).unwrap(), trace);
    trace
}

fn of(trace: &PacketTrace, copy: u16) -> Vec<&Event> {
    let steps = trace.events.iter().filter(|step| step.copy == copy);
    steps.map(|step| &step.event).collect()
}

fn value(number: u64) -> Value {
    Value::from(number)
}

fn write_of<'a>(events: &[&'a Event], wanted: &str) -> Option<(&'a Value, &'a Value)> {
    events.iter().find_map(|event| match event {
        Event::Write {
            field, old, new, ..
        } if field == wanted => Some((old, new)),
        _ => None,
    })
}

fn step_of(trace: &PacketTrace, wanted: impl Fn(&Event) -> bool) -> &Step {
    let found = trace.events.iter().find(|step| wanted(&step.event));
    found.unwrap_or_else(|| panic!("it is not in\n{}", text(trace)))
}

/// What the table of this name found.
struct Lookup {
    hit: bool,
    priority: Option<i32>,
    action: String,
    params: Vec<Named>,
    matched: Vec<Option<Matched>>,
    values: Vec<Value>,
    counted: Option<(u64, u64)>,
}

fn lookup(trace: &PacketTrace, table: &str) -> Lookup {
    let step = step_of(
        trace,
        |event| matches!(event, Event::Table { name, .. } if name == table),
    );
    match step.event.clone() {
        Event::Table {
            key,
            hit,
            priority,
            action,
            counter,
            ..
        } => Lookup {
            hit,
            priority,
            action: action.as_ref().map_or_else(String::new, |a| a.name.clone()),
            params: action.map_or_else(Vec::new, |action| action.params),
            matched: key.iter().map(|field| field.matched.clone()).collect(),
            values: key.into_iter().map(|field| field.value).collect(),
            counted: counter.map(|cell| (cell.packets, cell.bytes)),
        },
        other => panic!("{other:?}"),
    }
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
    assert!(
        trace.complete && trace.dropped.is_none(),
        "{}",
        text(&trace)
    );

    let events = of(&trace, 0);
    let states: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::State { name, at } => Some((name.as_str(), *at)),
            _ => None,
        })
        .collect();
    assert_eq!(states, [("start", 0), ("probe", 14)]);
    let extracted: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Extract {
                header,
                at,
                bytes,
                fields,
            } => {
                let values = fields
                    .iter()
                    .map(|field| (field.name.as_str(), field.value.clone()));
                Some((header.as_str(), *at, *bytes, values.collect::<Vec<_>>()))
            }
            _ => None,
        })
        .collect();
    let ethernet = vec![
        ("dst", value(1)),
        ("src", value(0x0200_0000_00aa)),
        ("type", value(0x88b5)),
    ];
    let number = vec![("kind", value(7)), ("number", value(9))];
    assert_eq!(
        extracted,
        [("ethernet", 0, 14, ethernet), ("probe", 14, 5, number)]
    );
    let select = Event::Select {
        key: vec![Named {
            name: "ethernet.type".into(),
            value: value(0x88b5),
        }],
        case: "0x88b5".into(),
        next: "probe".into(),
    };
    assert!(events.contains(&&select), "{}", text(&trace));
    assert!(events.contains(&&Event::Parsed {
        bytes: 19,
        payload: 3
    }));

    let count = step_of(&trace, |event| matches!(event, Event::Count { .. }));
    let Event::Count {
        counter,
        index,
        cell,
    } = &count.event
    else {
        unreachable!()
    };
    assert_eq!(
        (counter.as_str(), index),
        ("IngressPipe.received", &value(3))
    );
    assert_eq!(cell.map(|cell| (cell.packets, cell.bytes)), Some((1, 22)));
    let source = count.source.as_ref().unwrap();
    assert_eq!((source.file.as_str(), source.line), ("testbed.p4", 119));
    assert!(source.text.starts_with("received.count("), "{source:?}");

    let found = lookup(&trace, "IngressPipe.forward");
    assert!(found.hit && found.priority.is_none());
    assert_eq!(
        (found.action.as_str(), found.values),
        ("IngressPipe.send", vec![value(1)])
    );
    assert_eq!(found.matched, [Some(Matched::Equal { entry: value(1) })]);
    assert_eq!(
        found.params,
        [Named {
            name: "port".into(),
            value: value(4)
        }]
    );
    assert_eq!(found.counted, Some((1, 22)));
    let miss = lookup(&trace, "IngressPipe.acl");
    assert!(!miss.hit && miss.matched.iter().all(Option::is_none));
    assert_eq!(
        miss.values,
        [value(0x0200_0000_00aa), value(0x88b5), value(1)]
    );
    assert_eq!(
        write_of(&events, "standard_metadata.egress_spec"),
        Some((&value(0), &value(4)))
    );
    let register = events.iter().find_map(|event| match event {
        Event::RegisterWrite {
            register, old, new, ..
        } => Some((register.as_str(), old.clone(), new.clone())),
        _ => None,
    });
    assert_eq!(
        register,
        Some(("IngressPipe.last_number", Some(value(0)), Some(value(9))))
    );

    let [copy] = trace.copies.as_slice() else {
        panic!("{}", text(&trace))
    };
    assert_eq!((copy.copy, copy.of, copy.port, copy.rid), (1, 0, 4, 0));
    assert_eq!((copy.origin, copy.fate), (Origin::Unicast, Fate::Left));
    assert_eq!(copy.frame.as_ref().unwrap().0, frame);
    let deparse = step_of(&trace, |event| matches!(event, Event::Deparse { .. }));
    let Event::Deparse {
        headers,
        payload,
        cut,
        ..
    } = &deparse.event
    else {
        unreachable!()
    };
    assert_eq!(
        (headers.as_slice(), *payload, *cut),
        (["ethernet".into(), "probe".into()].as_slice(), 3, 0)
    );

    let page = text(&trace);
    for line in [
        "22 bytes at port 3, 0.000000 s",
        "    table IngressPipe.forward: hit  [testbed.p4:69]",
        "      hdr.ethernet.dst = 0x1 (exact 0x1)",
        "      action IngressPipe.send(port=0x4)",
        "    if hdr.probe.isValid(): true  [testbed.p4:125]",
        "copy 1: to port 4, unicast",
        "  deparser: ethernet + probe + 3 bytes of payload = 22 bytes",
        "  left the port",
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "no line {line:?} in\n{page}"
        );
    }
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
    let found = lookup(&trace(&mut bench, 3, &probe(1, 0)), "IngressPipe.metered");
    let matched = Matched::Prefix {
        prefix: value(0x0200_0000_0000),
        prefix_len: 8,
    };
    assert_eq!((found.hit, found.matched), (true, vec![Some(matched)]));

    write(&mut bench, vec![entry.into()]);
    let denied = trace(&mut bench, 3, &probe(1, 0));
    let found = lookup(&denied, "IngressPipe.acl");
    assert_eq!(
        (found.hit, found.priority, found.action.as_str()),
        (true, Some(5), "IngressPipe.deny")
    );
    let masked = Matched::Masked {
        entry: value(0xa0),
        mask: value(0xf0),
    };
    let range = Matched::Range {
        low: value(0x8000),
        high: value(0x9000),
    };
    assert_eq!(found.matched, [Some(masked), Some(range), None]);
    // `exit` ends ingress: the next table is never applied.
    let events = of(&denied, 0);
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Primitive { name, .. } if name == "exit"))
    );
    let later = |event: &&&Event| matches!(event, Event::Table { name, .. } if name == "IngressPipe.metered");
    assert_eq!(events.iter().find(later), None);
    assert_eq!(denied.dropped, Some(DropCause::Program));
}

#[test]
fn parser_errors_select_and_lookahead() {
    let (mut bench, _) = bench(program!("parsing"));
    let too_many = trace(&mut bench, 1, &[3, 10, 0xff]);
    let error = Event::ParserError {
        error: "TooMany".into(),
        at: 2,
    };
    assert!(of(&too_many, 0).contains(&&error), "{}", text(&too_many));
    let short = trace(&mut bench, 1, &[3]);
    let error = Event::ParserError {
        error: "PacketTooShort".into(),
        at: 0,
    };
    assert!(of(&short, 0).contains(&&error), "{}", text(&short));
    let stack = trace(&mut bench, 1, &[1, 0, 2, 4, 6, 8]);
    let error = Event::ParserError {
        error: "StackOutOfBounds".into(),
        at: 5,
    };
    assert!(of(&stack, 0).contains(&&error), "{}", text(&stack));
    let masked = trace(&mut bench, 1, &[0x83, 0x12, 0x77]);
    let events = of(&masked, 0);
    let case = events.iter().find_map(|event| match event {
        Event::Select { case, next, .. } => Some((case.as_str(), next.as_str())),
        _ => None,
    });
    assert_eq!(case, Some(("0x8002 &&& 0xf003", "behind")));
    let ahead = trace(&mut bench, 1, &[4, 0, 0x12, 0x34]);
    let events = of(&ahead, 0);
    let write = events.iter().find_map(|event| match event {
        Event::Write { field, new, .. } if field.ends_with("ahead") => Some(new),
        _ => None,
    });
    assert_eq!(write, Some(&value(0x1234)), "{}", text(&ahead));
    let skipped = trace(&mut bench, 1, &[5, 16, 1, 2, 3]);
    assert!(
        of(&skipped, 0).contains(&&Event::Advance { bytes: 2 }),
        "{}",
        text(&skipped)
    );
}

#[test]
fn value_sets_are_named() {
    let (mut bench, _) = bench(program!("value_sets"));
    let entries = "updates { type: MODIFY entity { value_set_entry { value_set_id: 66286720
        members { match { field_id: 1 exact { value: \"\\x09\" } } } } } }";
    bench.write(p4text::parse(entries).unwrap()).unwrap();
    let mut cases = |kind: u8| -> Vec<(String, String)> {
        let traced = trace(&mut bench, 1, &[1, kind, 0, 0, 0, 0]);
        let selects = of(&traced, 0).into_iter().filter_map(|event| match event {
            Event::Select { case, next, .. } => Some((case.clone(), next.clone())),
            _ => None,
        });
        selects.collect()
    };
    let by_kind = ("0x01".to_owned(), "by_kind".to_owned());
    let accept = ("default".to_owned(), "accept".to_owned());
    let found = ("value set Read.kinds".to_owned(), "found_kind".to_owned());
    assert_eq!(cases(9), [by_kind.clone(), found, accept.clone()]);
    let missed = ("default".to_owned(), "missed".to_owned());
    assert_eq!(cases(8), [by_kind, missed, accept]);
}

/// A frame with orders for the program `copies`.
fn orders(order: u8, argument: u8, value: u32) -> Vec<u8> {
    let mut frame = vec![order, argument, 0, 2];
    frame.extend(value.to_be_bytes());
    frame.extend([0xaa, 0xbb]);
    frame
}

#[test]
fn replicas_and_clones_each_have_their_way() {
    let (mut bench, _) = bench(program!("copies"));
    write(
        &mut bench,
        vec![group(7, &[(5, 1), (6, 2)]), session(3, &[(8, 9)])],
    );
    let multicast = trace(&mut bench, 1, &orders(3, 7, 5));
    let ways: Vec<_> = multicast
        .copies
        .iter()
        .map(|copy| (copy.port, copy.rid, copy.origin, copy.fate))
        .collect();
    let origin = Origin::Multicast { group: 7 };
    assert_eq!(
        ways,
        [(6, 2, origin, Fate::Left), (5, 1, origin, Fate::Left)]
    );
    // Each tells its own RID in the frame that leaves.
    for (copy, rid) in [(1, 2), (2, 1)] {
        let events = of(&multicast, copy);
        assert_eq!(
            write_of(&events, "copy.rid"),
            Some((&value(0), &value(rid)))
        );
    }

    let clone = trace(&mut bench, 1, &orders(2, 3, 5));
    let ways: Vec<_> = clone
        .copies
        .iter()
        .map(|copy| (copy.of, copy.port, copy.origin))
        .collect();
    let origin = Origin::Clone { session: 3 };
    assert_eq!(ways, [(0, 8, origin), (0, 2, Origin::Unicast)]);
    // The clone is parsed again from the frame that arrived, which is no second pass.
    let passes = of(&clone, 0)
        .into_iter()
        .filter(|event| matches!(event, Event::Ingress { .. }));
    assert_eq!(passes.count(), 1);

    let egress = trace(&mut bench, 1, &orders(20, 3, 5));
    let ways: Vec<_> = egress
        .copies
        .iter()
        .map(|copy| (copy.of, copy.port, copy.origin))
        .collect();
    assert_eq!(ways, [(0, 2, Origin::Unicast), (1, 8, origin)]);

    let nowhere = trace(&mut bench, 1, &orders(2, 4, 5));
    assert!(of(&nowhere, 0).contains(&&Event::NoSession { session: 4 }));
    assert_eq!(nowhere.copies.len(), 1);
}

#[test]
fn packets_that_come_again() {
    let (mut bench, _) = bench(program!("copies"));
    let again = trace(&mut bench, 1, &orders(4, 2, 5));
    let arrivals: Vec<_> = of(&again, 0)
        .into_iter()
        .filter_map(|event| match event {
            Event::Ingress { arrival, port, .. } => Some((format!("{arrival:?}"), *port)),
            _ => None,
        })
        .collect();
    let resubmitted = ("Resubmitted".to_owned(), None);
    assert_eq!(
        arrivals,
        [
            ("Entered".to_owned(), Some(1)),
            resubmitted.clone(),
            resubmitted
        ]
    );
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
    assert!(
        of(&round, 1)
            .iter()
            .any(|event| matches!(event, Event::Ingress { port: None, .. }))
    );
}

#[test]
fn drops_say_why() {
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
    assert!(text(&jumps).contains("dropped: limit of jumps in actions reached"));
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
    let added = trace(&mut bench, 1, &orders(7, 2, 5));
    let events = of(&added, 0);
    let reads: Vec<_> = events
        .iter()
        .filter(|event| matches!(event, Event::RegisterRead { .. }))
        .collect();
    assert_eq!(reads.len(), 1, "{}", text(&added));
    let outside = trace(&mut bench, 1, &orders(7, 200, 5));
    let read = step_of(&outside, |event| {
        matches!(event, Event::RegisterRead { .. })
    });
    assert!(matches!(
        &read.event,
        Event::RegisterRead { value: None, .. }
    ));
    let log = trace(&mut bench, 1, &orders(14, 2, 5));
    let line = Event::Log {
        text: "value 5 of port 2".into(),
    };
    assert!(of(&log, 0).contains(&&line), "{}", text(&log));
    let hash = trace(&mut bench, 1, &orders(8, 2, 5));
    step_of(&hash, |event| matches!(event, Event::Hash { .. }));
    let meter = trace(&mut bench, 1, &orders(6, 2, 5));
    let green = step_of(&meter, |event| matches!(event, Event::Meter { .. }));
    let Event::Meter {
        meter,
        index,
        color,
    } = &green.event
    else {
        unreachable!()
    };
    assert_eq!(
        (meter.as_deref(), index, *color),
        (Some("Serve.speed"), &Some(value(2)), Some(0))
    );
    let cut = trace(&mut bench, 1, &orders(5, 4, 5));
    let step = step_of(&cut, |event| matches!(event, Event::Deparse { .. }));
    let Event::Deparse { cut, frame, .. } = &step.event else {
        unreachable!()
    };
    assert_eq!(frame.as_ref().unwrap().0.len(), 4);
    assert!(*cut > 0);
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
    let values = vec![value(0x0200_0000_00aa), value(3)];
    assert!(
        of(&traced, 0).contains(&&Event::Digest { digest, values }),
        "{}",
        text(&traced)
    );
}

#[test]
fn refusals() {
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
fn tables_with_action_profiles_say_where_their_action_is_from() {
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
    let mut found = |key: u8| {
        let trace = trace(&mut bench, 1, &[2, key, 0, 0, 0, 0, 0, 0]);
        let step = step_of(
            &trace,
            |event| matches!(event, Event::Table { name, .. } if name == "Choose.spread_exact"),
        );
        match step.event.clone() {
            Event::Table { via, action, .. } => {
                let answer = action.map(|action| action.params[0].value.clone());
                (via, answer, text(&trace))
            }
            other => panic!("{other:?}"),
        }
    };
    let (via, answer, shown) = found(1);
    let expected = (Some(Via::Member { member: 7 }), Some(value(42)));
    assert_eq!((via, answer), expected);
    assert!(shown.contains("member 7"), "{shown}");
    let (via, answer, _) = found(2);
    let expected = (Some(Via::Group { group: 3 }), Some(value(42)));
    assert_eq!((via, answer), expected);
    let (via, answer, shown) = found(3);
    assert_eq!((via, answer), (Some(Via::Group { group: 4 }), None));
    assert!(shown.contains("no action"), "{shown}");
    let (via, answer, _) = found(9);
    assert_eq!((via, answer), (None, None), "a miss");
}
