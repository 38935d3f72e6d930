//! Large buckets in parts: while the network moves one, the job's thread encodes and decodes others.

use std::ops::Range;
use std::time::{Duration, Instant};

use ultima_host::{ClosedBy, Coding, Collective, Error, OperationId, Outcome, Taken};

use super::pending::Reduced;
use super::sequence::Terms;

/// Buckets have numbers below this. Part *p* of bucket *b* is an operation of its own, of bucket 4095 *p* + *b*. The number
/// is odd, so that a switch counts the losses of 16 parts apart: it looks at four bits of a bucket's number.
pub(super) const BUCKETS: u16 = 4095;
/// Parts of a bucket, at most.
const MOST: usize = 16;
/// Values of a part, at least, but for [`ALIGNED`]. Shorter ones gain nothing.
const VALUES: usize = 1 << 19;
/// Parts begin at multiples of this many values, so that only the last one has blocks that are padded.
const ALIGNED: usize = 1 << Coding::MAX_LOG2_BLOCK;
/// Parts in progress at a time, while packets arrive as usual.
const IN_PROGRESS: usize = 2;
/// The longest time from one part's start to the next one's, as a multiple of a part's usual time. So a rank that does not
/// arrive costs no other rank's packets of any part.
const START_INTERVAL: u32 = 2;
/// All parts start in this share of the deadline.
const STARTS: u32 = 8;
/// The shortest deadline of a part, after a long delay of the job's thread.
const SHORTEST: Duration = Duration::from_millis(1);

/// The number of parts of a bucket of `len` values. Nothing else may decide it: residuals are carried by part, also into
/// epochs of more ranks.
fn count(len: usize, coding: Coding) -> usize {
    match coding {
        // Values that are not coded are sent from where they are.
        Coding::Identity => 1,
        Coding::Hadamard { .. } => (len / VALUES).clamp(1, MOST),
    }
}

/// The values of a part of a bucket of `len`.
fn range(len: usize, count: usize, number: usize) -> Range<usize> {
    let begin = |number: usize| match number == count {
        true => len,
        false => len * number / count / ALIGNED * ALIGNED,
    };
    begin(number)..begin(number + 1)
}

/// A large bucket in progress. Every rank averages its parts in the same order.
pub(super) struct Parts {
    id: OperationId,
    values: Taken,
    terms: Terms,
    count: usize,
    /// Number of parts that have started.
    started: usize,
    in_progress: Vec<Part>,
    /// The start of the first part, and of the last one so far.
    start: Instant,
    last_start: Instant,
    /// The longest time from one part's start to that of the next one.
    start_interval: Duration,
    /// Of the parts that have ended, each with the time from the first start to its own.
    outcomes: Vec<(Duration, Outcome)>,
    /// The first error. No part starts after it.
    error: Option<Error>,
}

struct Part {
    number: usize,
    after: Duration,
}

impl Parts {
    /// Prepares the parts of operation `id`; `pace` is [`Parts::pace`] of an earlier one. Returns the values if they
    /// are one part.
    pub(super) fn of(
        id: OperationId,
        mut values: Taken,
        terms: Terms,
        coding: Coding,
        pace: Option<Duration>,
    ) -> Result<Self, Taken> {
        let count = count(values.as_mut_slice().len(), coding);
        if count == 1 {
            return Err(values);
        }
        let most = terms.deadline / STARTS / count as u32;
        let now = Instant::now();
        Ok(Self {
            id,
            values,
            terms,
            count,
            started: 0,
            in_progress: Vec::new(),
            start: now,
            last_start: now,
            start_interval: pace.map_or(most, |pace| most.min(pace * START_INTERVAL)),
            outcomes: Vec::new(),
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
        let range = range(values.len(), self.count, number);
        let bucket = number as u16 * BUCKETS + self.id.bucket;
        (OperationId { bucket, ..self.id }, &mut values[range])
    }

    /// When the next part starts, whatever has ended. None if all have started.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_left = self.started < self.count && self.error.is_none();
        is_left.then(|| self.last_start + self.start_interval)
    }

    /// Starts the parts that may start now.
    pub(super) fn start(&mut self, collective: &mut Collective) {
        while let Some(due) = self.due()
            && (self.in_progress.len() < IN_PROGRESS || Instant::now() >= due)
        {
            self.last_start = Instant::now();
            let after = self.last_start - self.start;
            let deadline = self.terms.deadline.saturating_sub(after).max(SHORTEST);
            let terms = Terms {
                deadline,
                ..self.terms
            };
            terms.apply(collective);
            let number = self.started;
            let (id, values) = self.part(number);
            match collective.start(id, values) {
                Ok(()) => self.in_progress.push(Part { number, after }),
                Err(error) => self.fail(error),
            }
            self.started += 1;
        }
    }

    fn fail(&mut self, error: Error) {
        self.error.get_or_insert(error);
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
            match collective.wait(id, values) {
                Ok(outcome) => {
                    if outcome.closed_by != ClosedBy::Complete {
                        // The others would wait as long, one after the other.
                        self.start_interval = Duration::ZERO;
                    }
                    self.outcomes.push((after, outcome));
                }
                Err(error) => self.fail(error),
            }
        }
        self.start(collective);
        Ok(self.in_progress.is_empty() && self.due().is_none())
    }

    /// The time that a part takes as usual, after the end of an operation without loss.
    pub(super) fn pace(&self) -> Option<Duration> {
        let is_complete = |(_, part): &(_, Outcome)| part.closed_by == ClosedBy::Complete;
        let is_usual = self.outcomes.len() == self.count && self.outcomes.iter().all(is_complete);
        let ends = self
            .outcomes
            .iter()
            .map(|(after, part)| *after + part.duration);
        ends.max()
            .filter(|_| is_usual)
            .map(|end| end / self.count as u32)
    }

    /// The result, after the end.
    ///
    /// # Errors
    /// That of a part. Some values are then replaced.
    pub(super) fn into_result(self) -> Result<Reduced, Error> {
        let values = self.values.into_vec();
        if let Some(error) = self.error {
            return Err(error);
        }
        let outcome = Outcome::of_parts(self.id, self.outcomes);
        let outcome = outcome.ok_or(Error::NotStarted(self.id))?;
        Ok(Reduced { values, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_tile_a_bucket_in_whole_blocks() {
        let coded = Coding::default();
        for len in [0, 1, 1_000_000, 2 * VALUES - 1] {
            assert_eq!(count(len, coded), 1);
        }
        for len in [2 * VALUES, 3_000_017, 6_553_600, 25_000_000, 1 << 31] {
            let count = count(len, coded);
            assert_eq!(count, MOST.min(len / VALUES));
            let mut end = 0;
            for number in 0..count {
                let part = range(len, count, number);
                assert_eq!((part.start, part.start % ALIGNED), (end, 0));
                assert!(part.len() > VALUES - ALIGNED, "{part:?} of {len}");
                end = part.end;
            }
            assert_eq!(end, len);
        }
        assert_eq!(count(1 << 31, Coding::Identity), 1);
        let numbers = |bucket: u16| (0..MOST as u16).map(move |part| part * BUCKETS + bucket);
        let all: std::collections::BTreeSet<u16> = (0..BUCKETS).flat_map(numbers).collect();
        assert_eq!(all.len(), MOST * usize::from(BUCKETS));
    }
}
