//! The lossy operations of a job that switches have reported.

use std::collections::VecDeque;
use std::time::SystemTime;

use ultima_planner::fabric::SwitchId;
use ultima_planner::telemetry::OperationLoss;

/// Reports kept of each job.
const KEPT: usize = 4096;

/// A reported lossy operation.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    pub switch: SwitchId,
    pub at: SystemTime,
    pub loss: OperationLoss,
}

/// The latest reports of one job.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    reported: VecDeque<Report>,
    forgotten: u64,
}

impl Losses {
    /// Adds a report. If there is no room, the oldest is dropped.
    pub fn add(&mut self, reported: Report) {
        if self.reported.len() == KEPT {
            self.reported.pop_front();
            self.forgotten += 1;
        }
        self.reported.push_back(reported);
    }

    /// The reports after the first `known` ones, as far as they are kept, oldest first.
    pub fn since(&self, known: u64) -> impl Iterator<Item = &Report> {
        let known = known.saturating_sub(self.forgotten);
        let kept = self.reported.len();
        self.reported
            .range(usize::try_from(known).map_or(kept, |known| known.min(kept))..)
    }

    /// The number of reports, including those that were dropped.
    pub fn reported(&self) -> u64 {
        self.forgotten + self.reported.len() as u64
    }

    /// The number of reports that were dropped.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

#[cfg(test)]
pub mod tests {
    use ultima_planner::job::{Epoch, JobId, Rank};
    use ultima_planner::target::PortNumber;

    use super::*;

    /// A report of an operation's loss.
    pub fn report(job: JobId, epoch: Epoch, step: u32) -> Report {
        Report {
            switch: SwitchId(0),
            at: SystemTime::UNIX_EPOCH,
            loss: OperationLoss {
                job,
                epoch,
                step,
                bucket: 0,
                source: Rank(0),
                port: PortNumber(1),
                trimmed: 1,
                late: 0,
                upstream_lost: 0,
            },
        }
    }

    #[test]
    fn the_oldest_reports_are_dropped_and_counted() {
        let mut losses = Losses::default();
        let kept = KEPT as u32;
        (0..kept + 3).for_each(|step| losses.add(report(JobId(1), Epoch(1), step)));
        let steps = |known| losses.since(known).map(|reported| reported.loss.step);
        assert!(steps(0).eq(3..kept + 3));
        assert!(steps(3).eq(3..kept + 3));
        assert!(steps(KEPT as u64 + 1).eq([kept + 1, kept + 2]));
        for known in [losses.reported(), u64::MAX] {
            assert_eq!(steps(known).count(), 0);
        }
        assert_eq!(
            (losses.forgotten(), losses.reported()),
            (3, KEPT as u64 + 3)
        );
    }
}
