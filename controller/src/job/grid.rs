//! Jobs whose ranks stand in a grid: every row and every column is a job of its own.

use std::fmt;

use super::{JobProblem, JobSpec};
use crate::membership::Eviction;

/// What a user asks for: groups of equally many ranks, for hierarchical AllReduces.
///
/// Rank *r* of the file's members is member *r* mod *M* of group *r*/*M*. A group's ranks make a row job, the ranks with
/// the same member number a column job: NAME.row0 …, NAME.column0 …; all have the same seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridSpec {
    whole: JobSpec,
    groups: usize,
}

/// A job's part of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Line {
    /// The ranks of the group with that number.
    Row(u16),
    /// The ranks with that member number.
    Column(u16),
}

impl Line {
    /// The name of this part of the grid `grid`.
    pub fn name(self, grid: &str) -> String {
        format!("{grid}.{self}")
    }

    /// The grid's name, and which part of it has the job `name`.
    pub fn of(name: &str) -> Option<(&str, Line)> {
        let (grid, part) = name.rsplit_once('.')?;
        let line = match part.strip_prefix("row") {
            Some(row) => Line::Row(row.parse().ok()?),
            None => Line::Column(part.strip_prefix("column")?.parse().ok()?),
        };
        // Not one that is only written like it, such as `row01`.
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

impl GridSpec {
    /// `whole` in that many groups.
    ///
    /// # Errors
    /// [`JobProblem::Groups`], [`JobProblem::Scattered`], [`JobProblem::GridEviction`]; [`JobProblem::Name`] for a name too long for its parts'.
    pub fn new(whole: JobSpec, groups: u16) -> Result<Self, JobProblem> {
        let (ranks, groups) = (whole.members.len(), usize::from(groups));
        if groups < 2 || !ranks.is_multiple_of(groups) || ranks / groups < 2 {
            return Err(JobProblem::Groups { groups, ranks });
        }
        if whole.eviction != Eviction::Never {
            return Err(JobProblem::GridEviction);
        }
        let spec = Self { whole, groups };
        for (at, host) in spec.whole.members.iter().enumerate() {
            let first = spec.whole.members.iter().position(|other| other == host);
            if first.is_some_and(|first| first / spec.members() != at / spec.members()) {
                return Err(JobProblem::Scattered(host.clone()));
            }
        }
        spec.jobs(0).iter().try_for_each(JobSpec::check)?;
        Ok(spec)
    }

    /// The grid's name.
    pub fn name(&self) -> &str {
        &self.whole.name
    }

    /// The seed that was asked for.
    pub fn seed(&self) -> Option<u64> {
        self.whole.seed
    }

    /// Ranks of a group.
    fn members(&self) -> usize {
        self.whole.members.len() / self.groups
    }

    /// Where a member of one of its jobs stands among all of them.
    pub(super) fn place(&self, line: Line, index: usize) -> usize {
        let members = self.members();
        // A controller may name a member that there is not.
        match line {
            Line::Row(row) => (usize::from(row) * members).saturating_add(index),
            Line::Column(column) => index.saturating_mul(members).saturating_add(column.into()),
        }
    }

    /// Its jobs, rows first, all with `seed`.
    pub fn jobs(&self, seed: u64) -> Vec<JobSpec> {
        let members = self.members();
        let job = |line: Line, hosts: Vec<String>| JobSpec {
            name: line.name(&self.whole.name),
            members: hosts,
            seed: Some(seed),
            ..self.whole.clone()
        };
        let rows = self.whole.members.chunks(members).zip(0..);
        let rows = rows.map(|(hosts, row)| job(Line::Row(row), hosts.to_vec()));
        let column = |member: usize| self.whole.members.iter().skip(member).step_by(members);
        let columns = (0..members).zip(0..);
        let columns = columns
            .map(|(member, number)| job(Line::Column(number), column(member).cloned().collect()));
        rows.chain(columns).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(name: &str, members: &[&str]) -> JobSpec {
        JobSpec::new(name, members.iter().copied())
    }

    #[test]
    fn rows_and_columns_are_jobs() {
        let grid = GridSpec::new(whole("train", &["a", "b", "c", "d", "e", "f"]), 2);
        let grid = grid.expect("a grid");
        let jobs = grid.jobs(7);
        let named = |name: &str| {
            let job = jobs.iter().find(|job| job.name == name).expect(name);
            assert_eq!(job.seed, Some(7));
            job.members.concat()
        };
        assert_eq!(jobs.len(), 5);
        assert_eq!([named("train.row0"), named("train.row1")], ["abc", "def"]);
        let columns = [0, 1, 2].map(|n| named(&Line::Column(n).name("train")));
        assert_eq!(columns, ["ad", "be", "cf"]);
        let all = ["a", "b", "c", "d", "e", "f"];
        for job in &jobs {
            let (name, line) = Line::of(&job.name).expect("a part");
            assert_eq!((name, line.name(name)), ("train", job.name.clone()));
            for (index, host) in job.members.iter().enumerate() {
                assert_eq!(all[grid.place(line, index)], host);
            }
        }
        assert_eq!(Line::of("train"), None);
        assert_eq!(Line::of("train.rows"), None);
    }

    #[test]
    fn what_makes_no_grid_is_named() {
        let said = |spec: JobSpec, groups| GridSpec::new(spec, groups).unwrap_err().to_string();
        let four = ["a", "b", "c", "d"];
        for groups in [0, 1, 3, 4] {
            assert!(said(whole("train", &four), groups).contains("2 or more ranks each"));
        }
        assert!(said(whole("train", &["a", "b", "a", "c"]), 2).contains("a has ranks in several"));
        let long = "n".repeat(60);
        assert!(said(whole(&long, &four), 2).contains("is no name"));
        assert!(GridSpec::new(whole("train", &["a", "a", "b", "b"]), 2).is_ok());
        let evicts = JobSpec {
            eviction: Eviction::After(5),
            ..whole("train", &four)
        };
        assert!(said(evicts, 2).contains("a grid keeps its members"));
    }
}
