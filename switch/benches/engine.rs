//! One packet through Ultima's own program: unicast, and multicast to eight ranks; lookups in
//! tables of several sizes.

#[expect(dead_code, reason = "benches need less of it than tests")]
#[path = "../tests/engine/control.rs"]
mod control;

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddrV4};

use control::{Testbed, exact, lpm};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use ultima_switch::engine::{QueueInfo, Replica};
use ultima_wire::frame::{Endpoints, FRAME_OVERHEAD, group_mac};
use ultima_wire::{Header, Kind, Ticks, group_address};

const JOB: u16 = 7;
const EPOCH: u16 = 1;
const RANKS: u16 = 9;
const PAYLOAD: usize = 1400;
/// The offset of a frame's packet number.
const NUMBER: usize = FRAME_OVERHEAD + 20;

fn address(rank: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, rank as u8 + 1)
}

fn mac(rank: u16) -> [u8; 6] {
    [2, 0, 0, 0, 0, rank as u8]
}

fn number(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// A switch with one job of nine ranks, rank *n* behind port *n*.
fn testbed() -> Testbed {
    let program = ultima_p4::v1model();
    let mut testbed = Testbed::new(program.device_config, program.p4info);
    let (job, epoch) = (u128::from(JOB), u128::from(EPOCH));
    testbed.insert(
        "UltimaIngress.jobs.job",
        &[exact(job)],
        "UltimaIngress.jobs.set_job",
        &[1, 1, 1],
    );
    for rank in 0..RANKS {
        let (wide, ip) = (u128::from(rank), u128::from(u32::from(address(rank))));
        let (mac, port) = (number(&mac(rank)), u128::from(ultima_wire::UDP_PORT));
        let admit = "UltimaIngress.admission.admit";
        let source = [
            exact(wide),
            exact(job),
            exact(epoch),
            exact(wide),
            exact(ip),
        ];
        let from_host = "UltimaIngress.admission.admit_from_host";
        testbed.insert(
            "UltimaIngress.admission.source",
            &source,
            from_host,
            &[wide + 1],
        );
        testbed.insert(
            "UltimaEgress.shares.share",
            &[exact(job), exact(wide)],
            "UltimaEgress.shares.set_share",
            &[wide + 1],
        );
        let destination = [exact(job), exact(ip), exact(port)];
        testbed.insert(
            "UltimaIngress.admission.destination",
            &destination,
            admit,
            &[],
        );
        let forward = "UltimaIngress.routing.forward";
        testbed.insert(
            "UltimaIngress.routing.route",
            &[lpm(ip, 32)],
            forward,
            &[wide, mac],
        );
        let replica = [exact(job), exact(wide)];
        let readdress = "UltimaEgress.delivery.readdress";
        testbed.insert(
            "UltimaEgress.delivery.replica",
            &replica,
            readdress,
            &[mac, ip, port],
        );
    }
    let replicas = (0..RANKS)
        .map(|rank| Replica {
            port: rank,
            rid: rank,
        })
        .collect();
    testbed
        .engine
        .pre_mut()
        .insert_group(1, replicas)
        .expect("a valid group");
    testbed
}

/// A frame of rank 0.
fn frame(kind: Kind, to: Ipv4Addr, to_mac: [u8; 6]) -> Vec<u8> {
    let header = Header {
        budget: Ticks::MAX,
        ..Header::new(kind, JOB, EPOCH, 0, 0)
    };
    let mut frame = vec![0; FRAME_OVERHEAD + header.len() + PAYLOAD];
    header.emit(&mut frame[FRAME_OVERHEAD..]);
    let endpoints = Endpoints {
        src_mac: mac(0),
        dst_mac: to_mac,
        src: SocketAddrV4::new(address(0), ultima_wire::UDP_PORT),
        dst: SocketAddrV4::new(to, ultima_wire::UDP_PORT),
    };
    endpoints.emit(&mut frame);
    frame
}

fn ingress_and_egress(c: &mut Criterion) {
    let mut group = c.benchmark_group("packet");
    let unicast = frame(Kind::Scatter, address(1), mac(1));
    let to_all = frame(
        Kind::Gather,
        group_address(JOB),
        group_mac(group_address(JOB)),
    );
    for (name, frame, expected) in [("unicast", unicast, 1), ("multicast to 8", to_all, 8)] {
        let (mut testbed, mut frame) = (testbed(), frame);
        assert_eq!(testbed.send(0, &frame).len(), expected, "{name}");
        // Nothing is lost before the switch.
        let mut number = 0_u32;
        let (mut copies, mut clones, mut out) = (Vec::new(), Vec::new(), Vec::new());
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |b| {
            b.iter(|| {
                number = number.wrapping_add(1);
                frame[NUMBER..NUMBER + 4].copy_from_slice(&number.to_be_bytes());
                testbed.engine.ingress(0, black_box(&frame), 1, &mut copies);
                for copy in copies.drain(..) {
                    let queue = QueueInfo::default();
                    black_box(testbed.engine.egress(copy, queue, 2, &mut out, &mut clones));
                }
            });
        });
    }
    group.finish();
}

fn lookups(c: &mut Criterion) {
    let mut group = c.benchmark_group("route");
    for entries in [10u32, 1_000, 4_000] {
        let mut testbed = testbed();
        for entry in 0..entries {
            // Prefixes of many lengths, none of which is the frame's.
            let (len, network) = (8 + entry % 24, 0xc000_0000 | entry << 8);
            let prefix = network >> (32 - len) << (32 - len);
            let matches = [Some(lpm(u128::from(prefix), len))];
            let forward = "UltimaIngress.routing.forward";
            let (table, args) = ("UltimaIngress.routing.route", [1, 2]);
            // Short prefixes repeat.
            let _ = testbed.try_insert(table, &matches, 0, forward, &args);
        }
        let frame = frame(Kind::Scatter, address(1), mac(1));
        let mut copies = Vec::new();
        group.bench_function(format!("{entries} prefixes"), |b| {
            b.iter_batched(
                || (),
                |()| {
                    testbed.engine.ingress(0, black_box(&frame), 1, &mut copies);
                    copies.clear();
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn load(c: &mut Criterion) {
    let program = ultima_p4::v1model();
    c.bench_function("load", |b| {
        b.iter(|| Testbed::new(program.device_config, program.p4info))
    });
}

criterion_group!(benches, ingress_and_egress, lookups, load);
criterion_main!(benches);
