//! The memory of packets that are not traced.

use std::num::NonZeroU16;

use ultima_p4runtime::text;
use ultima_switch::engine::trace::Recorder;
use ultima_switch::engine::{Engine, Limits, QueueInfo};

use super::memory::{allocations, peak};
use super::random_frames::{multicast, ultima};

#[test]
fn a_queued_packet_keeps_only_the_metadata_that_egress_reads() {
    let (mut testbed, frame) = (ultima(), multicast());
    let mut copies = Vec::with_capacity(8);
    testbed.engine.ingress(0, &frame, 0, &mut copies);
    // The first call allocated the header vector of ingress.
    let (_, bytes) = peak(|| testbed.engine.ingress(0, &frame, 0, &mut copies));
    assert_eq!(copies.len(), 8);
    assert!(bytes < frame.len() as isize + 1_000, "{bytes} bytes");
}

#[test]
fn tracing_allocates_only_while_it_is_on() {
    let json = include_bytes!("../programs/copies.json");
    let p4info = include_str!("../programs/copies.p4info.txtpb");
    let p4info = text::parse(p4info).unwrap();
    let mut engine = ultima_switch::p4info::load(json, &p4info, Limits::default()).unwrap();
    let (mut copies, mut clones, mut out) = (Vec::new(), Vec::new(), Vec::new());
    let frame = [7, 1, 0, 2, 0, 0, 0, 1, 0xaa, 0xbb];
    let mut send = |engine: &mut Engine| {
        engine.ingress(1, &frame, 0, &mut copies);
        let copy = copies.pop().unwrap();
        engine.egress(copy, QueueInfo::default(), 0, &mut out, &mut clones);
    };
    send(&mut engine);
    let before = allocations(|| send(&mut engine));
    // One allocation for the frame, which the copies of a packet share.
    assert!(before <= 1, "{before} allocations");

    engine.record(Box::new(Recorder::new(NonZeroU16::MIN)));
    let traced = allocations(|| send(&mut engine));
    assert!(traced > 50, "{traced} allocations for a trace");
    let trace = engine.recorded().unwrap().finish(1, 0, frame.to_vec());
    assert!(trace.events.len() > 10);
    assert_eq!(allocations(|| send(&mut engine)), before);
}
