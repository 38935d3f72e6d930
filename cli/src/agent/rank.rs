//! One rank's operations.

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

/// The largest squared error, relative to the mean's, that rounding to binary32 can explain: the transform
/// adds up thousands of values, each rounded to about 6 × 10⁻⁸.
pub const ROUNDING: f64 = 1e-10;

/// One operation at one rank.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its number, from 0.
    pub step: u32,
    /// In which epoch it was.
    pub epoch: u16,
    /// Which rank this was then, of how many.
    pub place: Place,
    /// How it ended, or of a grid its phases in their order.
    pub phases: Vec<Outcome>,
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
        self.phases.iter().all(Outcome::is_whole)
    }

    /// From the start to the end.
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|phase| phase.duration).sum()
    }

    /// Until this rank's shard had closed; on a grid until it was averaged over all groups.
    pub fn shard_duration(&self) -> Duration {
        let (last, before) = self.phases.split_last().expect("an operation has a phase");
        let before: Duration = before.iter().map(|phase| phase.duration).sum();
        before + last.shard_duration
    }

    /// The worst of what ended its phases.
    pub fn closed_by(&self) -> ClosedBy {
        let worst = self.phases.iter().map(|phase| phase.closed_by).max();
        worst.unwrap_or_default()
    }

    /// What did not come in time, and why.
    pub fn lost(&self) -> Losses {
        self.phases
            .iter()
            .fold(Losses::default(), |mut sum, phase| {
                sum += phase.lost;
                sum
            })
    }

    /// Whose packets did not come in time, by rank of the whole job.
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

    /// Who was silent so long that it is not waited for, by rank of the whole job.
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

    /// For a history: all phases as one.
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

    /// Whether the result is not what arrived: nothing was lost, and yet it is not the mean.
    pub fn is_wrong(&self) -> bool {
        self.is_whole()
            && self
                .error
                .is_some_and(|error| error.is_nan() || error > ROUNDING)
    }

    /// The job in which nothing at all came from the others, by its number, if there is one.
    pub fn heard_nothing(&self) -> Option<usize> {
        let phases = self.phases.iter().enumerate().map(|(at, outcome)| {
            let Phases { scatter, gather } = outcome.phases;
            let came = [scatter, gather].map(|phase| phase.in_time + phase.cut + phase.late);
            (Place::job_of_phase(at), [outcome.owed, came.iter().sum()])
        });
        silent_job(phases)
    }
}

/// The first job of whose phases nothing came although something was owed; of each phase, its job and both.
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

/// What a rank did.
#[derive(Clone, Debug)]
pub struct Done {
    /// Which rank, at last.
    pub place: Place,
    /// Its places, by job, at last.
    pub memberships: Vec<Membership>,
    /// Why it stopped although there was more to do.
    pub stopped: Option<String>,
    /// Its operations, in order.
    pub operations: Vec<Operation>,
    /// The same folded.
    pub history: History,
    /// All its packets, by job.
    pub reports: Vec<Report>,
    /// Whether operations make good what earlier ones lost.
    pub recycles: bool,
}

/// What a rank does not hear.
#[derive(Clone, Debug)]
pub enum Silence {
    /// Others, before the first operation.
    Ranks {
        /// The job, which may be a row or a column of a grid.
        job: String,
        /// Who hears nothing.
        rank: u16,
        /// From whom.
        from: Vec<u16>,
    },
    /// Anything in its first operation.
    Operation {
        /// The job, which may be a row or a column of a grid.
        job: String,
        /// Who hears nothing.
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
                    "rank {rank} and {} do not hear each other",
                    from.join(", ")
                )
            }
            Silence::Operation { job, rank } => {
                write!(
                    f,
                    "rank {rank}'s first operation received nothing in job {job}"
                )
            }
        }
    }
}

/// What a rank is to do.
pub struct Work {
    /// Which rank.
    pub place: Place,
    /// How it begins.
    pub start: Start,
    /// What the sessions of the process share.
    pub context: Context,
    /// The names of the jobs that it is in.
    pub jobs: Vec<String>,
    /// What is averaged.
    pub data: Data,
    /// How often.
    pub repeat: u32,
    /// Whether results are compared with the exact mean.
    pub verify: bool,
    /// Whether operations make good what earlier ones lost.
    pub recycles: bool,
    /// The pauses that checks ask for, by job.
    pub quiet: Vec<Quiet>,
    /// A rank on another host, where the job is flat.
    pub elsewhere: Option<u16>,
    /// How long to go on receiving after the last operation.
    pub linger: Duration,
    /// Is told of ranks that are not heard.
    pub silent: UnboundedSender<Silence>,
    /// Turns true when the check that follows has ended, in which this rank takes part.
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
    let mut told = false;
    let missed = match start.together {
        true => meet_all(&probers, &place)?,
        // The others have been running.
        false => Vec::new(),
    };
    for ((at, missed), job) in missed.into_iter().enumerate().zip(&jobs) {
        if !missed.is_empty() {
            let from = missed
                .iter()
                .map(|&other| place.of_job(at, other))
                .collect();
            let (job, rank) = (job.clone(), place.rank);
            // Nobody listens where a check has been asked for already.
            let _ = silent.send(Silence::Ranks { job, rank, from });
            told = true;
        }
    }
    let mut operations: Vec<Operation> = Vec::new();
    // Collectives of epochs that are over, which send what others still wait for.
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
                eprintln!("rank {rank} has no place from operation {step} on: {why}");
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
                eprintln!("rank {rank} stops: it has heard nobody for {operations} operations");
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
            told = true;
        }
        operations.push(operation);
        step += 1;
    }
    if told {
        // An error is that nobody checks.
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

/// Meets all other ranks in each job; who was not heard there.
fn meet_all(probers: &[Prober], place: &Place) -> Result<Vec<Vec<u16>>, Stopped> {
    // Side by side: a row that is not whole keeps no column waiting.
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
    fn packets_of_the_row_do_not_hide_a_silent_column() {
        let of = |phases: [[u64; 2]; 3]| {
            let jobs = (0..3).map(Place::job_of_phase);
            silent_job(jobs.zip(phases))
        };
        assert_eq!(of([[7, 7], [6, 0], [7, 7]]), Some(1));
        assert_eq!(of([[7, 0], [6, 6], [7, 0]]), Some(0));
        assert_eq!(of([[7, 0], [6, 1], [7, 1]]), None);
        // Where nothing is owed nothing is missing.
        assert_eq!(of([[7, 7], [0, 0], [7, 7]]), None);
        assert_eq!(silent_job([(0, [4, 0])].into_iter()), Some(0));
    }
}
