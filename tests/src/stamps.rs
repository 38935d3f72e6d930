//! Stamps: the times that a switch writes into an Ultima header, which differ in each run.
//!
//! Tests compare frames without stamps; other tests check the stamps.

use ultima_wire::{HEADER_LEN, Header, MAGIC, Ticks, VERSION, frame::FRAME_OVERHEAD};

const CHECKSUM: usize = 14 + 20 + 6;
const BUDGET: usize = FRAME_OVERHEAD + 4;
const PATH_QUEUE: usize = FRAME_OVERHEAD + 8;

/// Replaces every budget that is neither zero nor unlimited.
const SOME: u32 = 1;

/// The frame without time in queues, and with a fixed budget if its budget is limited and not zero. A wrong checksum stays wrong.
pub fn unstamped(mut frame: Vec<u8>) -> Vec<u8> {
    if is_ultima(&frame) {
        let budget = match field(&frame, BUDGET) {
            limit if limit == Ticks::MAX.0 || limit == 0 => limit,
            _ => SOME,
        };
        replace(&mut frame, BUDGET, budget);
        replace(&mut frame, PATH_QUEUE, 0);
    }
    frame
}

/// The Ultima header in a frame.
///
/// # Panics
/// If the frame has none.
pub fn header(frame: &[u8]) -> Header {
    let (header, _) = Header::parse(&frame[FRAME_OVERHEAD..]).expect("an Ultima packet");
    header
}

fn is_ultima(frame: &[u8]) -> bool {
    let is = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()] == *bytes;
    frame.len() >= FRAME_OVERHEAD + HEADER_LEN
        && is(12, &[0x08, 0x00, 0x45])
        && u16::from_be_bytes([frame[20], frame[21]]) & 0x1fff == 0
        && frame[23] == 17
        && is(FRAME_OVERHEAD, &MAGIC.to_be_bytes())
        && frame[FRAME_OVERHEAD + 2] >> 4 == VERSION
}

fn field(frame: &[u8], at: usize) -> u32 {
    let bytes = frame[at..at + 4].try_into().expect("four bytes");
    u32::from_be_bytes(bytes)
}

/// Replaces four bytes, and updates the UDP checksum (RFC 1624) if there is one.
fn replace(frame: &mut [u8], at: usize, value: u32) {
    let halves = |value: u32| (value >> 16) + (value & 0xffff);
    let checksum = u16::from_be_bytes([frame[CHECKSUM], frame[CHECKSUM + 1]]);
    if checksum != 0 {
        let mut sum = u32::from(!checksum) + halves(!field(frame, at)) + halves(value);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let checksum = match !(sum as u16) {
            0 => 0xffff,
            other => other,
        };
        frame[CHECKSUM..CHECKSUM + 2].copy_from_slice(&checksum.to_be_bytes());
    }
    frame[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
