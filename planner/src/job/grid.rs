//! Grids of ranks: each row and each column is a job.

use std::collections::HashMap;

use ultima_api::Line;

use super::placement::check_name;
use super::{JobSpec, Refusal};
use crate::membership::Eviction;

/// A grid: groups of equally many ranks, for hierarchical AllReduces.
///
/// Rank *r* of the file's members is member *r* mod *M* of group *r*/*M*. The ranks of a group form
/// a row job, the ranks with the same member number a column job: NAME.row0 …, NAME.column0 …. All
/// have the same seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridSpec {
    whole: JobSpec,
    groups: usize,
}

impl GridSpec {
    /// Divides `whole` into groups.
    ///
    /// # Errors
    /// The groups are not equal or too small, a host has ranks in several groups, members may be
    /// evicted, or the names of the grid's jobs are too long.
    pub fn new(whole: JobSpec, groups: u16) -> Result<Self, Refusal> {
        whole.check()?;
        let (ranks, groups) = (whole.members.len(), usize::from(groups));
        if groups < 2 || !ranks.is_multiple_of(groups) || ranks / groups < 2 {
            let message = format!(
                "cannot divide {ranks} members into {groups} equal groups; a grid has 2 or more groups of 2 or more ranks each"
            );
            return Err(Refusal::invalid("groups", message));
        }
        if whole.policy.eviction != Eviction::Never {
            let message = "the members of a grid cannot change; leave evict_after_s out";
            return Err(Refusal::invalid("evict_after_s", message));
        }
        let spec = Self { whole, groups };
        let mut rows = HashMap::new();
        for (row, hosts) in spec.whole.members.chunks(spec.members()).enumerate() {
            for host in hosts {
                if *rows.entry(host).or_insert(row) != row {
                    // Its ranks in a column job could not be distinguished.
                    let message = format!(
                        "host {host} has ranks in several groups; put all ranks of a host in one group"
                    );
                    return Err(Refusal::invalid("members", message));
                }
            }
        }
        spec.names().try_for_each(|name| check_name(&name))?;
        Ok(spec)
    }

    /// The grid's name.
    pub fn name(&self) -> &str {
        &self.whole.name
    }

    /// The seed in the file.
    pub fn seed(&self) -> Option<u64> {
        self.whole.seed
    }

    /// The number of ranks in a group.
    fn members(&self) -> usize {
        self.whole.members.len() / self.groups
    }

    /// The position of a member of one of the grid's jobs in the grid's list.
    pub(super) fn place(&self, line: Line, index: usize) -> usize {
        let members = self.members();
        // The index may come from a controller and be out of range.
        match line {
            Line::Row(row) => (usize::from(row) * members).saturating_add(index),
            Line::Column(column) => index.saturating_mul(members).saturating_add(column.into()),
        }
    }

    /// The grid's lines, rows first. There are fewer lines than ranks.
    fn lines(&self) -> impl Iterator<Item = Line> {
        let rows = (0..u16::MAX).take(self.groups).map(Line::Row);
        rows.chain((0..u16::MAX).take(self.members()).map(Line::Column))
    }

    /// The hosts of a line's ranks, in rank order.
    fn hosts(&self, line: Line) -> impl Iterator<Item = &String> {
        let members = self.members();
        let (first, every, count) = match line {
            Line::Row(row) => (usize::from(row) * members, 1, members),
            Line::Column(column) => (column.into(), members, self.groups),
        };
        let hosts = self.whole.members.iter().skip(first);
        hosts.step_by(every).take(count)
    }

    /// The names of the grid's jobs, rows first.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.lines().map(|line| line.name(&self.whole.name))
    }

    /// True if a job of that name belongs to the grid.
    pub(super) fn stands_for(&self, job: &str) -> bool {
        let Some((grid, line)) = Line::of(job) else {
            return false;
        };
        let is_there = match line {
            Line::Row(row) => usize::from(row) < self.groups,
            Line::Column(column) => usize::from(column) < self.members(),
        };
        is_there && grid == self.whole.name
    }

    /// The grid's jobs, rows first, all with `seed`.
    pub fn jobs(&self, seed: u64) -> Vec<JobSpec> {
        let same = JobSpec {
            seed: Some(seed),
            // A key stands for one job.
            request: 0,
            uid: 0,
            members: Vec::new(),
            name: String::new(),
            client: self.whole.client.clone(),
            ..self.whole
        };
        let job = |line: Line| JobSpec {
            name: line.name(&self.whole.name),
            members: self.hosts(line).cloned().collect(),
            ..same.clone()
        };
        self.lines().map(job).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::JobPolicy;
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
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        assert!(grid.names().eq(names.iter().copied()));
        assert!(names.into_iter().all(|name| grid.stands_for(name)));
        for other in [
            "train",
            "train.row2",
            "train.column3",
            "other.row0",
            "train.row00",
        ] {
            assert!(!grid.stands_for(other), "{other}");
        }
        assert_eq!(Line::of("train"), None);
        assert_eq!(Line::of("train.rows"), None);
    }

    #[test]
    fn invalid_grids_are_named() {
        let said = |spec: JobSpec, groups| GridSpec::new(spec, groups).unwrap_err().to_string();
        let four = ["a", "b", "c", "d"];
        for groups in [0, 1, 3, 4] {
            assert!(said(whole("train", &four), groups).contains("2 or more ranks each"));
        }
        assert!(said(whole("train", &["a", "b", "a", "c"]), 2).contains("a has ranks in several"));
        let long = "n".repeat(60);
        assert!(said(whole(&long, &four), 2).contains("invalid name"));
        assert!(GridSpec::new(whole("train", &["a", "a", "b", "b"]), 2).is_ok());
        let evicts = JobSpec {
            policy: JobPolicy {
                eviction: Eviction::After(5),
                ..JobPolicy::default()
            },
            ..whole("train", &four)
        };
        assert!(said(evicts, 2).contains("the members of a grid cannot change"));
    }
}
