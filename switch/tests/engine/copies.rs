//! Copies, clones, resubmission and recirculation; counters, meters and registers of actions.

use ultima_switch::engine::{
    CloneSession, CounterCell, DropCause, EgressOutcome, EntryRef, ErrorKind, IngressOutcome,
    MeterConfig, QueueInfo, Replica,
};

use super::control::{Testbed, bytes, exact};
use super::program;

/// A frame with the header `orders`, which selects what the program does.
fn frame(order: u8, argument: u8, port: u16, value: u32) -> Vec<u8> {
    let mut frame = vec![order, argument];
    frame.extend(port.to_be_bytes());
    frame.extend(value.to_be_bytes());
    frame.extend([0xaa, 0xbb, 0xcc]);
    frame
}

/// The fields that the program writes into each copy.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    port: u16,
    value: u32,
    instance_type: u8,
    rid: u16,
    kept: u8,
    lost: u8,
    length: u32,
    passes: u8,
}

fn report((port, packet): &(u16, Vec<u8>)) -> Report {
    assert_eq!(packet[18..], [0xaa, 0xbb, 0xcc], "the payload");
    let word = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().expect("four bytes"));
    Report {
        port: *port,
        value: word(4),
        instance_type: packet[8],
        rid: u16::from_be_bytes([packet[9], packet[10]]),
        kept: packet[11],
        lost: packet[12],
        length: word(13),
        passes: packet[17],
    }
}

fn send(testbed: &mut Testbed, order: u8, argument: u8, value: u32) -> Vec<Report> {
    testbed
        .send(1, &frame(order, argument, 9, value))
        .iter()
        .map(report)
        .collect()
}

/// The value of the one packet that leaves.
fn value(testbed: &mut Testbed, order: u8, argument: u8, value: u32) -> u32 {
    let sent = send(testbed, order, argument, value);
    assert_eq!(sent.len(), 1);
    sent[0].value
}

const NORMAL: Report = Report {
    port: 9,
    value: 5,
    instance_type: 0,
    rid: 0,
    kept: 0x11,
    lost: 0x22,
    length: 11,
    passes: 0,
};

fn replica(port: u16, rid: u16) -> Replica {
    Replica { port, rid }
}

fn session(replicas: Vec<Replica>) -> CloneSession {
    CloneSession {
        replicas,
        class_of_service: 3,
        packet_length_bytes: 0,
    }
}

#[test]
fn a_packet_leaves_at_the_port_that_the_program_sets() {
    let mut testbed = program!("copies");
    assert_eq!(send(&mut testbed, 1, 0, 5), [NORMAL]);
    let (outcome, copies) = testbed.ingress(1, &frame(0, 0, 9, 5), 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::Program));
    assert!(copies.is_empty());
    let to_the_drop_port = frame(1, 0, 511, 5);
    let (outcome, _) = testbed.ingress(1, &to_the_drop_port, 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::Program));
    assert_eq!(send(&mut testbed, 22, 0, 5), []);
}

#[test]
fn ingress_clones_have_the_received_packet_and_the_preserved_fields() {
    let mut testbed = program!("copies");
    let clones = session(vec![replica(4, 7), replica(5, 8)]);
    testbed.engine.pre_mut().insert_session(6, clones).unwrap();
    let clone = |port, rid| Report {
        port,
        rid,
        instance_type: 1,
        lost: 0,
        ..NORMAL
    };
    // The program sets the original's value to 0 after the clone call. The clones have the received 5.
    let original = Report { value: 0, ..NORMAL };
    assert_eq!(
        send(&mut testbed, 2, 6, 5),
        [clone(5, 8), clone(4, 7), original]
    );
    let (_, copies) = testbed.ingress(1, &frame(2, 6, 9, 5), 0);
    let priorities: Vec<_> = copies.iter().map(|copy| copy.priority).collect();
    assert_eq!(priorities, [3, 3, 0]);
    // Without a session there is no clone.
    assert_eq!(send(&mut testbed, 2, 7, 5), [Report { value: 0, ..NORMAL }]);
}

#[test]
fn sessions_can_truncate_clones() {
    let mut testbed = program!("copies");
    let mut clones = session(vec![replica(4, 7)]);
    clones.packet_length_bytes = 10;
    testbed.engine.pre_mut().insert_session(6, clones).unwrap();
    let sent = testbed.send(1, &frame(2, 6, 9, 5));
    assert_eq!((sent[0].0, sent[0].1.len()), (4, 10));
    assert_eq!((sent[1].0, sent[1].1.len()), (9, 21));
}

#[test]
fn egress_clones_have_the_sent_packet_and_the_preserved_fields() {
    let mut testbed = program!("copies");
    testbed
        .engine
        .pre_mut()
        .insert_session(6, session(vec![replica(4, 7)]))
        .unwrap();
    // The clone is made at the end of egress, when the packet already has its report.
    let clone = Report {
        port: 4,
        instance_type: 2,
        rid: 7,
        lost: 0,
        length: 21,
        ..NORMAL
    };
    assert_eq!(send(&mut testbed, 20, 6, 5), [NORMAL, clone]);
}

#[test]
fn egress_clones_of_clones_meet_the_limit() {
    let mut testbed = program!("copies");
    testbed
        .engine
        .pre_mut()
        .insert_session(6, session(vec![replica(4, 7)]))
        .unwrap();
    let sent = testbed.send(1, &frame(23, 6, 9, 5));
    assert_eq!(sent.len(), 1 + 16);
    assert_eq!(testbed.engine.over_limit(), 1);
}

#[test]
fn groups_replicate() {
    let mut testbed = program!("copies");
    let replicas = vec![replica(4, 1), replica(4, 2), replica(2, 1)];
    testbed.engine.pre_mut().insert_group(3, replicas).unwrap();
    let copy = |port, rid| Report {
        port,
        rid,
        instance_type: 5,
        ..NORMAL
    };
    assert_eq!(
        send(&mut testbed, 3, 3, 5),
        [copy(2, 1), copy(4, 2), copy(4, 1)]
    );
    let (outcome, copies) = testbed.ingress(1, &frame(3, 8, 9, 5), 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::EmptyGroup));
    assert!(copies.is_empty());
}

#[test]
fn resubmitted_packets_have_the_preserved_fields() {
    let mut testbed = program!("copies");
    assert_eq!(
        send(&mut testbed, 4, 3, 5),
        [Report {
            passes: 3,
            ..NORMAL
        }]
    );
    let (outcome, copies) = testbed.ingress(1, &frame(4, 200, 9, 5), 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::PassLimit));
    assert!(copies.is_empty());
}

#[test]
fn recirculation_uses_the_sent_packet() {
    let mut testbed = program!("copies");
    let sent = send(&mut testbed, 21, 3, 5);
    assert_eq!(
        sent,
        [Report {
            value: 8,
            passes: 3,
            ..NORMAL
        }]
    );
    assert_eq!(send(&mut testbed, 21, 200, 5), []);
}

#[test]
fn recirculated_packets_are_not_truncated() {
    let mut testbed = program!("copies");
    let whole = Report {
        passes: 1,
        ..NORMAL
    };
    assert_eq!(send(&mut testbed, 26, 0, 5), [whole]);
}

/// `Limits::descendants` by default.
const DESCENDANTS: usize = 4096;

#[test]
fn descendants_of_one_packet_are_bounded() {
    let mut testbed = program!("copies");
    let twice = vec![replica(4, 1), replica(4, 2)];
    let pre = testbed.engine.pre_mut();
    pre.insert_session(6, session(twice.clone())).unwrap();
    pre.insert_group(3, twice).unwrap();
    // Each clone is cloned twice. The limit of passes alone would allow 2^16 clones.
    let sent = testbed.send(1, &frame(23, 6, 9, 5));
    assert_eq!(sent.len(), DESCENDANTS);
    let refused = testbed.engine.over_limit();
    assert!(refused > 0);
    // Recirculated copies are multicast again: two copies and two recirculations each time. None leaves.
    let (mut copies, mut ordered) = (Vec::new(), 0);
    let group = frame(24, 3, 9, 5);
    testbed.engine.ingress(1, &group, 0, &mut copies);
    let (mut again, mut out) = (0, Vec::new());
    while let Some(copy) = copies.pop() {
        ordered += 1;
        let queue = QueueInfo::default();
        let outcome = testbed.engine.egress(copy, queue, 0, &mut out, &mut copies);
        again += usize::from(outcome == EgressOutcome::Recirculated(IngressOutcome::Forwarded));
    }
    assert!(ordered + again <= DESCENDANTS);
    assert!(
        ordered + again >= DESCENDANTS - 1,
        "the last two may not fit"
    );
    assert!(testbed.engine.over_limit() > refused);
    // The next packet has its own count.
    assert_eq!(send(&mut testbed, 20, 6, 5).len(), 3);
}

#[test]
fn clones_of_resubmitted_packets_count_together() {
    let mut testbed = program!("copies");
    let many: Vec<_> = (1..=1024).map(|rid| replica(4, rid)).collect();
    let pre = testbed.engine.pre_mut();
    pre.insert_session(6, session(many)).unwrap();
    let (outcome, copies) = testbed.ingress(1, &frame(25, 6, 9, 5), 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::DescendantLimit));
    // The three resubmissions count too.
    assert_eq!(copies.len(), DESCENDANTS - 3);
}

#[test]
fn truncation_shortens_the_sent_packet() {
    let mut testbed = program!("copies");
    let sent = testbed.send(1, &frame(5, 6, 9, 5));
    assert_eq!(sent, [(9, frame(5, 6, 9, 5)[..6].to_vec())]);
    let sent = testbed.send(1, &frame(5, 100, 9, 5));
    assert_eq!(sent[0].1.len(), 21);
}

#[test]
fn exit_ends_only_the_current_pipeline() {
    let mut testbed = program!("copies");
    assert_eq!(send(&mut testbed, 11, 1, 5), [NORMAL]);
    assert_eq!(value(&mut testbed, 11, 0, 5), u32::MAX);
}

#[test]
fn a_failed_assertion_drops_the_packet() {
    let mut testbed = program!("copies");
    assert_eq!(value(&mut testbed, 12, 1, 5), 5);
    let (outcome, _) = testbed.ingress(1, &frame(12, 0, 9, 5), 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::Assertion));
}

#[test]
fn loops_run_and_meet_the_limit() {
    let mut testbed = program!("copies");
    assert_eq!(value(&mut testbed, 13, 7, 11), 77);
    let (outcome, _) = testbed.ingress(1, &frame(13, 255, 9, u32::MAX), 0);
    assert_eq!(outcome, IngressOutcome::Dropped(DropCause::JumpLimit));
    assert_eq!(value(&mut testbed, 14, 1, 3), 3);
}

/// The program counts every packet by a field of a header. BMv2 counts a packet without this header by an earlier packet's
/// field.
#[test]
fn a_field_of_a_header_that_the_packet_lacks_is_zero() {
    let mut testbed = program!("copies");
    send(&mut testbed, 7, 0, 0);
    assert!(testbed.send(1, &[7, 0]).is_empty(), "too short");
    let counter = testbed.engine.counter(testbed.counter("Serve.seen"));
    let cells = counter.unwrap().cells().iter().map(|cell| cell.packets);
    assert_eq!(cells.collect::<Vec<_>>(), [1, 0, 0, 0, 0, 0, 0, 1]);
}

#[test]
fn counters_count_packets_and_bytes_by_index() {
    let mut testbed = program!("copies");
    for order in [1, 1, 7, 200] {
        send(&mut testbed, order, 0, 0);
    }
    let id = testbed.counter("Serve.seen");
    let counter = testbed.engine.counter(id).unwrap();
    assert_eq!(
        counter.read(1).unwrap(),
        CounterCell {
            packets: 2,
            bytes: 22
        }
    );
    assert_eq!(
        counter.read(7).unwrap(),
        CounterCell {
            packets: 1,
            bytes: 11
        }
    );
    assert_eq!(
        counter.cells().iter().map(|cell| cell.packets).sum::<u64>(),
        3
    );
    assert_eq!(
        testbed.engine.counter(id + 1).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let cell = CounterCell {
        packets: 40,
        bytes: 4_000,
    };
    testbed
        .engine
        .counter_mut(id)
        .unwrap()
        .write(1, cell)
        .unwrap();
    send(&mut testbed, 1, 0, 0);
    let counter = testbed.engine.counter(id).unwrap();
    assert_eq!(
        counter.read(1).unwrap(),
        CounterCell {
            packets: 41,
            bytes: 4_011
        }
    );
}

#[test]
fn meters_colour_by_index_and_time() {
    let mut testbed = program!("copies");
    let id = testbed.meter("Serve.speed");
    let config = MeterConfig {
        cir: 1,
        cburst: 1,
        pir: 2,
        pburst: 2,
    };
    testbed
        .engine
        .meter_mut(id)
        .unwrap()
        .write(2, Some(config))
        .unwrap();
    let mut color = |cell, now_us| {
        let sent = testbed.send_at(1, &frame(6, cell, 9, 7), now_us);
        report(&sent[0]).value
    };
    assert_eq!([color(2, 0), color(2, 0), color(2, 0)], [0, 1, 2]);
    assert_eq!(color(1, 0), 0, "not configured");
    assert_eq!([color(2, 1_000_000), color(2, 1_000_000)], [0, 1]);
    let meter = testbed.engine.meter(id).unwrap();
    assert_eq!(
        [2, 1].map(|cell| meter.read(cell).unwrap()),
        [Some(config), None]
    );
    assert!(meter.read(4).is_err());
}

#[test]
fn registers_keep_what_is_written() {
    let mut testbed = program!("copies");
    assert_eq!(value(&mut testbed, 7, 2, 5), 0);
    assert_eq!(value(&mut testbed, 7, 2, 6), 5);
    assert_eq!(value(&mut testbed, 7, 3, 1), 0);
    let id = testbed.register("Serve.memory");
    let register = testbed.engine.register_mut(id).unwrap();
    assert_eq!((register.size(), register.width()), (4, 32));
    assert_eq!(register.read(2).unwrap(), bytes(11));
    register.write(2, &bytes(u128::from(u32::MAX))).unwrap();
    assert_eq!(value(&mut testbed, 7, 2, 2), u32::MAX);
    assert_eq!(value(&mut testbed, 7, 2, 0), 1);
}

#[test]
fn the_p4info_makes_registers_signed() {
    let p4info = include_str!("../programs/copies.p4info.txtpb");
    let (before, registers) = p4info.split_once("registers {").unwrap();
    let registers = registers.replacen(" bit {", " int {", 1);
    let p4info = format!("{before}registers {{{registers}");
    let json = include_bytes!("../programs/copies.json");
    let mut testbed = Testbed::new(json, &p4info);
    let id = testbed.register("Serve.memory");
    let register = testbed.engine.register_mut(id).unwrap();
    register.write(2, &[0xfb]).unwrap();
    assert_eq!(register.read(2).unwrap(), [0xfb]);
    let error = register.write(2, &[0, 0x80, 0, 0, 0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    // The program adds 2 and answers with the value before it.
    assert_eq!(value(&mut testbed, 7, 2, 2), u32::MAX - 4);
    assert_eq!(
        testbed.engine.register(id).unwrap().read(2).unwrap(),
        [0xfd]
    );
}

#[test]
fn hashes_stay_in_their_range() {
    let mut testbed = program!("copies");
    // CRC-32 of argument 7 and port 9.
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(&[7, 0, 9]);
    assert_eq!(value(&mut testbed, 8, 7, 0), 100 + crc % 50);
}

#[test]
fn random_numbers_repeat_with_the_seed() {
    let draw = |seed| {
        let mut testbed = program!("copies");
        testbed.engine.seed(seed);
        (0..50)
            .map(|_| value(&mut testbed, 9, 0, 0))
            .collect::<Vec<_>>()
    };
    let first = draw(1);
    assert!(
        first.iter().all(|value| (10..20).contains(value)),
        "{first:?}"
    );
    assert!(first.iter().any(|value| *value != first[0]));
    assert_eq!(first, draw(1));
    assert_ne!(first, draw(2));
}

#[test]
fn direct_counters_and_meters_belong_to_entries() {
    let mut testbed = program!("copies");
    let table = "Serve.marks";
    testbed.insert(table, &[exact(1)], "Serve.mark", &[0x33]);
    testbed.insert(table, &[exact(2)], "Serve.mark", &[0x44]);
    let (id, key) = (testbed.table(table), testbed.key(table, &[Some(exact(1))]));
    let encoded = testbed.engine.table(id).unwrap().encode_key(&key, 0);
    let encoded = encoded.unwrap();
    let config = MeterConfig {
        cir: 1,
        cburst: 1,
        pir: 1,
        pburst: 1,
    };
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .set_meter(EntryRef::Keyed(&encoded), Some(config))
        .unwrap();
    assert_eq!(
        send(&mut testbed, 10, 1, 5)[0],
        Report {
            value: 0,
            kept: 0x33,
            ..NORMAL
        }
    );
    assert_eq!(
        send(&mut testbed, 10, 1, 5)[0],
        Report {
            value: 2,
            kept: 0x33,
            ..NORMAL
        }
    );
    assert_eq!(
        send(&mut testbed, 10, 2, 5)[0],
        Report {
            value: 0,
            kept: 0x44,
            ..NORMAL
        }
    );
    assert_eq!(send(&mut testbed, 10, 3, 5)[0], NORMAL);
    let found = testbed.engine.table(id).unwrap().get(&key, 0).unwrap();
    assert_eq!(
        found.counter,
        Some(CounterCell {
            packets: 2,
            bytes: 22
        })
    );
    assert_eq!(found.meter, Some(Some(config)));
    let default = testbed.engine.table(id).unwrap().default_entry();
    assert_eq!(
        default.counter,
        Some(CounterCell {
            packets: 1,
            bytes: 11
        })
    );
    let cell = CounterCell {
        packets: 7,
        bytes: 8,
    };
    testbed
        .engine
        .table_mut(id)
        .unwrap()
        .set_counter(EntryRef::Keyed(&encoded), cell)
        .unwrap();
    assert_eq!(
        testbed
            .engine
            .table(id)
            .unwrap()
            .get(&key, 0)
            .unwrap()
            .counter,
        Some(cell)
    );
    let other = testbed.key(table, &[Some(exact(9))]);
    let other = testbed.engine.table(id).unwrap().encode_key(&other, 0);
    let missing = testbed
        .engine
        .table_mut(id)
        .unwrap()
        .set_counter(EntryRef::Keyed(&other.unwrap()), cell);
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn egress_sees_the_metadata_of_the_queue() {
    let mut testbed = program!("copies");
    let (_, copies) = testbed.ingress(1, &frame(1, 0, 9, 5), 3);
    let copy = copies.into_iter().next().unwrap();
    assert_eq!(
        (copy.port, copy.rid, copy.priority, copy.len),
        (9, 0, 0, 11)
    );
    let queue = QueueInfo {
        enq_timestamp_us: 3,
        enq_qdepth: 2,
        ..QueueInfo::default()
    };
    let (mut out, mut clones) = (vec![1, 2, 3], Vec::new());
    testbed.engine.egress(copy, queue, 8, &mut out, &mut clones);
    assert_eq!(report(&(9, out)), NORMAL);
    assert!(clones.is_empty());
}
