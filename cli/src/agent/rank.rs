//! The operations of one rank.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use ultima_agent::{Context, Go, Membership, Next, Quiet, RENDEZVOUS, Start, ask, meet};
use ultima_host::{
    ClosedBy, Error, FromRank, History, Losses, OperationId, Outcome, Phases, Prober, Report,
    StartError, Stopped,
};

use super::averager::{Averager, Place};
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
    /// This rank's position at the time.
    pub place: Place,
    /// Its outcome; in a grid, one per phase.
    pub phases: Vec<Outcome>,
    /// ‖result − mean‖² / ‖mean‖², with `--verify`.
    pub error: Option<f64>,
    /// The digest of the result.
    pub sha256: String,
    /// The counters of this host's switch for the operation, if a packet is missing.
    pub switch: Option<ultima_wire::Report>,
}

impl Operation {
    /// True if the result contains every contribution of every rank.
    pub fn is_whole(&self) -> bool {
        self.phases.iter().all(Outcome::is_whole)
    }

    /// Time from start to end.
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|phase| phase.duration).sum()
    }

    /// Time until this rank's shard closed; in a grid, until it was averaged over all groups.
    pub fn shard_duration(&self) -> Duration {
        let (last, before) = self.phases.split_last().expect("an operation has a phase");
        let before: Duration = before.iter().map(|phase| phase.duration).sum();
        before + last.shard_duration
    }

    /// The worst reason for the end of a phase.
    pub fn closed_by(&self) -> ClosedBy {
        let worst = self.phases.iter().map(|phase| phase.closed_by).max();
        worst.unwrap_or_default()
    }

    /// Losses by cause.
    pub fn lost(&self) -> Losses {
        self.phases
            .iter()
            .fold(Losses::default(), |mut sum, phase| {
                sum += phase.lost;
                sum
            })
    }

    /// Missing packets by sender, with ranks of the whole job.
    pub fn missing_from(&self) -> Vec<(u16, FromRank)> {
        let place = &self.place;
        let mut missing: BTreeMap<u16, FromRank> = BTreeMap::new();
        for (phase, outcome) in self.phases.iter().enumerate() {
            let job = Place::job_of_phase(phase);
            for (other, lacking) in outcome.missing_from(place.in_job(job).0) {
                let sum = missing.entry(place.of_job(job, other)).or_default();
                sum.contributions += lacking.contributions;
                sum.aggregates += lacking.aggregates;
            }
        }
        missing.into_iter().collect()
    }

    /// Suspected ranks, with ranks of the whole job.
    pub fn suspected(&self) -> Vec<u16> {
        let place = &self.place;
        let of_phase = |(phase, outcome): (usize, &Outcome)| {
            let job = Place::job_of_phase(phase);
            let ranks = outcome.suspected.iter();
            ranks
                .map(|&other| place.of_job(job, other))
                .collect::<Vec<_>>()
        };
        let phases = self.phases.iter().enumerate();
        let all: BTreeSet<u16> = phases.flat_map(of_phase).collect();
        all.into_iter().collect()
    }

    /// All phases as one outcome, for the history.
    fn folded(&self) -> Outcome {
        let last = self.phases.last().expect("an operation has a phase");
        Outcome {
            closed_by: self.closed_by(),
            duration: self.duration(),
            shard_duration: self.shard_duration(),
            lost: self.lost(),
            owed: self.phases.iter().map(|phase| phase.owed).sum(),
            ..last.clone()
        }
    }

    /// True if nothing was lost, but the result is not the mean.
    pub fn is_wrong(&self) -> bool {
        self.is_whole()
            && self
                .error
                .is_some_and(|error| error.is_nan() || error > ROUNDING)
    }

    /// The number of a job in which no packet of another rank arrived, if there is one.
    pub fn heard_nothing(&self) -> Option<usize> {
        let phases = self.phases.iter().enumerate().map(|(at, outcome)| {
            let Phases { scatter, gather } = outcome.phases;
            let came = [scatter, gather].map(|phase| phase.in_time + phase.cut + phase.late);
            (Place::job_of_phase(at), [outcome.owed, came.iter().sum()])
        });
        silent_job(phases)
    }
}

/// The first job in which packets were expected but none arrived. Takes each phase's job, expected and received packets.
fn silent_job(phases: impl Iterator<Item = (usize, [u64; 2])>) -> Option<usize> {
    let mut jobs: BTreeMap<usize, [u64; 2]> = BTreeMap::new();
    for (job, [owed, came]) in phases {
        let sum = jobs.entry(job).or_default();
        *sum = [sum[0] + owed, sum[1] + came];
    }
    let silent = jobs
        .iter()
        .find(|(_, [owed, came])| *owed > 0 && *came == 0);
    silent.map(|(job, _)| *job)
}

/// The result of a rank.
#[derive(Clone, Debug)]
pub struct Done {
    /// Its final position.
    pub place: Place,
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

/// A rank that does not receive from others.
#[derive(Clone, Debug)]
pub enum Silence {
    /// Nothing from certain ranks, before the first operation.
    Ranks {
        /// The job, or a row or column of a grid.
        job: String,
        /// The receiver.
        rank: u16,
        /// The senders.
        from: Vec<u16>,
    },
    /// No packet at all in the first operation.
    Operation {
        /// The job, or a row or column of a grid.
        job: String,
        /// The receiver.
        rank: u16,
    },
}

impl Silence {
    /// The job to check.
    pub fn job(&self) -> &str {
        match self {
            Silence::Ranks { job, .. } | Silence::Operation { job, .. } => job,
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Ranks { rank, from, .. } => {
                let from: Vec<String> = from.iter().map(u16::to_string).collect();
                write!(
                    f,
                    "rank {rank} and rank {} do not receive each other's packets",
                    from.join(", ")
                )
            }
            Silence::Operation { job, rank } => {
                write!(
                    f,
                    "rank {rank} received nothing in its first operation in job {job}"
                )
            }
        }
    }
}

/// The work of a rank.
pub struct Work {
    /// The rank's position.
    pub place: Place,
    /// Its first operation.
    pub start: Start,
    /// The shared state of the process's sessions.
    pub context: Context,
    /// The names of its jobs.
    pub jobs: Vec<String>,
    /// The data to average.
    pub data: Data,
    /// The number of operations.
    pub repeat: u32,
    /// True to compare results with the exact mean.
    pub verify: bool,
    /// True if lost values are sent again.
    pub recycles: bool,
    /// The pauses that checks request, by job.
    pub quiet: Vec<Quiet>,
    /// A rank on another host; none in a grid.
    pub elsewhere: Option<u16>,
    /// How long to receive after the last operation.
    pub linger: Duration,
    /// Receives reports of silent ranks.
    pub silent: UnboundedSender<Silence>,
    /// Becomes true when the check after such a report has ended; this rank takes part in it.
    pub checked: watch::Receiver<bool>,
}

/// Runs a rank's operations, on a thread where blocking is allowed.
pub fn run(work: Work, mut averager: Averager) -> Result<Done> {
    let Work {
        mut place,
        start,
        context,
        jobs,
        mut data,
        repeat,
        verify,
        recycles,
        linger,
        mut quiet,
        mut elsewhere,
        silent,
        mut checked,
    } = work;
    let mut probers = averager.probers();
    let mut has_reported = false;
    let missed = match start.together {
        true => meet_all(&probers, &place)?,
        // The other ranks are already running.
        false => Vec::new(),
    };
    for ((at, missed), job) in missed.into_iter().enumerate().zip(&jobs) {
        if !missed.is_empty() {
            let from = missed
                .iter()
                .map(|&other| place.of_job(at, other))
                .collect();
            let (job, rank) = (job.clone(), place.rank);
            // Fails if a check has been requested already.
            let _ = silent.send(Silence::Ranks { job, rank, from });
            has_reported = true;
        }
    }
    let mut operations: Vec<Operation> = Vec::new();
    // Collectives of earlier epochs, which still serve repairs.
    let mut ending = Vec::new();
    let mut stopped = None;
    let mut step = start.first;
    while step < repeat {
        quiet.iter().for_each(Quiet::wait);
        match averager.go(step) {
            Go::Begin => {}
            Go::Over(Next::Place(next)) => {
                if let Averager::Flat(session) = &mut averager {
                    let before = session.go_over(next, step, &context);
                    ending.push(thread::spawn(move || before.collective.finish(linger)));
                    let config = session.collective.config();
                    place = Place::flat((config.rank, config.ranks));
                    quiet = vec![session.quiet.clone()];
                    elsewhere = session.membership.elsewhere();
                }
                data.ranks = place.ranks;
                probers = averager.probers();
                continue;
            }
            Go::Over(Next::LeftOut(why)) => {
                let rank = place.rank;
                eprintln!("rank {rank} leaves the job before operation {step}: {why}");
                break;
            }
            Go::Nowhere(why) => {
                eprintln!("rank {} stops: {why}", place.rank);
                stopped = Some(why);
                break;
            }
        }
        let rank = place.rank;
        let mut bucket = data.contribution(step, rank);
        let phases = match averager.allreduce(OperationId { step, bucket: 0 }, &mut bucket) {
            Err(Error::Start(StartError::Alone { operations, .. })) => {
                eprintln!("rank {rank} stops: no packets of others in {operations} operations");
                break;
            }
            phases => phases?,
        };
        let mut operation = Operation {
            step,
            epoch: averager.epoch(),
            place,
            phases,
            switch: None,
            error: verify.then(|| data.error(step, &bucket)),
            sha256: data::sha256(&bucket),
        };
        averager.suspect(operation.suspected());
        let lost = operation.lost();
        if let Some(other) = elsewhere
            && lost.scatter.total() + lost.gather.total() > 0
        {
            operation.switch = ask(&probers[0], other, OperationId { step, bucket: 0 })?;
        }
        if let (true, Some(job)) = (operations.is_empty(), operation.heard_nothing()) {
            let job = jobs[job].clone();
            let _ = silent.send(Silence::Operation { job, rank });
            has_reported = true;
        }
        operations.push(operation);
        step += 1;
    }
    if has_reported {
        // Fails if no check runs.
        let _ = Handle::current().block_on(checked.wait_for(|checked| *checked));
    }
    let mut history = History::default();
    for operation in &operations {
        history.add(&operation.folded());
    }
    let memberships = averager.memberships();
    let mut reports = Vec::new();
    for collective in ending {
        reports.push(
            collective
                .join()
                .unwrap_or_else(|panic| resume_unwind(panic))?,
        );
    }
    reports.extend(averager.finish(linger)?);
    Ok(Done {
        place,
        memberships,
        stopped,
        operations,
        history,
        reports,
        recycles,
    })
}

/// Exchanges packets with all other ranks in each job; returns the ranks from which none arrived.
fn meet_all(probers: &[Prober], place: &Place) -> Result<Vec<Vec<u16>>, Stopped> {
    // In parallel, so that an incomplete row does not delay the column.
    thread::scope(|scope| {
        let meeting = probers.iter().enumerate().map(|(at, prober)| {
            let (number, ranks) = place.in_job(at);
            scope.spawn(move || meet(prober, number, ranks, RENDEZVOUS))
        });
        let meeting: Vec<_> = meeting.collect();
        let met = meeting.into_iter().map(|met| match met.join() {
            Ok(met) => met,
            Err(panic) => resume_unwind(panic),
        });
        met.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_column_is_found_despite_packets_of_the_row() {
        let of = |phases: [[u64; 2]; 3]| {
            let jobs = (0..3).map(Place::job_of_phase);
            silent_job(jobs.zip(phases))
        };
        assert_eq!(of([[7, 7], [6, 0], [7, 7]]), Some(1));
        assert_eq!(of([[7, 0], [6, 6], [7, 0]]), Some(0));
        assert_eq!(of([[7, 0], [6, 1], [7, 1]]), None);
        // No packet is expected, so none is missing.
        assert_eq!(of([[7, 7], [0, 0], [7, 7]]), None);
        assert_eq!(silent_job([(0, [4, 0])].into_iter()), Some(0));
    }
}
