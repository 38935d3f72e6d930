//! Reports to members about other members of their epoch that were refused or have left.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use ultima_api::v1::attend_response::Order as Message;
use ultima_api::v1::{CannotBegin, MembersLeft};
use ultima_planner::job::{JobId, Rank};

use super::super::controller::Controller;
use super::super::registry::Registry;
use super::super::registry::record::{Obstacle, Record, Stage};
use super::super::seats::Seat;
use super::super::sessions::Mismatch;

/// The shortest time between two reports to one member: members of a large job leave together.
const PAUSE: Duration = Duration::from_millis(50);

/// The members of an epoch that have left and that one session has not reported.
pub struct Departures {
    left: watch::Receiver<Vec<Rank>>,
    reported: usize,
    not_before: Instant,
    /// True when the epoch is removed.
    ended: bool,
}

impl Departures {
    /// Reports all members that have left, and those that leave later.
    pub fn of(record: &Record) -> Self {
        let mut left = record.seats.left();
        left.mark_changed();
        Self {
            left,
            reported: 0,
            not_before: Instant::now(),
            ended: false,
        }
    }

    /// The next report. Waits until members leave; forever if the epoch is removed.
    pub async fn next(&mut self) -> Message {
        loop {
            sleep_until(self.not_before).await;
            if self.ended || self.left.changed().await.is_err() {
                self.ended = true;
                std::future::pending::<()>().await;
            }
            let left = self.left.borrow_and_update();
            let ranks: Vec<u32> = left[self.reported..]
                .iter()
                .map(|rank| rank.0.into())
                .collect();
            if !ranks.is_empty() {
                self.reported = left.len();
                self.not_before = Instant::now() + PAUSE;
                return Message::Left(MembersLeft { ranks });
            }
        }
    }
}

/// Notes that the controller refuses a member because of a setting.
pub fn refused(
    controller: &Controller,
    registry: &mut Registry,
    (id, rank): (JobId, Rank),
    mismatch: &Mismatch,
) {
    let Mismatch {
        field,
        has,
        expected,
    } = mismatch;
    let why = format!(
        "was refused: it has {field} {has}, the others have {expected}: start all ranks with the same settings"
    );
    obstructs(controller, registry, (id, rank), &why);
}

/// Notes that a member has given its rank up.
pub fn left(controller: &Controller, registry: &mut Registry, id: JobId, rank: Rank) {
    let Some(record) = registry.get_mut(id) else {
        return;
    };
    match record.seats.state(rank) {
        Some(Seat::Left) => {
            let why = "left before the first operation";
            obstructs(controller, registry, (id, rank), why);
        }
        // Another member may get the rank.
        _ => admitted(record, rank),
    }
}

/// Notes that `rank` is no obstacle any more.
pub fn admitted(record: &mut Record, rank: Rank) {
    record.obstacle.take_if(|obstacle| obstacle.rank == rank);
}

/// Notes the first reason that operations cannot begin, and reports it to all members.
fn obstructs(
    controller: &Controller,
    registry: &mut Registry,
    (id, rank): (JobId, Rank),
    why: &str,
) {
    let Some(record) = registry.get_mut(id) else {
        return;
    };
    if record.has_met || record.obstacle.is_some() || !record.begins_together() {
        return;
    }
    let host = record.job.members.get(usize::from(rank.0));
    let host = host.map_or("?", |member| &controller.fabric.host(member.host).name);
    let reason = format!("rank {} on {host} {why}", rank.0);
    record.obstacle = Some(Obstacle { rank, reason });
    report_obstacle(controller, registry, id);
}

/// Reports to all members the obstacle of a job's epoch, if it has one.
pub fn report_obstacle(controller: &Controller, registry: &Registry, id: JobId) {
    if let Some(message) = obstacle(registry, id) {
        controller.sessions.send_to_all(id, &message);
    }
}

/// The report of an epoch's obstacle. None during a change of members: its operations may begin in the next epoch.
pub fn obstacle(registry: &Registry, id: JobId) -> Option<Message> {
    let record = registry.get(id)?;
    let is_changing = registry.next_of(id).is_some() || registry.is_committing(&record.job.name);
    let is_last = record.stage == Stage::Current && !is_changing;
    let obstacle = record.obstacle.as_ref().filter(|_| is_last)?;
    Some(Message::CannotBegin(CannotBegin {
        reason: obstacle.reason.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use ultima_planner::fabric::{self, Health};
    use ultima_planner::job::JobSpec;
    use ultima_planner::program::Program;
    use ultima_planner::routing::Routes;

    use super::*;

    #[test]
    fn an_obstacle_is_reported_unless_a_next_epoch_is_being_committed() {
        let text = include_str!("../../../../topologies/star4.yaml");
        let fabric = fabric::parse(text, "star4.yaml").unwrap();
        let program = Program::v1model().unwrap();
        let mut registry = Registry::new(&fabric, Routes::new(&fabric, Health::default()));
        let spec = JobSpec::new("train", ["h1", "h2", "h3"]);
        let proposed = registry.propose(&fabric, program.names(), &spec).unwrap();
        let (job, _) = registry.reserve(&fabric, proposed);
        registry.add(job.id, None);
        let (rank, reason) = (Rank(1), "rank 1 left".to_owned());
        registry.get_mut(job.id).unwrap().obstacle = Some(Obstacle { rank, reason });
        assert!(obstacle(&registry, job.id).is_some());

        let hosts: Vec<_> = job.members[..2].iter().map(|member| member.host).collect();
        let next = registry.propose_next(&fabric, program.names(), &job, &hosts);
        let (next, _) = registry.reserve(&fabric, next.unwrap());
        assert_eq!(obstacle(&registry, job.id), None);
        assert!(registry.release(&fabric, next.id).is_some());
        assert!(obstacle(&registry, job.id).is_some());
        assert!(registry.release(&fabric, next.id).is_none());
    }
}
