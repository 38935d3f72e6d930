//! The lossy operations that switches have told of.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::mpsc;
use ultima_p4runtime::names::Digest;
use ultima_p4runtime::v1::DigestList;

use crate::fabric::SwitchId;
use crate::job::JobId;
use crate::telemetry::OperationLoss;

/// How many are kept, of all jobs.
const KEPT: usize = 16_384;

/// A lossy operation, and where and when it was told.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    pub switch: SwitchId,
    pub at: SystemTime,
    pub loss: OperationLoss,
}

/// The latest of them.
#[derive(Debug, Default)]
pub struct Losses(Mutex<VecDeque<Told>>);

impl Losses {
    /// Keeps what `lists` bring of `digest` until they end, on a task of its own.
    pub fn collect(
        self: &Arc<Self>,
        switch: SwitchId,
        digest: Digest,
        mut lists: mpsc::Receiver<DigestList>,
    ) {
        let losses = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(list) = lists.recv().await {
                if list.digest_id != digest.id {
                    continue;
                }
                let at = SystemTime::now();
                for message in &list.data {
                    match OperationLoss::read(&digest, message) {
                        Ok(loss) => losses.add(Told { switch, at, loss }),
                        Err(error) => {
                            tracing::warn!(switch = switch.0, %error, "a digest is not ours")
                        }
                    }
                }
            }
        });
    }

    fn add(&self, told: Told) {
        let mut all = self.all();
        if all.len() == KEPT {
            all.pop_front();
        }
        all.push_back(told);
    }

    /// Those of one job, oldest first.
    pub fn of(&self, job: JobId) -> Vec<Told> {
        let all = self.all();
        all.iter()
            .filter(|told| told.loss.job == job)
            .copied()
            .collect()
    }

    /// Forgets those of a job: another may get its number.
    pub fn forget(&self, job: JobId) {
        self.all().retain(|told| told.loss.job != job);
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Told>> {
        // Nothing panics while it holds the lock, and no change has a half.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Epoch, Rank};
    use crate::target::PortNumber;

    fn told(job: u16, step: u32) -> Told {
        Told {
            switch: SwitchId(0),
            at: SystemTime::UNIX_EPOCH,
            loss: OperationLoss {
                job: JobId(job),
                epoch: Epoch(1),
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
    fn the_oldest_go_first_and_jobs_are_apart() {
        let losses = Losses::default();
        losses.add(told(2, 0));
        (0..KEPT as u32).for_each(|step| losses.add(told(1, step)));
        let steps: Vec<u32> = losses
            .of(JobId(1))
            .iter()
            .map(|told| told.loss.step)
            .collect();
        assert!(steps.into_iter().eq(0..KEPT as u32));
        assert!(losses.of(JobId(2)).is_empty());
        losses.add(told(2, 7));
        losses.forget(JobId(1));
        assert!(losses.of(JobId(1)).is_empty());
        assert_eq!(losses.of(JobId(2)).len(), 1);
    }
}
