//! The operations of one rank: averages of generated data.

use std::ops::Deref;
use std::time::Duration;

use anyhow::Result;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use ultima_agent::rank::{Position, RankOutcome, RunningRank, Silence};
use ultima_agent::{Departure, Membership, Start};
use ultima_host::{Error, History, OperationId, Report, StartError};

use super::data::{self, Data};

/// The largest relative squared error that rounding to binary32 explains: the transform adds thousands of values, each rounded to about
/// 6 × 10⁻⁸.
pub const ROUNDING: f64 = 1e-10;

/// One operation at one rank.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its number, from 0.
    pub step: u32,
    /// Its epoch.
    pub epoch: u16,
    /// Its outcome.
    pub outcome: RankOutcome,
    /// ‖result − mean‖² / ‖mean‖², with `--verify`.
    pub error: Option<f64>,
    /// The digest of the result.
    pub sha256: String,
    /// The counters of this host's switch for the operation, if a packet is missing.
    pub switch: Option<ultima_wire::Report>,
}

impl Deref for Operation {
    type Target = RankOutcome;

    fn deref(&self) -> &RankOutcome {
        &self.outcome
    }
}

impl Operation {
    /// True if nothing was lost, but the result is not the mean.
    pub fn is_wrong(&self) -> bool {
        self.is_whole()
            && self
                .error
                .is_some_and(|error| error.is_nan() || error > ROUNDING)
    }
}

/// The result of a rank.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its final position.
    pub position: Position,
    /// Its final memberships, by job.
    pub memberships: Vec<Membership>,
    /// Why it stopped early, if it did.
    pub stopped: Option<String>,
    /// Its operations, in order.
    pub operations: Vec<Operation>,
    /// Histograms of its operations.
    pub history: History,
    /// Its packet counters, by job.
    pub reports: Vec<Report>,
    /// True if lost values are sent again.
    pub recycles: bool,
}

/// The work of a rank.
pub struct Work {
    /// Its first operation.
    pub start: Start,
    /// The data to average.
    pub data: Data,
    /// The number of operations.
    pub repeat: u32,
    /// True to compare results with the exact mean.
    pub verify: bool,
    /// True if lost values are sent again.
    pub recycles: bool,
    /// How long to receive after the last operation.
    pub linger: Duration,
    /// Receives reports of silent ranks.
    pub silent: UnboundedSender<Silence>,
    /// Becomes true when the check after such a report has ended; this rank takes part in it.
    pub checked: watch::Receiver<bool>,
}

/// Runs a rank's operations, on a thread where blocking is allowed.
pub fn run(work: Work, mut rank: RunningRank) -> Result<Done> {
    let Work {
        start,
        mut data,
        repeat,
        verify,
        recycles,
        linger,
        silent,
        mut checked,
    } = work;
    let mut has_reported = false;
    let mut report = |silence: Silence| {
        // Fails if a check has been requested already.
        let _ = silent.send(silence);
        has_reported = true;
    };
    // Ranks that join later find the others running.
    if start.together {
        rank.meet()?.into_iter().for_each(&mut report);
    }
    let mut operations: Vec<Operation> = Vec::new();
    let mut history = History::default();
    let mut stopped = None;
    for step in start.first..repeat {
        if let Err(departure) = rank.enter(step) {
            let number = rank.position().rank;
            match departure {
                Departure::LeftOut(why) => {
                    eprintln!("rank {number} leaves the job before operation {step}: {why}");
                }
                Departure::Ended(why) | Departure::CannotBegin(why) => {
                    eprintln!("rank {number} stops: {why}");
                    stopped = Some(why);
                }
            }
            break;
        }
        let Position {
            rank: number,
            ranks,
            ..
        } = *rank.position();
        data.ranks = ranks;
        let mut bucket = data.contribution(step, number);
        let id = OperationId { step, bucket: 0 };
        let outcome = match rank.allreduce(id, &mut bucket) {
            Err(Error::Start(StartError::Alone { operations, .. })) => {
                eprintln!("rank {number} stops: no packets of others in {operations} operations");
                break;
            }
            Err(Error::Start(error @ StartError::Left { .. })) => {
                eprintln!("rank {number} stops: {error}");
                stopped = Some(error.to_string());
                break;
            }
            outcome => outcome?,
        };
        let lost = outcome.lost();
        let switch = match lost.scatter.total() + lost.gather.total() {
            0 => None,
            _ => rank.ask_switch(id)?,
        };
        if operations.is_empty() {
            rank.silence(&outcome).into_iter().for_each(&mut report);
        }
        warn_of_silence(number, &outcome, operations.last());
        history.add(&outcome.folded());
        operations.push(Operation {
            step,
            epoch: rank.epoch(),
            outcome,
            switch,
            error: verify.then(|| data.error(step, &bucket)),
            sha256: data::sha256(&bucket),
        });
    }
    if has_reported {
        // Fails if no check runs.
        let _ = Handle::current().block_on(checked.wait_for(|checked| *checked));
    }
    Ok(Done {
        position: *rank.position(),
        memberships: rank.memberships(),
        stopped,
        operations,
        history,
        reports: rank.finish(linger)?,
        recycles,
    })
}

/// Prints one line for each rank that is suspected since this operation.
fn warn_of_silence(rank: u16, outcome: &RankOutcome, previous: Option<&Operation>) {
    let (left, before) = (
        outcome.left(),
        previous.map(|previous| previous.suspected()),
    );
    let before = before.unwrap_or_default();
    let suspected = outcome.suspected().into_iter();
    for silent in suspected.filter(|silent| !before.contains(silent) && !left.contains(silent)) {
        eprintln!("warning: rank {rank}: nothing came from rank {silent} in the last operations");
    }
}
