//! Hierarchical AllReduce: within groups, then across them.
//!
//! OptiReduce's 2D TAR (NSDI 2025) puts *N* ranks in *G* groups of *M* = *N*/*G*, so a rank exchanges packets with
//! *M* − 1 and *G* − 1 others instead of *N* − 1. If senders take turns, one at a time, that is
//! 2(*N*/*G* − 1) + (*G* − 1) turns instead of 2(*N* − 1). Here:
//!
//! 1. in its row every rank gets the row's mean of its 1/*M* of the bucket ([`Part::Scatter`]),
//! 2. in its column that shard is averaged over the groups, by a whole AllReduce,
//! 3. in its row every rank multicasts its shard ([`Part::Gather`]).
//!
//! The bytes are those of a flat AllReduce, (*M* − 1)/*M* + (*G* − 1)/(*GM*) = (*N* − 1)/*N* of the bucket each way.
//! Rows and columns are ordinary jobs, so a network that serves jobs serves grids. [`Path`] models the cost of a grid.
//!
//! # Losses
//!
//! Every phase ends by its own bound with the packets that arrived. A column's mean weighs the rows' means equally, so
//! - a rank whose contribution misses its row leaves the others of the row with *M*/(*M* − 1) of their weight,
//! - a rank that is late in its column takes its row's mean of its shard with it, for the others,
//! - a row uses zero for the shard of an owner whose gather is lost, as in a flat job.
//!
//! Without loss the result is the mean up to rounding, with the same bits on every rank: a shard's mean is the same in
//! all of its column, and each row gets it from one of its ranks.

mod cost;
pub(crate) mod grid;

use std::time::Duration;

use crate::codec::Codec;
use crate::collective::{Collective, Error};
use crate::driver::thread::{Prober, Report};
use crate::layout::Layout;
use crate::memory::Buffer;
use crate::operation::{OperationId, Part, Piece};
use crate::stats::Outcome;
use crate::values::Values;

pub use cost::Path;
pub use grid::{Grid, GridBounds, GridError};

/// One rank's part in a grid: an AllReduce of a row and one of a column.
///
/// Ranks average one bucket after the other, in the same order everywhere.
pub struct Hierarchical {
    row: Collective,
    column: Collective,
    codec: Codec,
    /// This rank's number in its row.
    member: u16,
    members: u16,
    /// Buffers of the last bucket's encoding and its shard.
    spare: [Buffer; 2],
}

/// The outcomes of the three phases.
#[derive(Clone, Debug, PartialEq)]
pub struct GridOutcome {
    /// Within the row: contributions.
    pub scatter: Outcome,
    /// Across the groups.
    pub across: Outcome,
    /// Within the row: aggregates.
    pub gather: Outcome,
}

impl GridOutcome {
    /// The phases in their order.
    pub fn phases(&self) -> [&Outcome; 3] {
        [&self.scatter, &self.across, &self.gather]
    }

    /// True if the result includes every contribution of every rank. A rank with missing contributions
    /// reports that in the next phase, in the aggregates of its own shard.
    pub fn is_whole(&self) -> bool {
        self.phases().iter().all(|phase| phase.is_whole())
    }

    /// Total duration of the phases.
    pub fn duration(&self) -> Duration {
        self.phases().iter().map(|phase| phase.duration).sum()
    }

    /// The share of all packets owed to this rank that did not arrive in time, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        let lost: u64 = (self.phases().iter())
            .map(|phase| phase.lost.scatter.total() + phase.lost.gather.total())
            .sum();
        let owed: u64 = self.phases().iter().map(|phase| phase.owed).sum();
        lost as f64 / owed.max(1) as f64
    }
}

impl Hierarchical {
    /// Creates a rank's part in `grid` from its collectives: in the row its rank is its member number, in the
    /// column its group. [`Grid::row`] and [`Grid::column`] return their configurations.
    ///
    /// # Errors
    /// [`Error::Grid`] if they do not match the grid.
    pub fn new(grid: Grid, row: Collective, column: Collective) -> Result<Self, Error> {
        let (of_row, of_column) = (row.config(), column.config());
        if (of_row.ranks, of_column.ranks) != (grid.members(), grid.groups()) {
            return Err(Error::Grid(GridError::Collectives {
                row: of_row.ranks,
                column: of_column.ranks,
                members: grid.members(),
                groups: grid.groups(),
            }));
        }
        if of_row.recycling.is_some() || of_column.recycling.is_some() {
            return Err(Error::Grid(GridError::Recycling));
        }
        let alike = |c: &crate::Config| (c.seed, c.coding, c.element, c.slot_bytes);
        if alike(of_row) != alike(of_column) {
            return Err(Error::Grid(GridError::Differ));
        }
        Ok(Self {
            codec: Codec::new(of_row.coding, of_row.seed).with_threads(row.codec_threads()),
            member: of_row.rank,
            members: of_row.ranks,
            spare: Default::default(),
            row,
            column,
        })
    }

    /// Replaces `bucket` by its mean over all ranks, or by the part that is known after the three phases: the
    /// row's t_S, the column's t_B and the row's t_B.
    ///
    /// Every rank calls this with the same ids in the same order, and the same number of values.
    ///
    /// # Errors
    /// [`Error::Grid`] if the bucket's id is too large, [`Error::Start`] if a phase cannot start,
    /// [`Error::Link`] if the link failed. All leave `bucket` unchanged.
    pub fn allreduce(&mut self, id: OperationId, bucket: &mut [f32]) -> Result<GridOutcome, Error> {
        if id.bucket > Grid::MAX_BUCKET {
            return Err(Error::Grid(GridError::Bucket(id)));
        }
        let (scatter_id, gather_id) = (Grid::scatter_id(id), Grid::gather_id(id));
        let [mut encoded, mut shard] = std::mem::take(&mut self.spare);
        self.codec.encode(id, bucket, &mut encoded);
        // A shard's range does not depend on the slots.
        let own = Layout::new(encoded.len(), self.members, 1).shard(self.member);

        let mut piece = Piece {
            part: Part::Scatter,
            lacks: false,
            entries: Some(bucket.len()),
        };
        self.row.start_part(scatter_id, piece, encoded)?;
        let (scatter, mut values) = self.row.wait_encoded(scatter_id)?;

        shard.resize(own.len());
        shard.copy_from_slice(&values[own.clone()]);
        piece.part = Part::Whole;
        piece.lacks = !scatter.is_whole();
        self.column.start_part(id, piece, shard)?;
        let (across, shard) = self.column.wait_encoded(id)?;
        values[own].copy_from_slice(&shard);

        piece.part = Part::Gather;
        piece.lacks |= !across.is_whole();
        self.row
            .start_part(gather_id, piece, values.into_buffer())?;
        let (gather, values) = self.row.wait_encoded(gather_id)?;
        self.codec.decode(id, &values, bucket);
        self.spare = [values, shard].map(Values::into_buffer);
        Ok(GridOutcome {
            scatter,
            across,
            gather,
        })
    }

    /// [`Collective::prober`] of the row and of the column. The collectives themselves stay private:
    /// operations or votes on coding in one of them would be unknown to the other.
    pub fn probers(&mut self) -> [Prober; 2] {
        [self.row.prober(), self.column.prober()]
    }

    /// [`Collective::finish`] of the row and of the column.
    ///
    /// # Errors
    /// [`Error::Link`] if the link failed.
    pub fn finish(self, linger: Duration) -> Result<[Report; 2], Error> {
        std::thread::sleep(linger);
        Ok([
            self.row.finish(Duration::ZERO)?,
            self.column.finish(Duration::ZERO)?,
        ])
    }
}
