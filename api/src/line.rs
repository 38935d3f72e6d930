//! The names of a grid's jobs.

use std::fmt;

/// A job of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// The ranks of this group.
    Row(u16),
    /// The ranks with this member number.
    Column(u16),
}

impl Line {
    /// The name of this job in the grid `grid`.
    pub fn name(self, grid: &str) -> String {
        format!("{grid}.{self}")
    }

    /// The grid and the line that a job's name stands for.
    pub fn of(name: &str) -> Option<(&str, Line)> {
        let (grid, part) = name.rsplit_once('.')?;
        let line = match part.strip_prefix("row") {
            Some(row) => Line::Row(row.parse().ok()?),
            None => Line::Column(part.strip_prefix("column")?.parse().ok()?),
        };
        // Excludes names that only look alike, such as `row01`.
        (line.to_string() == part).then_some((grid, line))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Row(row) => write!(f, "row{row}"),
            Line::Column(column) => write!(f, "column{column}"),
        }
    }
}
