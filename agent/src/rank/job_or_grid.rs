//! The job, or the rows and columns of the grid, of a name.

use std::collections::HashSet;

use nix::ifaddrs::getifaddrs;
use ultima_api::Line;
use ultima_api::client::Client;
use ultima_api::v1 as api;
use ultima_host::Grid;

use crate::SessionError;

/// The most hosts in one message.
const SHOWN_HOSTS: usize = 8;

/// The job or grid of a name.
#[derive(Clone, Debug)]
pub enum JobOrGrid {
    /// One job.
    Job(Box<api::Job>),
    /// A grid.
    Grid {
        /// Its groups and members.
        grid: Grid,
        /// Its rows in order, then its columns.
        jobs: Vec<api::Job>,
    },
}

impl JobOrGrid {
    /// Looks up `name` at the controller.
    ///
    /// # Errors
    /// The controller does not answer, or has no such job, or only a part of a grid.
    pub async fn find(client: &Client, name: &str) -> Result<Self, SessionError> {
        let all = client.jobs().await?;
        let of_grid = |job: &api::Job| {
            let (grid, line) = Line::of(&job.name)?;
            (grid == name).then(|| (line, job.clone()))
        };
        let mut lines: Vec<(Line, api::Job)> = all.iter().filter_map(of_grid).collect();
        if lines.is_empty() || all.iter().any(|job| job.name == name) {
            return Ok(JobOrGrid::Job(Box::new(client.job(name).await?)));
        }
        lines.sort_by_key(|(line, _)| *line);
        let grid = grid_of(&lines).ok_or_else(|| SessionError::IncompleteGrid {
            name: name.to_owned(),
        })?;
        let jobs = lines.into_iter().map(|(_, job)| job).collect();
        Ok(JobOrGrid::Grid { grid, jobs })
    }

    /// Its jobs.
    pub fn jobs(&self) -> &[api::Job] {
        match self {
            JobOrGrid::Job(job) => std::slice::from_ref(&**job),
            JobOrGrid::Grid { jobs, .. } => jobs,
        }
    }

    /// The fabric's name of the member whose address this machine has.
    ///
    /// # Errors
    /// [`SessionError::NotAMember`]: no member has one.
    pub fn own_host(&self) -> Result<String, SessionError> {
        let interfaces = getifaddrs().into_iter().flatten();
        let own: Vec<String> = interfaces
            .filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip().to_string()))
            .collect();
        // Includes the next epoch, where this machine may be new.
        let members = self.jobs().iter().flat_map(|job| {
            let next = job.next.iter().flat_map(|next| &next.members);
            job.members.iter().chain(next)
        });
        let member = (members.clone()).find(|member| own.contains(&member.ip));
        match member {
            Some(member) => Ok(member.host.clone()),
            None => Err(SessionError::NotAMember {
                addresses: own.join(", "),
                members: hosts_of(members),
            }),
        }
    }
}

/// The first hosts of these members, and how many more there are.
fn hosts_of<'a>(members: impl Iterator<Item = &'a api::Member>) -> String {
    let mut known = HashSet::new();
    let hosts = members.map(|member| member.host.as_str());
    let mut hosts: Vec<&str> = hosts.filter(|host| known.insert(*host)).collect();
    let more = hosts.len().saturating_sub(SHOWN_HOSTS);
    hosts.truncate(SHOWN_HOSTS);
    match more {
        0 => hosts.join(", "),
        more => format!("{} and {more} more", hosts.join(", ")),
    }
}

/// The grid of these jobs, which are in order; none if a job or a member is missing.
fn grid_of(lines: &[(Line, api::Job)]) -> Option<Grid> {
    let rows = lines.iter();
    let rows = rows.filter(|(line, _)| matches!(line, Line::Row(_)));
    let groups = u16::try_from(rows.count()).ok()?;
    let members = u16::try_from(lines.len()).ok()? - groups;
    let grid = Grid::new(groups, members).ok()?;
    let is_in_place = |(at, (line, job)): (u16, &(Line, api::Job))| match at.checked_sub(groups) {
        None => *line == Line::Row(at) && job.members.len() == usize::from(members),
        Some(at) => *line == Line::Column(at) && job.members.len() == usize::from(groups),
    };
    (0..).zip(lines).all(is_in_place).then_some(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_member_learns_the_members() {
        let error = |hosts: &[&str]| {
            let member = |host: &&str| api::Member {
                host: (*host).to_owned(),
                // Reserved for documentation (RFC 5737).
                ip: "192.0.2.1".into(),
                ..api::Member::default()
            };
            let job = api::Job {
                members: hosts.iter().map(member).collect(),
                ..api::Job::default()
            };
            let error = JobOrGrid::Job(Box::new(job)).own_host().unwrap_err();
            error.to_string()
        };
        let few = error(&["h1", "h2", "h2", "h3"]);
        assert!(
            few.ends_with(
                "; the job's members are h1, h2, h3: on one of these hosts, pass its name"
            ),
            "{few}"
        );
        let many = error(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]);
        assert!(
            many.contains(" a, b, c, d, e, f, g, h and 2 more: "),
            "{many}"
        );
    }

    #[test]
    fn a_grid_has_all_of_its_rows_and_columns() {
        let job = |line, members| {
            let members = vec![api::Member::default(); members];
            (
                line,
                api::Job {
                    members,
                    ..api::Job::default()
                },
            )
        };
        let (rows, columns) = (
            [job(Line::Row(0), 3), job(Line::Row(1), 3)],
            [0, 1, 2].map(|column| job(Line::Column(column), 2)),
        );
        let mut lines = [&rows[..], &columns].concat();
        assert_eq!(grid_of(&lines), Grid::new(2, 3).ok());
        lines[4].1.members.pop();
        assert_eq!(grid_of(&lines), None);
        assert_eq!(grid_of(&lines[..4]), None);
        assert_eq!(grid_of(&lines[1..]), None);
    }
}
