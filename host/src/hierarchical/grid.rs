//! Ranks in rows and columns, and the time bounds of a grid's phases.

use std::time::Duration;

use crate::config::Config;
use crate::operation::OperationId;

/// Time bounds of the phases of a grid's operation.
///
/// Ranks of a row that waited for a rank until their t_S enter their columns that much later than others, and
/// those columns' t_S must include their contributions. A rank that waited in its column until t_B enters its
/// row's gather that much later, while the others must still wait. So the row gets a third of a flat
/// operation's t_S. The column's operation and the gather share the rest of t_B, and the column's t_S is the
/// mean of the row's t_S and its own t_B. With t_S at 3/5 of t_B that is 2/10 of t_B for the scatter, 3/10
/// and 4/10 for the column and 4/10 for the gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridBounds {
    /// The row's t_S: the latest end of its scatter.
    pub scatter: Duration,
    /// A column's t_S.
    pub flush: Duration,
    /// A column's t_B.
    pub across: Duration,
    /// The row's t_B: the latest end of its gather.
    pub gather: Duration,
}

impl GridBounds {
    /// Divides `t_b` among the three phases. `t_s` is at most `t_b`, as in a flat job; otherwise a column's
    /// t_S exceeds its t_B, which [`Config::validate`] rejects.
    pub fn new(t_s: Duration, t_b: Duration) -> Self {
        let scatter = t_s / 3;
        let left = t_b.saturating_sub(scatter);
        let across = left / 2;
        Self {
            scatter,
            flush: (scatter + across) / 2,
            across,
            gather: left - across,
        }
    }

    /// A flat operation's t_S and t_B whose division leaves `row` for each stage in a row and `column` for
    /// each in a column, also at ranks that waited until a bound in the phase before.
    pub fn least(row: Duration, column: Duration) -> (Duration, Duration) {
        let tenth = (row / 2).max(column);
        (tenth * 6, tenth * 10)
    }

    /// A row's configuration with these bounds.
    pub fn of_row(&self, row: Config) -> Config {
        Config {
            t_s: self.scatter,
            t_b: self.gather,
            ..row
        }
    }

    /// A column's configuration with these bounds.
    pub fn of_column(&self, column: Config) -> Config {
        Config {
            t_s: self.flush,
            t_b: self.across,
            ..column
        }
    }
}

/// Groups with the same number of ranks: rank *r* is member *r* mod *M* of group *r*/*M*.
///
/// A group is a *row* of the grid. The ranks with the same member number are a *column*. If a group shares a
/// switch or a host, the rows' traffic, which is most of it, stays there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    groups: u16,
    members: u16,
}

/// The reason that ranks cannot form a grid, or that a grid cannot run an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// Fewer than two rows or columns.
    #[error(
        "a grid of {groups} groups with {members} ranks each: expected at least 2 of both, or no groups"
    )]
    Small {
        /// Number of groups.
        groups: u16,
        /// Ranks per group.
        members: u16,
    },
    /// More ranks than headers can name.
    #[error("a grid of {groups} groups with {members} ranks each: expected at most 65535 ranks")]
    Large {
        /// Number of groups.
        groups: u16,
        /// Ranks per group.
        members: u16,
    },
    /// The ranks do not divide into equal groups.
    #[error("{ranks} ranks in {groups} groups: expected a number of groups that divides {ranks}")]
    Unequal {
        /// Ranks of the job.
        ranks: u16,
        /// Number of groups.
        groups: u16,
    },
    /// The sizes of the two collectives do not match the grid.
    #[error(
        "the row has {row} ranks and the column {column}: expected {members} and {groups}, as in the grid"
    )]
    Collectives {
        /// Ranks of the row's job.
        row: u16,
        /// Ranks of the column's job.
        column: u16,
        /// Ranks that a row of the grid has.
        members: u16,
        /// Ranks that a column of the grid has.
        groups: u16,
    },
    /// The row and the column differ in layout or coding.
    #[error(
        "the row and the column differ in seed, coding, element or slot size: expected the same values"
    )]
    Differ,
    /// Recycling needs whole operations.
    #[error("recycling in the row or column of a grid: expected a configuration without recycling")]
    Recycling,
    /// The row needs two bucket ids per bucket.
    #[error("{0} of a grid: expected a bucket from 0 to {max}", max = Grid::MAX_BUCKET)]
    Bucket(OperationId),
}

impl Grid {
    /// The largest bucket id in a grid.
    pub const MAX_BUCKET: u16 = u16::MAX / 2;

    /// Creates a grid of `groups` groups with `members` ranks each.
    ///
    /// # Errors
    /// [`GridError::Small`], [`GridError::Large`].
    pub fn new(groups: u16, members: u16) -> Result<Self, GridError> {
        if groups < 2 || members < 2 {
            Err(GridError::Small { groups, members })
        } else if groups.checked_mul(members).is_none() {
            Err(GridError::Large { groups, members })
        } else {
            Ok(Self { groups, members })
        }
    }

    /// Divides `ranks` into `groups` groups.
    ///
    /// # Errors
    /// [`GridError::Unequal`], [`GridError::Small`].
    pub fn of(ranks: u16, groups: u16) -> Result<Self, GridError> {
        match ranks.checked_rem(groups) {
            Some(0) => Self::new(groups, ranks / groups),
            _ => Err(GridError::Unequal { ranks, groups }),
        }
    }

    /// Number of groups, which is the size of a column.
    pub fn groups(&self) -> u16 {
        self.groups
    }

    /// Ranks per group, which is the size of a row.
    pub fn members(&self) -> u16 {
        self.members
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u16 {
        self.groups * self.members
    }

    /// The group of `rank`, which is its number in its column.
    pub fn group_of(&self, rank: u16) -> u16 {
        rank / self.members
    }

    /// The member number of `rank` in its group, which is its column's number.
    pub fn member_of(&self, rank: u16) -> u16 {
        rank % self.members
    }

    /// The rank of `member` in `group`.
    pub fn rank(&self, group: u16, member: u16) -> u16 {
        group * self.members + member
    }

    /// Configuration of a rank's row as job `job`. `whole` is the rank's configuration in a flat job, and
    /// [`GridBounds`] divides its time.
    pub fn row(&self, whole: &Config, job: u16) -> Config {
        let here = self.group_of(whole.rank);
        let colocated = whole.colocated.iter().copied();
        GridBounds::new(whole.t_s, whole.t_b).of_row(Config {
            job,
            rank: self.member_of(whole.rank),
            ranks: self.members,
            colocated: colocated
                .filter(|&other| self.group_of(other) == here)
                .map(|other| self.member_of(other))
                .collect(),
            ..whole.clone()
        })
    }

    /// Configuration of a rank's column as job `job`.
    pub fn column(&self, whole: &Config, job: u16) -> Config {
        let here = self.member_of(whole.rank);
        let colocated = whole.colocated.iter().copied();
        GridBounds::new(whole.t_s, whole.t_b).of_column(Config {
            job,
            rank: self.group_of(whole.rank),
            ranks: self.groups,
            colocated: colocated
                .filter(|&other| self.member_of(other) == here)
                .map(|other| self.group_of(other))
                .collect(),
            ..whole.clone()
        })
    }

    /// The row's id that scatters for the grid's operation `id`, whose bucket is at most
    /// [`Grid::MAX_BUCKET`]. The column uses `id` itself.
    pub fn scatter_id(id: OperationId) -> OperationId {
        let bucket = id.bucket << 1;
        OperationId { bucket, ..id }
    }

    /// The row's id that gathers for the grid's operation `id`.
    pub fn gather_id(id: OperationId) -> OperationId {
        let bucket = id.bucket << 1 | 1;
        OperationId { bucket, ..id }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_place() {
        for (groups, members) in [(2, 2), (3, 5), (64, 16)] {
            let grid = Grid::new(groups, members).expect("a grid");
            for rank in 0..grid.ranks() {
                let (group, member) = (grid.group_of(rank), grid.member_of(rank));
                assert!(group < groups && member < members);
                assert_eq!(grid.rank(group, member), rank);
            }
            assert_eq!(Grid::of(grid.ranks(), groups), Ok(grid));
        }
    }

    #[test]
    fn impossible_grids_are_named() {
        let text = |grid: Result<Grid, GridError>| grid.unwrap_err().to_string();
        assert!(text(Grid::new(1, 8)).contains("at least 2 of both"));
        assert!(text(Grid::new(300, 300)).contains("65535"));
        assert!(text(Grid::of(8, 3)).contains("divides 8"));
        assert!(text(Grid::of(8, 0)).contains("divides 8"));
        assert!(text(Grid::of(8, 8)).contains("at least 2 of both"));
    }

    #[test]
    fn the_phases_last_as_long_as_a_flat_operation() {
        let grid = Grid::new(3, 4).expect("a grid");
        let mut whole = Config::new(7, 1, 6, 12, 42, Duration::from_millis(100));
        whole.colocated = vec![2, 5, 7];
        let (row, column) = (grid.row(&whole, 8), grid.column(&whole, 9));
        assert_eq!((row.validate(), column.validate()), (Ok(()), Ok(())));
        assert_eq!((row.job, row.rank, row.ranks), (8, 2, 4));
        assert_eq!((column.job, column.rank, column.ranks), (9, 1, 3));
        assert_eq!((row.colocated, column.colocated), (vec![1, 3], vec![0]));
        assert_eq!(row.t_s + column.t_b + row.t_b, whole.t_b);
        let ms = Duration::from_millis;
        assert_eq!([row.t_s, column.t_s], [ms(20), ms(30)]);
        assert_eq!([column.t_b, row.t_b], [ms(40), ms(40)]);
    }

    #[test]
    fn a_rank_that_waits_for_a_bound_is_in_time_for_the_next_phase() {
        let ms = Duration::from_millis;
        for (row, column) in [(4, 1), (4, 2), (1, 4), (3, 3)] {
            let (row, column) = (ms(row), ms(column));
            let (t_s, t_b) = GridBounds::least(row, column);
            let bounds = GridBounds::new(t_s, t_b);
            assert!(bounds.scatter >= row);
            assert!(bounds.flush >= bounds.scatter + column);
            assert!(bounds.across >= bounds.flush + column);
            assert!(bounds.gather + bounds.scatter >= bounds.across + row);
            assert_eq!(bounds.scatter + bounds.across + bounds.gather, t_b);
        }
        // As in a flat job, t_S may be anything up to t_B.
        for t_s in [1, 50, 99] {
            let bounds = GridBounds::new(ms(t_s), ms(100));
            assert!(bounds.scatter < bounds.flush && bounds.flush < bounds.across);
            assert_eq!(bounds.scatter + bounds.across + bounds.gather, ms(100));
        }
        let mut whole = Config::new(7, 1, 6, 12, 42, ms(100));
        whole.t_s = ms(101);
        let column = Grid::new(3, 4).map(|grid| grid.column(&whole, 9));
        assert!(column.is_ok_and(|column| column.validate().is_err()));
    }
}
