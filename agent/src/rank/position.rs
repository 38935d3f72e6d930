//! A rank's position in its job or grid.

use ultima_host::Grid;

/// A rank's position in its job or grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The rank.
    pub rank: u16,
    /// The number of ranks.
    pub ranks: u16,
    /// The grid, if any.
    pub grid: Option<Grid>,
}

/// The two jobs of a rank in a grid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    Row,
    Column,
}

/// By job number.
const LINES: [Line; 2] = [Line::Row, Line::Column];
/// The phases of a grid's operation, in order.
const PHASES: [Line; 3] = [Line::Row, Line::Column, Line::Row];

impl Position {
    /// A position in a job that is not part of a grid.
    pub fn in_flat_job(rank: u16, ranks: u16) -> Self {
        Self {
            rank,
            ranks,
            grid: None,
        }
    }

    /// The position in one of the rank's jobs. Job 0 is the only job or the row, job 1 the column.
    pub fn in_job(&self, job: usize) -> Self {
        match self.grid {
            None => *self,
            Some(grid) => match LINES[job] {
                Line::Row => Self::in_flat_job(grid.member_of(self.rank), grid.members()),
                Line::Column => Self::in_flat_job(grid.group_of(self.rank), grid.groups()),
            },
        }
    }

    /// The rank that has number `other` in one of this rank's jobs.
    pub fn of_job(&self, job: usize, other: u16) -> u16 {
        match self.grid {
            None => other,
            Some(grid) => match LINES[job] {
                Line::Row => grid.rank(grid.group_of(self.rank), other),
                Line::Column => grid.rank(other, grid.member_of(self.rank)),
            },
        }
    }

    /// The job of a phase of an operation.
    pub fn job_of_phase(phase: usize) -> usize {
        usize::from(PHASES[phase] == Line::Column)
    }
}
