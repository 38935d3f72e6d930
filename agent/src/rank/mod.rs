//! A rank from its join to its end, in a job or in a grid of jobs.
//!
//! | file | content |
//! | --- | --- |
//! | `job_or_grid.rs` | the job, or the rows and columns, of a name |
//! | `joined.rs` | a rank that has joined, until its first operation |
//! | `ready.rs` | the wait of a process's ranks for all members |
//! | `running.rs` | a rank from its first operation on |
//! | `epoch_member.rs` | a job's rank through changes of its members |
//! | `position.rs` | ranks of a grid, of its rows and of its columns |
//! | `outcome.rs` | an operation's outcome, over all phases of a grid |
//! | `silence.rs` | ranks whose packets do not arrive |

mod epoch_member;
mod job_or_grid;
mod joined;
mod outcome;
mod position;
mod ready;
mod running;
mod silence;

pub use epoch_member::EpochMember;
pub use job_or_grid::JobOrGrid;
pub use joined::JoinedRank;
pub use outcome::RankOutcome;
pub use position::Position;
pub use ready::{JoinTimeout, ReadyError, ReadyRanks, ready};
pub use running::RunningRank;
pub use silence::Silence;
