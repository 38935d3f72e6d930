//! Large buckets in parts: while the network moves one, the job's thread encodes and decodes others.

use std::time::{Duration, Instant};

use ultima_host::{Coding, Collective, Config, Error, Gather, OperationId, Outcome, Taken};

use super::pending::Reduced;

/// Buckets have numbers below this. Part *p* of bucket *b* is an operation of its own, of bucket *p* · 4096 + *b*.
pub(super) const BUCKETS: u16 = 1 << 12;
/// Parts of a bucket, at most.
const MOST: usize = (1 << 16) / BUCKETS as usize;
/// Values of a part, at least: encoded, they stay in a processor's cache.
const VALUES: usize = 1 << 19;
/// Slots of each rank's shard in a part, at least, so that little is lost to short last packets.
const SLOTS: usize = 16;
/// Parts begin at multiples of this many values, so that they have as many whole blocks as the bucket.
const ALIGNED: usize = 1 << 16;
/// Parts in progress at a time.
const IN_PROGRESS: usize = 2;
/// After this share of the deadline all parts are in progress, so that one whose packets do not arrive costs the others
/// no packet. The rest is the deadline of each part.
const STAGGERED: u32 = 8;
/// The shortest deadline of a part, after a long delay of the job's thread.
const SHORTEST: Duration = Duration::from_millis(1);

/// The number of parts of a bucket of `len` values. All ranks divide it alike.
fn count(len: usize, config: &Config) -> usize {
    let least = VALUES.max(SLOTS * config.slot_len() * usize::from(config.ranks));
    match config.coding {
        // Values that are not coded are sent from where they are.
        Coding::Identity => 1,
        Coding::Hadamard { .. } => (len / least).clamp(1, MOST),
    }
}

/// Settings of the operations that start next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) loss_scale: f32,
    pub(super) gather: Gather,
    pub(super) deadline: Duration,
}

impl Terms {
    pub(super) fn apply(&self, collective: &mut Collective) {
        collective.set_loss_scale(self.loss_scale);
        collective.set_gather(self.gather);
        collective.set_deadline(self.deadline);
    }
}

/// A large bucket in progress. Every rank averages its parts in the same order, two at a time.
pub(super) struct Parts {
    id: OperationId,
    values: Taken,
    terms: Terms,
    count: usize,
    /// Number of parts that have started.
    started: usize,
    in_progress: Vec<Part>,
    start: Instant,
    outcome: Option<Outcome>,
    /// An error, after which no part starts.
    error: Option<Error>,
}

struct Part {
    number: usize,
    /// The time from the start of the first part to that of this one.
    after: Duration,
}

impl Parts {
    /// Prepares the parts of operation `id`. Returns the values if they are no more than one.
    pub(super) fn of(
        id: OperationId,
        mut values: Taken,
        terms: Terms,
        config: &Config,
    ) -> Result<Self, Taken> {
        let count = count(values.as_mut_slice().len(), config);
        if count == 1 {
            return Err(values);
        }
        Ok(Self {
            id,
            values,
            terms,
            count,
            started: 0,
            in_progress: Vec::new(),
            start: Instant::now(),
            outcome: None,
            error: None,
        })
    }

    /// The whole operation.
    pub(super) fn id(&self) -> OperationId {
        self.id
    }

    /// The operation and the values of a part.
    fn part(&mut self, number: usize) -> (OperationId, &mut [f32]) {
        let values = self.values.as_mut_slice();
        let begin = |number: usize| match number == self.count {
            true => values.len(),
            false => values.len() * number / self.count / ALIGNED * ALIGNED,
        };
        let range = begin(number)..begin(number + 1);
        let bucket = number as u16 * BUCKETS + self.id.bucket;
        (OperationId { bucket, ..self.id }, &mut values[range])
    }

    /// When all parts start that have not. None if all have.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_left = self.started < self.count && self.error.is_none();
        is_left.then(|| self.start + self.terms.deadline / STAGGERED)
    }

    /// Starts parts and decodes those that have ended, without waiting. Returns true at the end of the operation.
    ///
    /// # Errors
    /// The link failed.
    pub(super) fn advance(&mut self, collective: &mut Collective) -> Result<bool, Error> {
        self.start(collective);
        let mut at = 0;
        while at < self.in_progress.len() {
            let (id, _) = self.part(self.in_progress[at].number);
            if !collective.has_ended(id)? {
                at += 1;
                continue;
            }
            let Part { number, after } = self.in_progress.remove(at);
            // The network first: decoding takes time too.
            self.start(collective);
            let (id, values) = self.part(number);
            match (collective.wait(id, values), &mut self.outcome) {
                (Ok(part), Some(outcome)) => outcome.include(&part, after),
                (Ok(part), none) => {
                    *none = Some(Outcome {
                        id: self.id,
                        ..part
                    })
                }
                (Err(error), _) => self.error = Some(error),
            }
        }
        Ok(self.in_progress.is_empty() && self.due().is_none())
    }

    fn start(&mut self, collective: &mut Collective) {
        while let Some(due) = self.due()
            && (self.in_progress.len() < IN_PROGRESS || Instant::now() >= due)
        {
            let after = self.start.elapsed();
            let whole = self.terms.deadline;
            let rest = whole.saturating_sub(after.max(whole / STAGGERED));
            let deadline = rest.max(SHORTEST);
            let terms = Terms {
                deadline,
                ..self.terms
            };
            terms.apply(collective);
            let number = self.started;
            let (id, values) = self.part(number);
            match collective.start(id, values) {
                Ok(()) => self.in_progress.push(Part { number, after }),
                Err(error) => self.error = Some(error),
            }
            self.started += 1;
        }
    }

    /// The result, after the end.
    ///
    /// # Errors
    /// That of a part. The values are then partly replaced.
    pub(super) fn into_result(self) -> Result<Reduced, Error> {
        let values = self.values.into_vec();
        match (self.error, self.outcome) {
            (None, Some(outcome)) => Ok(Reduced { values, outcome }),
            (Some(error), _) => Err(error),
            (None, None) => Err(Error::NotStarted(self.id)),
        }
    }
}
