//! Packets through programs, with entries.

use arbitrary::{Arbitrary, Result, Unstructured};
use ultima_switch::engine::{EgressOutcome, Engine, Limits, QueueInfo};
use ultima_switch::trace::{Bench, Fate};

use super::programs::PROGRAMS;

/// Frames of one input.
const MAX_FRAMES: usize = 16;
/// Copies of one frame that are followed: clones of clones multiply.
const MAX_COPIES: usize = 256;

/// Structured: a program, then frames with port and length. Each goes through twice, traced and
/// not, which must come to the same.
pub fn packets(data: &[u8]) {
    // An input that ends early is none.
    let _ = run(&mut Unstructured::new(data));
}

fn run(input: &mut Unstructured) -> Result<()> {
    let program = &PROGRAMS[usize::from(u8::arbitrary(input)?) % PROGRAMS.len()];
    let mut bench = Bench::new(program.files(), Limits::default()).expect("the program loads");
    bench.write(program.entries()).expect("its entries fit");
    for _ in 0..MAX_FRAMES {
        if input.is_empty() {
            break;
        }
        let port = u16::arbitrary(input)? % 511;
        let length = usize::from(u16::arbitrary(input)?) % 2049;
        let filler = u8::arbitrary(input)?;
        let mut frame = input.bytes(length.min(input.len()))?.to_vec();
        frame.resize(length, filler);
        let trace = bench.trace(port, &frame).expect("the port exists");
        assert_eq!(trace.frame.0, frame);
        for copy in &trace.copies {
            assert_ne!(copy.fate, Fate::UnderWay, "a bench follows every copy");
        }
        let json = serde_json::to_string(&trace).expect("a trace is JSON");
        let again = serde_json::from_str(&json).expect("and can be read");
        assert!(trace == again);
    }
    Ok(())
}

/// Sends a frame and all its copies through an engine.
pub fn send(engine: &mut Engine, port: u16, frame: &[u8], now_us: u64) {
    let (mut copies, mut out) = (Vec::new(), Vec::new());
    engine.ingress(port, frame, now_us, &mut copies);
    for _ in 0..MAX_COPIES {
        let Some(copy) = copies.pop() else { break };
        let outcome = engine.egress(copy, QueueInfo::default(), now_us, &mut out, &mut copies);
        if outcome != EgressOutcome::Sent {
            out.clear();
        }
    }
}
