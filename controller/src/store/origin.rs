//! The stored form of an epoch's origin.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ultima_planner::job::{JobId, Rank};
use ultima_planner::membership::{ChangeOptions, Lost, Origin, Succession};

/// The origin of a job's epoch. It decides between two epochs: until the new epoch has a first
/// operation, the old one is the job's current epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginRecord {
    /// The job's id in the previous epoch.
    pub of: u16,
    /// The previous rank of each rank, if it had one.
    pub was: Vec<Option<u16>>,
    /// Ranks of the previous epoch that have no rank in this one, with the reason.
    pub left_out: Vec<(u16, String)>,
    /// The join timeout for new members, in milliseconds.
    pub join_ms: u64,
    /// True if the change goes on without members that do not answer.
    pub leave_out_lost: bool,
    /// True if operations had begun.
    pub has_begun: bool,
    /// The first operation of the epoch, once it is decided.
    pub first_operation: Option<u32>,
}

impl From<&Origin> for OriginRecord {
    fn from(origin: &Origin) -> Self {
        let (was, left_out) = (origin.succession.was(), origin.succession.left_out());
        OriginRecord {
            of: origin.of.0,
            was: was.iter().map(|was| was.map(|rank| rank.0)).collect(),
            left_out: left_out
                .iter()
                .map(|(rank, why)| (rank.0, why.clone()))
                .collect(),
            join_ms: u64::try_from(origin.options.join.as_millis()).unwrap_or(u64::MAX),
            leave_out_lost: origin.options.lost == Lost::LeaveOut,
            has_begun: origin.has_begun,
            first_operation: origin.first,
        }
    }
}

impl From<&OriginRecord> for Origin {
    fn from(record: &OriginRecord) -> Self {
        let was = record.was.iter().map(|was| was.map(Rank));
        let left_out = record.left_out.iter();
        let left_out = left_out.map(|(rank, why)| (Rank(*rank), why.clone()));
        Origin {
            of: JobId(record.of),
            succession: Arc::new(Succession::of(was.collect(), left_out.collect())),
            options: ChangeOptions {
                join: Duration::from_millis(record.join_ms),
                lost: match record.leave_out_lost {
                    true => Lost::LeaveOut,
                    false => Lost::Cancel,
                },
            },
            has_begun: record.has_begun,
            first: record.first_operation,
        }
    }
}
