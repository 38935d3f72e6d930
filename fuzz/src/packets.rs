//! Packets through programs, with entries.

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroU16;

use arbitrary::{Arbitrary, Result, Unstructured};
use ultima_switch::engine::trace::Recorder;
use ultima_switch::engine::{EgressOutcome, Engine, Limits, QueueInfo};
use ultima_switch::trace::{Bench, Fate};

use super::programs::{PROGRAMS, Program};

/// Frames of one input.
const MAX_FRAMES: usize = 16;
/// Copies of one frame that are followed: clones of clones multiply.
const MAX_COPIES: usize = 256;
/// Inputs that meet the same engines, because to load a program takes a hundred times as long as an input's frames. A find that
/// does not come again with its input alone needs those before it.
const MAX_INPUTS: u32 = 200;

/// A program in three engines.
struct Loaded {
    benches: [Bench; 3],
    inputs: u32,
    now_us: u64,
}

thread_local! {
    /// By the program's place.
    static LOADED: RefCell<HashMap<usize, Loaded>> = RefCell::default();
}

/// Structured: a program, then frames with port and length. Each goes through machine code, where the system has it, and
/// through the interpreter, which records it. Both must send the same.
pub fn packets(data: &[u8]) {
    // An input that ends early is none.
    let _ = run(&mut Unstructured::new(data));
}

fn run(input: &mut Unstructured) -> Result<()> {
    let place = usize::from(u8::arbitrary(input)?) % PROGRAMS.len();
    LOADED.with_borrow_mut(|all| {
        let loaded = all
            .entry(place)
            .or_insert_with(|| Loaded::new(&PROGRAMS[place]));
        loaded.inputs += 1;
        let result = loaded.run(input);
        if loaded.inputs == MAX_INPUTS {
            all.remove(&place);
        }
        result
    })
}

impl Loaded {
    fn new(program: &Program) -> Loaded {
        let benches = [(); 3].map(|()| {
            let mut bench =
                Bench::new(program.files(), Limits::default()).expect("the program loads");
            bench.write(program.entries()).expect("its entries fit");
            bench
        });
        Loaded {
            benches,
            inputs: 0,
            now_us: 0,
        }
    }

    fn run(&mut self, input: &mut Unstructured) -> Result<()> {
        let [bench, plain, recorded] = &mut self.benches;
        for _ in 0..MAX_FRAMES {
            if input.is_empty() {
                break;
            }
            self.now_us += 1;
            let port = u16::arbitrary(input)? % 511;
            let length = usize::from(u16::arbitrary(input)?) % 2049;
            let filler = u8::arbitrary(input)?;
            let mut frame = input.bytes(length.min(input.len()))?.to_vec();
            frame.resize(length, filler);
            agree(
                (plain.engine(), recorded.engine()),
                port,
                &frame,
                self.now_us,
            );
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
}

/// Checks that an engine which records, and so interprets, sends the same as one that runs machine code.
pub fn agree((plain, recorded): (&mut Engine, &mut Engine), port: u16, frame: &[u8], now_us: u64) {
    recorded.record(Box::new(Recorder::new(NonZeroU16::MIN)));
    let sent = send(plain, port, frame, now_us);
    assert_eq!(sent, send(recorded, port, frame, now_us));
    recorded.recorded().expect("it was put in above");
}

/// Sends a frame and all its copies through an engine; returns the ports and the frames that leave.
pub fn send(engine: &mut Engine, port: u16, frame: &[u8], now_us: u64) -> Vec<(u16, Vec<u8>)> {
    let (mut copies, mut out, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    engine.ingress(port, frame, now_us, &mut copies);
    for _ in 0..MAX_COPIES {
        let Some(copy) = copies.pop() else { break };
        let port = copy.port;
        let outcome = engine.egress(copy, QueueInfo::default(), now_us, &mut out, &mut copies);
        if outcome == EgressOutcome::Sent {
            sent.push((port, out.clone()));
        }
        out.clear();
    }
    sent
}
