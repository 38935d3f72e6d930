//! The P4 program's parser and `ultima-wire` agree on every field of the header, as docs/packet.md defines them.

use std::collections::BTreeMap;
use std::num::NonZeroU16;

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::Deserialize;
use ultima_p4runtime::{config::v1::P4Info, text};
use ultima_switch::engine::trace::Recorder;
use ultima_switch::engine::{Engine, Limits};
use ultima_wire::frame::{Endpoints, FRAME_OVERHEAD};
use ultima_wire::{Dtype, HEADER_LEN, Header, HostFlags, Kind, Report, SwitchFlags, Ticks};

/// The header's name in `headers.p4`.
const ULTIMA: &str = "ultima";

/// A header's fields by the names that docs/packet.md gives them.
type Fields = BTreeMap<String, u32>;

#[derive(Deserialize)]
struct Vector {
    name: String,
    header: Fields,
    auth: Option<serde::de::IgnoredAny>,
    frame: String,
}

fn vectors() -> Vec<Vector> {
    let vectors = include_str!("../../../wire/vectors/packets.json");
    serde_json::from_str(vectors).expect("the vectors are JSON")
}

fn program() -> Engine {
    let program = ultima_p4::v1model();
    let p4info: P4Info = text::parse(program.p4info).expect("p4c printed it");
    ultima_switch::p4info::load(program.device_config, &p4info, Limits::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The fields that the program's parser reads from the Ultima header of a frame, as a trace shows them.
fn read(program: &mut Engine, frame: &[u8]) -> Fields {
    program.record(Box::new(Recorder::new(NonZeroU16::MIN)));
    program.ingress(0, frame, 0, &mut Vec::new());
    let recorder = program.recorded().expect("a recorder");
    let trace = recorder.finish(0, 0, frame.to_vec());
    // Such as `extract ethernet, 14 bytes: dst=0x1 src=0x2 type=0x800`.
    let extracted = |header: &str| {
        let start = format!("extract {header}, ");
        let mut texts = trace.events.iter().map(|step| step.text.as_str());
        texts.find_map(|text| text.strip_prefix(&start)?.split_once(": "))
    };
    let report = match extracted("report") {
        Some(_) => Report::LEN,
        None => 0,
    };
    let parsed = format!("parsed {} bytes, ", FRAME_OVERHEAD + HEADER_LEN + report);
    let mut texts = trace.events.iter().map(|step| &step.text);
    assert!(texts.any(|text| text.starts_with(&parsed)), "{trace}");
    let (_, fields) = extracted(ULTIMA).expect("an Ultima packet");
    let fields = fields.split(' ').map(|field| {
        let (name, value) = field.split_once("=0x").expect("a field with its value");
        let value = u32::from_str_radix(value, 16).expect("no field is longer");
        (name.to_owned(), value)
    });
    fields.filter(|(name, _)| !name.starts_with('$')).collect()
}

/// Adds the fields that a [`Header`] does not have.
fn with_constants(mut fields: Fields, auth: bool) -> Fields {
    fields.insert("magic".into(), ultima_wire::MAGIC.into());
    fields.insert("version".into(), ultima_wire::VERSION.into());
    fields.insert("auth".into(), auth.into());
    // Switches read neither `exact` nor `length_check`: for them, these bits are reserved.
    let [exact, check] = ["exact", "length_check"].map(|name| fields.remove(name).unwrap_or(0));
    fields.insert("host_reserved".into(), exact << 4 | check);
    fields
}

#[test]
fn the_program_reads_the_vectors() {
    let mut program = program();
    for Vector {
        name,
        header,
        auth,
        frame,
    } in vectors()
    {
        let frame: Vec<u8> = (0..frame.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&frame[at..at + 2], 16).expect("hexadecimal"))
            .collect();
        assert_eq!(
            read(&mut program, &frame),
            with_constants(header, auth.is_some()),
            "{name}"
        );
    }
}

/// All fields are random; in the vectors, some are zero or equal.
#[test]
fn the_program_reads_random_headers_of_ultima_wire() {
    let mut program = program();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    for _ in 0..1000 {
        let header = header(&mut random);
        // A REPORT's payload follows the header.
        let mut frame = vec![0; FRAME_OVERHEAD + HEADER_LEN + Report::LEN];
        header.emit(&mut frame[FRAME_OVERHEAD..]);
        let endpoints = Endpoints {
            src_mac: random.random(),
            dst_mac: random.random(),
            src: "10.0.0.1:1".parse().expect("an address"),
            dst: "10.0.0.2:2".parse().expect("an address"),
        };
        endpoints.emit(&mut frame);
        assert_eq!(
            read(&mut program, &frame),
            with_constants(fields(&header), false)
        );
    }
}

/// A random header without a tag.
fn header(random: &mut Xoshiro256PlusPlus) -> Header {
    let dtypes = [Dtype::None, Dtype::F32, Dtype::Bf16, Dtype::F16];
    Header {
        kind: Kind::ALL[random.random_range(0..Kind::ALL.len())],
        switch_flags: SwitchFlags {
            trimmed: random.random(),
            late: random.random(),
            congestion: random.random(),
            hops: random.random_range(0..32),
        },
        budget: Ticks(random.random()),
        path_queue: Ticks(random.random()),
        job: random.random(),
        epoch: random.random(),
        source: random.random(),
        owner: random.random(),
        packet_number: random.random(),
        step: random.random(),
        bucket: random.random(),
        host_flags: HostFlags {
            last: random.random(),
            hadamard: random.random(),
            exact: random.random(),
        },
        length_check: random.random_range(0..16),
        dtype: dtypes[random.random_range(0..dtypes.len())],
        incast: random.random_range(0..16),
        slot: random.random(),
        slots: random.random(),
        contributions: random.random(),
        shared_tc: random.random(),
        sent_at: Ticks(random.random()),
        echoed: Ticks(random.random()),
        auth: None,
    }
}

fn fields(header: &Header) -> Fields {
    let fields: [(&str, u32); 26] = [
        ("kind", header.kind as u32),
        ("trimmed", header.switch_flags.trimmed.into()),
        ("late", header.switch_flags.late.into()),
        ("congestion", header.switch_flags.congestion.into()),
        ("hops", header.switch_flags.hops.into()),
        ("budget", header.budget.0),
        ("path_queue", header.path_queue.0),
        ("job", header.job.into()),
        ("epoch", header.epoch.into()),
        ("source_rank", header.source.into()),
        ("owner_rank", header.owner.into()),
        ("packet_number", header.packet_number),
        ("step", header.step),
        ("bucket", header.bucket.into()),
        ("last", header.host_flags.last.into()),
        ("hadamard", header.host_flags.hadamard.into()),
        ("exact", header.host_flags.exact.into()),
        ("length_check", header.length_check.into()),
        ("dtype", header.dtype as u32),
        ("incast", header.incast.into()),
        ("slot", header.slot),
        ("slots", header.slots),
        ("contributions", header.contributions.into()),
        ("shared_tc", header.shared_tc.into()),
        ("sent_at", header.sent_at.0),
        ("echoed", header.echoed.0),
    ];
    fields
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}
