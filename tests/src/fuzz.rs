//! Mutated frames, similar to valid ones, so that some pass the first checks.

use rand::{RngExt as _, SeedableRng as _};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::fabric::HostId;
use crate::netns::MTU;
use crate::scenario::Scenario;

/// The offsets of headers in an untagged IPv4 frame with UDP.
const IPV4: usize = 14;
const UDP: usize = IPV4 + 20;
const ULTIMA: usize = UDP + 8;
/// The offset of the job's number in an Ultima frame. Epoch, source and owner follow, with 2 bytes each.
const NUMBERS: usize = ULTIMA + 12;
/// The shortest and the longest frame that an interface sends.
const SHORTEST: usize = 14;
const LONGEST: usize = 14 + MTU;

/// A frame and the host that sends it.
pub type Sent = (HostId, Vec<u8>);

/// `count` mutations of the frames of `scenarios`, the same for the same seed.
///
/// # Panics
/// If there are no scenarios.
pub fn mutations(scenarios: &[Scenario], seed: u64, count: usize) -> Vec<Sent> {
    let corpus: Vec<Sent> = (scenarios.iter().flat_map(|scenario| &scenario.steps))
        // Jumbo frames take time and add no variety.
        .filter(|step| step.frame.len() <= 256)
        .map(|step| (step.from, step.frame.clone()))
        .collect();
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    (0..count).map(|_| mutate(&mut random, &corpus)).collect()
}

fn mutate(random: &mut Xoshiro256PlusPlus, corpus: &[Sent]) -> Sent {
    let pick = |random: &mut Xoshiro256PlusPlus| random.random_range(0..corpus.len());
    let (mut from, mut frame) = corpus[pick(random)].clone();
    for _ in 0..random.random_range(1..=3) {
        match random.random_range(0..8) {
            0 => from = corpus[pick(random)].0,
            1 => flip_bit(random, &mut frame),
            2 => {
                let at = random.random_range(0..frame.len());
                frame[at] = random.random();
            }
            3 => small_number(random, &mut frame),
            4 => frame.truncate(random.random_range(SHORTEST..=frame.len())),
            5 => {
                let more: usize = random.random_range(1..200);
                frame.extend((0..more).map(|_| random.random::<u8>()));
            }
            6 => {
                let (_, other) = &corpus[pick(random)];
                splice(random, &mut frame, other);
            }
            _ => correct_lengths(&mut frame),
        }
    }
    frame.truncate(LONGEST);
    // The parser drops most frames with a wrong IPv4 checksum.
    if random.random_bool(0.8) {
        correct_ipv4_checksum(&mut frame);
    }
    (from, frame)
}

fn flip_bit(random: &mut Xoshiro256PlusPlus, frame: &mut [u8]) {
    let bit = random.random_range(0..frame.len() * 8);
    frame[bit / 8] ^= 1 << (bit % 8);
}

/// Replaces the job, the epoch or a rank by a small number.
fn small_number(random: &mut Xoshiro256PlusPlus, frame: &mut [u8]) {
    let at = NUMBERS + 2 * random.random_range(0..4);
    if let Some(field) = frame.get_mut(at..at + 2) {
        field.copy_from_slice(&random.random_range(0..5u16).to_be_bytes());
    }
}

/// Copies some bytes of another frame to the same offset.
fn splice(random: &mut Xoshiro256PlusPlus, frame: &mut [u8], other: &[u8]) {
    let shorter = frame.len().min(other.len());
    let start = random.random_range(0..shorter);
    let end = random.random_range(start..=shorter);
    frame[start..end].copy_from_slice(&other[start..end]);
}

/// Sets the lengths of IPv4 and UDP to that of the frame.
fn correct_lengths(frame: &mut [u8]) {
    for (header, field) in [(IPV4, IPV4 + 2), (UDP, UDP + 4)] {
        let length = frame.len().saturating_sub(header) as u16;
        if let Some(field) = frame.get_mut(field..field + 2) {
            field.copy_from_slice(&length.to_be_bytes());
        }
    }
}

fn correct_ipv4_checksum(frame: &mut [u8]) {
    if let Some(header) = frame.get_mut(IPV4..UDP) {
        let checksum = pnet::util::checksum(header, 5);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}
