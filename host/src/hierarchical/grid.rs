//! Ranks in rows and columns.

use std::time::Duration;

use crate::config::Config;
use crate::operation::OperationId;

/// How long each phase of a grid's operation may last.
///
/// The ranks of a row that waited for one of them until its t_S come that much later to their columns than others, and
/// those columns' t_S must find their contributions there. Who waited in its column until t_B comes that much later to
/// its row's gather, in which the others must still be waiting. So of a flat operation's t_S and t_B the row has a third of
/// t_S; what is left of t_B the column's whole operation and the gather share, and the column's t_S is half way from the
/// row's t_S to its own t_B. With t_S at 3/5 of t_B that is 2/10 of t_B for the scatter, 3/10 and 4/10 for the column and
/// 4/10 for the gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridBounds {
    /// When a row's scatter ends at the latest: the row's t_S.
    pub scatter: Duration,
    /// A column's t_S.
    pub flush: Duration,
    /// A column's t_B.
    pub across: Duration,
    /// A row's t_B: when its gather ends at the latest.
    pub gather: Duration,
}

impl GridBounds {
    /// So that the three phases last `t_b` at most. As in a flat job `t_s` is at most that; if it is more, so is a column's
    /// t_S than its t_B, which [`Config::validate`] refuses.
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

    /// A flat operation's t_S and t_B whose division leaves `row` for each stage in a row and `column` for each in a
    /// column, also at ranks that wait until a bound in the phase before.
    pub fn least(row: Duration, column: Duration) -> (Duration, Duration) {
        let tenth = (row / 2).max(column);
        (tenth * 6, tenth * 10)
    }

    /// A row's configuration with these.
    pub fn of_row(&self, row: Config) -> Config {
        Config {
            t_s: self.scatter,
            t_b: self.gather,
            ..row
        }
    }

    /// A column's.
    pub fn of_column(&self, column: Config) -> Config {
        Config {
            t_s: self.flush,
            t_b: self.across,
            ..column
        }
    }
}

/// Groups of equally many ranks: rank *r* is member *r* mod *M* of group *r*/*M*.
///
/// A group is a *row* of the grid. The ranks with the same member number are a *column*. Groups that share a switch or a
/// host keep the rows' traffic, which is most of it, there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    groups: u16,
    members: u16,
}

/// Why ranks cannot stand in a grid, or an operation not run on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// One row or one column is no grid.
    #[error(
        "a grid of {groups} groups of {members}: 2 or more of both are needed; without groups the job is flat"
    )]
    Small {
        /// Groups asked for.
        groups: u16,
        /// Ranks in each.
        members: u16,
    },
    /// More ranks than headers can name.
    #[error("a grid of {groups} groups of {members}: up to 65535 ranks are possible")]
    Large {
        /// Groups asked for.
        groups: u16,
        /// Ranks in each.
        members: u16,
    },
    /// Groups would differ in size.
    #[error("{ranks} ranks do not make {groups} equal groups; a divisor of {ranks} is needed")]
    Unequal {
        /// Ranks of the job.
        ranks: u16,
        /// Groups asked for.
        groups: u16,
    },
    /// The two collectives are not one rank's of this grid.
    #[error(
        "the row has {row} ranks and the column {column}; this grid's have {members} and {groups}"
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
    /// Rows and columns would cut or code a bucket differently.
    #[error("the row's and the column's seed, coding, element or slot differ; they are the same")]
    Differ,
    /// What half an operation leaves uncounted is not its own.
    #[error("a grid cannot recycle; leave recycling out of its rows' and columns' configuration")]
    Recycling,
    /// The row has two operations for each of the caller's.
    #[error("{0}: buckets of a grid are numbered from 0 to {max}", max = Grid::MAX_BUCKET)]
    Bucket(OperationId),
}

impl Grid {
    /// The last bucket that a step of a grid can have.
    pub const MAX_BUCKET: u16 = u16::MAX / 2;

    /// `groups` of `members` ranks each.
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

    /// `ranks` in that many groups.
    ///
    /// # Errors
    /// [`GridError::Unequal`], [`GridError::Small`].
    pub fn of(ranks: u16, groups: u16) -> Result<Self, GridError> {
        match ranks.checked_rem(groups) {
            Some(0) => Self::new(groups, ranks / groups),
            _ => Err(GridError::Unequal { ranks, groups }),
        }
    }

    /// Groups: ranks of a column.
    pub fn groups(&self) -> u16 {
        self.groups
    }

    /// Ranks of a group.
    pub fn members(&self) -> u16 {
        self.members
    }

    /// Ranks in all.
    pub fn ranks(&self) -> u16 {
        self.groups * self.members
    }

    /// The group of `rank`, which is its number in its column.
    pub fn group_of(&self, rank: u16) -> u16 {
        rank / self.members
    }

    /// The number of `rank` in its group, which is its column's.
    pub fn member_of(&self, rank: u16) -> u16 {
        rank % self.members
    }

    /// The rank that is `member` of `group`.
    pub fn rank(&self, group: u16, member: u16) -> u16 {
        group * self.members + member
    }

    /// What a rank's row runs with, as job number `job`, so that operations of the grid last as long as those of `whole`,
    /// the configuration that the rank would have in a flat job: [`GridBounds`].
    pub fn row(&self, whole: &Config, job: u16) -> Config {
        let here = self.group_of(whole.rank);
        let beside = whole.beside.iter().copied();
        GridBounds::new(whole.t_s, whole.t_b).of_row(Config {
            job,
            rank: self.member_of(whole.rank),
            ranks: self.members,
            beside: beside
                .filter(|&other| self.group_of(other) == here)
                .map(|other| self.member_of(other))
                .collect(),
            ..whole.clone()
        })
    }

    /// The same for the rank's column.
    pub fn column(&self, whole: &Config, job: u16) -> Config {
        let here = self.member_of(whole.rank);
        let beside = whole.beside.iter().copied();
        GridBounds::new(whole.t_s, whole.t_b).of_column(Config {
            job,
            rank: self.group_of(whole.rank),
            ranks: self.groups,
            beside: beside
                .filter(|&other| self.member_of(other) == here)
                .map(|other| self.group_of(other))
                .collect(),
            ..whole.clone()
        })
    }

    /// The row's operation that scatters for the grid's operation `id`, whose bucket is [`Grid::MAX_BUCKET`] at most. The
    /// column's is `id` itself.
    pub fn scatter_id(id: OperationId) -> OperationId {
        let bucket = id.bucket << 1;
        OperationId { bucket, ..id }
    }

    /// The row's operation that gathers.
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
    fn what_is_no_grid_is_named() {
        let said = |grid: Result<Grid, GridError>| grid.unwrap_err().to_string();
        assert!(said(Grid::new(1, 8)).contains("2 or more of both"));
        assert!(said(Grid::new(300, 300)).contains("65535"));
        assert!(said(Grid::of(8, 3)).contains("a divisor of 8"));
        assert!(said(Grid::of(8, 0)).contains("a divisor of 8"));
        assert!(said(Grid::of(8, 8)).contains("2 or more of both"));
    }

    #[test]
    fn the_phases_last_as_long_as_a_flat_operation() {
        let grid = Grid::new(3, 4).expect("a grid");
        let mut whole = Config::new(7, 1, 6, 12, 42, Duration::from_millis(100));
        whole.beside = vec![2, 5, 7];
        let (row, column) = (grid.row(&whole, 8), grid.column(&whole, 9));
        assert_eq!((row.validate(), column.validate()), (Ok(()), Ok(())));
        assert_eq!((row.job, row.rank, row.ranks), (8, 2, 4));
        assert_eq!((column.job, column.rank, column.ranks), (9, 1, 3));
        assert_eq!((row.beside, column.beside), (vec![1, 3], vec![0]));
        assert_eq!(row.t_s + column.t_b + row.t_b, whole.t_b);
        let ms = Duration::from_millis;
        assert_eq!([row.t_s, column.t_s], [ms(20), ms(30)]);
        assert_eq!([column.t_b, row.t_b], [ms(40), ms(40)]);
    }

    #[test]
    fn who_waits_for_a_bound_is_in_time_for_the_next_phase() {
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
        // As in a flat job t_S may be anything up to t_B.
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
