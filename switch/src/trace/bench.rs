//! Traces without a running switch: a program, its entries, and single frames.

use std::collections::VecDeque;
use std::num::NonZeroU16;

use ultima_p4runtime::text;
use ultima_p4runtime::v1::WriteRequest;

use super::{Fate, PacketTrace};
use crate::config::{MAX_PORT, ProgramFiles};
use crate::pipeline::{ConfigError, Loader, Pipeline};
use crate::translate;
use ultima_engine::trace::Recorder;
use ultima_engine::{EgressOutcome, Engine, Limits, QueueInfo};

/// A program without a switch: all ports exist, queues are empty, wires lose nothing.
pub struct Bench {
    pipeline: Pipeline,
    /// Number of frames so far. Frames enter one second apart, so that meters have tokens.
    entered: u64,
}

/// Why a bench rejects its input.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The P4Info cannot be parsed.
    #[error("P4Info: {0}")]
    P4Info(#[from] text::TextError),
    /// The program does not load.
    #[error(transparent)]
    Program(#[from] ConfigError),
    /// An update cannot be applied.
    #[error("update {number}: {what}")]
    Update {
        /// Number of the update, from 1.
        number: usize,
        /// The reason.
        what: String,
    },
    /// A port that no frame can enter.
    #[error("port {0}: expected 0 to {MAX_PORT}")]
    Port(u16),
}

impl Bench {
    /// Loads a program.
    ///
    /// # Errors
    /// The program does not load, or does not fit the P4Info.
    pub fn new(files: ProgramFiles, limits: Limits) -> Result<Bench, BenchError> {
        let loader = Loader {
            limits,
            seed: 0,
            target: None,
        };
        let pipeline = loader.load(files.parsed()?)?;
        Ok(Bench {
            pipeline,
            entered: 0,
        })
    }

    /// Applies the updates of a request in order. Ignores role and election id.
    ///
    /// # Errors
    /// The first invalid update. Those before it are applied.
    pub fn write(&mut self, request: WriteRequest) -> Result<(), BenchError> {
        for (index, update) in request.updates.into_iter().enumerate() {
            translate::apply(&mut self.pipeline, update).map_err(|error| BenchError::Update {
                number: index + 1,
                what: error.to_string(),
            })?;
        }
        Ok(())
    }

    /// The engine with the program and its entries, for frames without a trace.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.pipeline.engine
    }

    /// Processes a frame that enters at a port, with all its copies.
    ///
    /// # Errors
    /// There is no such port.
    pub fn trace(&mut self, port: u16, frame: &[u8]) -> Result<PacketTrace, BenchError> {
        if port > MAX_PORT {
            return Err(BenchError::Port(port));
        }
        let now = self.entered * 1_000_000;
        self.entered += 1;
        let engine = &mut self.pipeline.engine;
        engine.record(Box::new(Recorder::new(NonZeroU16::MIN)));
        let follow = |engine: &mut Engine, copy| {
            if let Some(recorder) = engine.recorder() {
                recorder.follow(copy, now);
            }
        };
        let (mut copies, mut out) = (Vec::new(), Vec::new());
        follow(engine, 0);
        engine.ingress(port, frame, now, &mut copies);
        let mut queue = VecDeque::from(std::mem::take(&mut copies));
        while let Some(copy) = queue.pop_front() {
            // One too many to be followed, and what comes of it, too.
            let Some(mark) = copy.mark else { continue };
            follow(engine, mark.copy);
            let outcome = engine.egress(copy, QueueInfo::default(), now, &mut out, &mut copies);
            queue.extend(copies.drain(..));
            let fate = match outcome {
                EgressOutcome::Sent => Fate::Left,
                EgressOutcome::Dropped(_) => Fate::Dropped,
                EgressOutcome::Recirculated(_) => Fate::Recirculated,
            };
            follow(engine, mark.copy);
            if let Some(recorder) = engine.recorder() {
                recorder.end(fate);
            }
        }
        let recorder = engine.recorded().expect("it was put in above");
        Ok(recorder.finish(port, now, frame.to_vec()))
    }
}
