//! Random packets from a seed: sent by members, lost on links, and forged.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};

use pnet::packet::ipv4::Ipv4Flags;
use rand::{Rng, RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;
use ultima_wire::{Header, Key, Kind, Sealer, Ticks};

use super::{BUCKETS, CUT, SEAL, STEP};
use ultima_tests::fabric::HostId;
use ultima_tests::generator::{Datagram, UdpChecksum};
use ultima_tests::job::Job;

/// Frames with values are multiples of this size, see [`super::model::Meter`].
pub const GRANULE: usize = 256;
/// The number of packets that a host sends at a time.
const BURST: usize = 8;
/// A source's numbering starts at a multiple of this.
const NUMBERING: u32 = 1 << 20;

/// The fate of a packet up to the admission at its first switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is lost before the switch.
    Lost,
    /// Its IPv4 header is corrupt.
    Damaged,
    /// The switch rejects it, and counts it at this index.
    Refused(u32),
    /// The switch admits it.
    Admitted,
}

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One rank.
    Rank(u16),
    /// The job's group.
    Group,
    /// The first switch, with a probe.
    Switch,
}

/// One packet.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Its unique number: the slot in its header.
    pub id: u32,
    /// The host that sends it.
    pub from: HostId,
    /// The index of its job.
    pub job: usize,
    /// The rank in its header.
    pub source: u16,
    /// The start of its source's numbering and its number. `None` if it is forged.
    pub number: Option<(u32, u32)>,
    /// Its fate at the first switch.
    pub fate: Fate,
    /// Its destination.
    pub to: To,
    /// Its kind.
    pub kind: Kind,
    /// Its time to live.
    pub ttl: u8,
    /// True if its budget is zero.
    pub late: bool,
    /// True if it has values.
    pub values: bool,
    /// True if it has a digest and a tag.
    pub sealed: bool,
    /// The operation's bucket.
    pub bucket: u16,
    /// The frame.
    pub frame: Vec<u8>,
}

/// Bursts of packets, each of one host.
pub fn bursts(jobs: &[Job], seed: u64, packets: usize) -> Vec<Vec<Packet>> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut ids = 0;
    let mut streams: Vec<VecDeque<Packet>> = Vec::new();
    for (job, installed) in jobs.iter().enumerate() {
        for source in installed.ranks() {
            let mut stream = Stream {
                job: installed,
                at: job,
                source,
                ids: &mut ids,
            };
            streams.push(stream.packets(&mut random, packets));
        }
    }
    let mut bursts = Vec::new();
    while !streams.is_empty() {
        let at = random.random_range(0..streams.len());
        let stream = &mut streams[at];
        let length = random.random_range(1..=BURST).min(stream.len());
        bursts.push(stream.drain(..length).collect());
        if stream.is_empty() {
            streams.swap_remove(at);
        }
    }
    bursts
}

/// The packets of one source.
struct Stream<'a> {
    job: &'a Job,
    at: usize,
    source: u16,
    ids: &'a mut u32,
}

impl Stream<'_> {
    /// Two numberings. Each ends with a probe, and the first skips a third of its numbers at once.
    fn packets(&mut self, random: &mut impl Rng, packets: usize) -> VecDeque<Packet> {
        let mut stream = Vec::new();
        for numbering in [
            random.random_range(0..2048),
            random.random_range(2048..4096),
        ] {
            let start = numbering * NUMBERING;
            let mut number = start;
            for _ in 0..2 {
                let mut part: Vec<Packet> = Vec::new();
                for _ in 0..packets / 4 {
                    part.push(self.packet(random, (start, number)));
                    number += 1;
                }
                stream.extend(reorder_and_duplicate(part, random));
                // Skipped at once.
                number += random.random_range(0..3000);
            }
            stream.push(self.packet_to(random, To::Switch, (start, number)));
        }
        stream.into()
    }

    fn packet(&mut self, random: &mut impl Rng, number: (u32, u32)) -> Packet {
        let others = self.job.ranks().filter(|rank| *rank != self.source);
        let others: Vec<u16> = others.collect();
        let to = match random.random_range(0..10) {
            0 => To::Switch,
            1..=4 => To::Group,
            _ => To::Rank(others[random.random_range(0..others.len())]),
        };
        self.packet_to(random, to, number)
    }

    fn packet_to(&mut self, random: &mut impl Rng, to: To, (start, number): (u32, u32)) -> Packet {
        let job = self.job;
        let kind = match (to, random.random_range(0..8)) {
            (To::Switch, _) => Kind::Probe,
            (_, 0) => Kind::Feedback,
            (_, 1) => Kind::Repair,
            (To::Group, _) => Kind::Gather,
            (To::Rank(_), _) => Kind::Scatter,
        };
        let is_data = matches!(kind, Kind::Scatter | Kind::Gather | Kind::Repair);
        let sealed = kind != Kind::Probe && random.random_range(0..4) == 0;
        let values = is_data && random.random_range(0..12) != 0;
        let late = random.random_range(0..8) == 0;
        *self.ids += 1;
        let id = *self.ids;
        let bucket = random.random_range(0..BUCKETS);
        let mut header = Header {
            budget: match late {
                true => Ticks(0),
                false => [Ticks::MAX, Ticks(1 << 30)][random.random_range(0..2)],
            },
            packet_number: number,
            step: STEP,
            bucket,
            slot: id,
            ..job.header(kind, self.source, self.source)
        };
        let head = CUT + if sealed { SEAL } else { 0 };
        let payload = match (kind, values) {
            (Kind::Probe, _) => vec![0xa5; ultima_wire::Report::LEN + random.random_range(0..9)],
            (Kind::Feedback, _) => vec![1; 4],
            (_, true) => vec![7; GRANULE * random.random_range(1..5) - head],
            (_, false) => vec![],
        };
        if sealed {
            header.seal(&mut Sealer::new(&Key(*b"the job's secret")), &payload);
        }
        let mut datagram = match to {
            To::Group => job.gather(self.source, &payload),
            To::Rank(owner) => job.scatter(self.source, owner, &payload),
            To::Switch => {
                let room = payload.len() - ultima_wire::Report::LEN;
                job.probe(self.source, room)
            }
        }
        .with_header(&header);
        if random.random_range(0..4) == 0 {
            datagram.checksum = UdpChecksum::None;
        }
        if random.random_range(0..10) == 0 {
            datagram.ttl = random.random_range(0..4);
        }
        let (fate, numbered, frame) = self.fate_of(random, datagram.clone(), &header, to);
        Packet {
            id,
            from: job.host_of(self.source),
            job: self.at,
            source: self.source,
            number: numbered.then_some((start, number)),
            fate,
            to,
            kind,
            ttl: datagram.ttl,
            late: late && is_data,
            values,
            sealed,
            bucket,
            frame,
        }
    }

    /// The fate of a packet, mostly admission. A forged packet does not use a number of its source.
    fn fate_of(
        &self,
        random: &mut impl Rng,
        datagram: Datagram,
        header: &Header,
        to: To,
    ) -> (Fate, bool, Vec<u8>) {
        let refused = Fate::Refused(self.job.counter);
        let with_header = |header: &Header| {
            let mut forged = datagram.clone();
            header.emit(&mut forged.payload);
            forged.emit()
        };
        match (random.random_range(0..40), to) {
            (0..4, _) => (Fate::Lost, true, datagram.emit()),
            (4, _) => {
                let mut frame = datagram.emit();
                // Its IPv4 checksum.
                frame[14 + 10] ^= 0x11;
                (Fate::Damaged, true, frame)
            }
            (5, To::Rank(_)) => {
                let ip = Ipv4Addr::new(10, 0, 0, 77);
                let dst = SocketAddrV4::new(ip, datagram.dst.port());
                (refused, true, Datagram { dst, ..datagram }.emit())
            }
            (6, To::Rank(_)) => {
                let dst = SocketAddrV4::new(*datagram.dst.ip(), 9);
                (refused, true, Datagram { dst, ..datagram }.emit())
            }
            (7, _) => {
                let length_error = -1;
                let wrong = Datagram {
                    length_error,
                    ..datagram
                };
                (refused, true, wrong.emit())
            }
            (8, _) => {
                let mut first = datagram.packet();
                first.flags = Ipv4Flags::MoreFragments;
                (refused, true, first.emit())
            }
            (9, _) => {
                let epoch = header.epoch + 1;
                let forged = with_header(&Header { epoch, ..*header });
                (refused, false, forged)
            }
            (10, _) => {
                let job = 999;
                let forged = with_header(&Header { job, ..*header });
                (Fate::Refused(0), false, forged)
            }
            (11, _) => {
                let source = header.source + 40;
                let forged = with_header(&Header { source, ..*header });
                (refused, false, forged)
            }
            (12, _) => {
                let ip = Ipv4Addr::new(10, 0, 0, 78);
                let src = SocketAddrV4::new(ip, datagram.src.port());
                (refused, false, Datagram { src, ..datagram }.emit())
            }
            _ => (Fate::Admitted, true, datagram.emit()),
        }
    }
}

/// Reorders and duplicates some packets, as a link does.
fn reorder_and_duplicate(packets: Vec<Packet>, random: &mut impl Rng) -> Vec<Packet> {
    let mut places: Vec<(usize, Packet)> = Vec::new();
    for (at, packet) in packets.into_iter().enumerate() {
        let place = at * 2;
        match random.random_range(0..10) {
            0 => {
                places.push((place, packet.clone()));
                places.push((place + random.random_range(1..12), packet));
            }
            1 => places.push((place + random.random_range(3..16), packet)),
            _ => places.push((place, packet)),
        }
    }
    places.sort_by_key(|(place, _)| *place);
    places.into_iter().map(|(_, packet)| packet).collect()
}
