//! One rank's operations.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use ultima_agent::{Quiet, RENDEZVOUS, ask, meet};
use ultima_host::{ClosedBy, Collective, Error, History, OperationId, Outcome, Report, StartError};

use super::data::{self, Data};

/// The largest squared error, relative to the mean's, that rounding to binary32 can explain: the transform
/// adds up thousands of values, each rounded to about 6 × 10⁻⁸.
pub const ROUNDING: f64 = 1e-10;

/// One operation at one rank.
#[derive(Clone, Debug)]
pub struct Operation {
    /// How it ended.
    pub outcome: Outcome,
    /// ‖result − mean‖² / ‖mean‖², where it was asked for.
    pub error: Option<f64>,
    /// Of the result.
    pub sha256: String,
    /// What the switch beside this host counted of it, where a packet is missing.
    pub switch: Option<ultima_wire::Report>,
}

impl Operation {
    /// Whether every contribution of every rank is in the result.
    pub fn is_whole(&self) -> bool {
        self.outcome.closed_by == ClosedBy::Complete && self.outcome.incomplete_aggregates == 0
    }

    /// Whether the result is not what arrived: nothing was lost, and yet it is not the mean.
    pub fn is_wrong(&self) -> bool {
        self.is_whole()
            && self
                .error
                .is_some_and(|error| error.is_nan() || error > ROUNDING)
    }

    /// Whether nothing at all came from the others.
    pub fn heard_nothing(&self) -> bool {
        let phases = self.outcome.phases;
        [phases.scatter, phases.gather]
            .iter()
            .all(|p| p.in_time + p.cut + p.late == 0)
            && !self.is_whole()
    }
}

/// What a rank did.
#[derive(Clone, Debug)]
pub struct Done {
    /// Which rank.
    pub rank: u16,
    /// Its operations, in order.
    pub operations: Vec<Operation>,
    /// The same folded.
    pub history: History,
    /// All its packets.
    pub report: Report,
}

/// What a rank does not hear.
#[derive(Clone, Debug)]
pub enum Silence {
    /// Others, before the first operation.
    Ranks {
        /// Who hears nothing.
        rank: u16,
        /// From whom.
        from: Vec<u16>,
    },
    /// Anything in its first operation.
    Operation {
        /// Who hears nothing.
        rank: u16,
    },
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Ranks { rank, from } => {
                let from: Vec<String> = from.iter().map(u16::to_string).collect();
                write!(
                    f,
                    "rank {rank} and {} do not hear each other",
                    from.join(", ")
                )
            }
            Silence::Operation { rank } => {
                write!(f, "rank {rank}'s first operation received nothing")
            }
        }
    }
}

/// What a rank is to do.
#[derive(Clone, Debug)]
pub struct Work {
    /// Which rank.
    pub rank: u16,
    /// What is averaged.
    pub data: Data,
    /// How often.
    pub repeat: u32,
    /// Whether results are compared with the exact mean.
    pub verify: bool,
    /// The pause that checks ask for.
    pub quiet: Quiet,
    /// A rank on another host.
    pub elsewhere: Option<u16>,
    /// How long to go on receiving after the last operation.
    pub linger: Duration,
    /// Is told of ranks that are not heard.
    pub silent: UnboundedSender<Silence>,
    /// Turns true when the check that follows has ended, in which this rank takes part.
    pub checked: watch::Receiver<bool>,
}

/// Runs a rank's operations, on a thread where blocking is allowed.
pub fn run(work: Work, mut collective: Collective) -> Result<Done> {
    let Work {
        rank,
        data,
        repeat,
        verify,
        linger,
        quiet,
        elsewhere,
        silent,
        mut checked,
    } = work;
    let prober = collective.prober();
    let missed = meet(&prober, rank, data.ranks, RENDEZVOUS)?;
    // Nobody listens where a check has been asked for already.
    let mut told = !missed.is_empty();
    if told {
        let _ = silent.send(Silence::Ranks { rank, from: missed });
    }
    let mut operations = Vec::new();
    for step in 0..repeat {
        quiet.wait();
        let mut bucket = data.contribution(step, rank);
        let outcome = match collective.allreduce(OperationId { step, bucket: 0 }, &mut bucket) {
            Err(Error::Start(StartError::Alone { operations, .. })) => {
                eprintln!("rank {rank} stops: it has heard nobody for {operations} operations");
                break;
            }
            outcome => outcome?,
        };
        let lossy = outcome.lost.scatter.total() + outcome.lost.gather.total() > 0;
        let switch = match elsewhere.filter(|_| lossy) {
            Some(rank) => ask(&prober, rank, outcome.id)?,
            None => None,
        };
        let operation = Operation {
            switch,
            outcome,
            error: verify.then(|| data.error(step, &bucket)),
            sha256: data::sha256(&bucket),
        };
        if step == 0 && operation.heard_nothing() {
            let _ = silent.send(Silence::Operation { rank });
            told = true;
        }
        operations.push(operation);
    }
    if told {
        // An error is that nobody checks.
        let _ = Handle::current().block_on(checked.wait_for(|checked| *checked));
    }
    let history = collective.observer().history();
    let report = collective.finish(linger)?;
    Ok(Done {
        rank,
        operations,
        history,
        report,
    })
}
