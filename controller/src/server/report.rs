//! Reporting events of jobs and elements: to the event log, to watchers of jobs, and to tasks that follow members.

use std::sync::Arc;

use tokio::time::sleep;
use ultima_api::v1::MembershipEvent;
use ultima_api::v1::membership_event::Kind;
use ultima_planner::fabric::{Element, SwitchPort};
use ultima_planner::job::{Job, JobId, Rank};

use super::condition::{State, StateChange};
use super::controller::Controller;
use super::switch::ManagedSwitch;
use crate::store::Change;

/// Reports an event of a member in an installed epoch.
pub fn report_member(controller: &Controller, id: JobId, rank: Rank, kind: Kind, reason: &str) {
    let job = controller
        .registry()
        .get(id)
        .map(|record| Arc::clone(&record.job));
    if let Some(job) = job {
        report(controller, &job, kind, Some(rank), None, reason.to_owned());
    }
}

/// Reports an event of an installed epoch.
pub fn report_epoch(
    controller: &Controller,
    id: JobId,
    kind: Kind,
    first: Option<u32>,
    reason: String,
) {
    let job = controller
        .registry()
        .get(id)
        .map(|record| Arc::clone(&record.job));
    if let Some(job) = job {
        report(controller, &job, kind, None, first, reason);
    }
}

/// Reports an event of an epoch that may be gone.
pub fn report(
    controller: &Controller,
    job: &Job,
    kind: Kind,
    rank: Option<Rank>,
    first: Option<u32>,
    reason: String,
) {
    let member = rank.and_then(|rank| job.members.get(usize::from(rank.0)));
    let event = MembershipEvent {
        kind: kind.into(),
        epoch: job.epoch.0.into(),
        rank: rank.map(|rank| rank.0.into()),
        host: member.map_or_else(String::new, |it| {
            controller.fabric.host(it.host).name.clone()
        }),
        first_operation: first,
        reason,
    };
    let mut message = format!("epoch {}", job.epoch.0);
    if let Some(rank) = rank {
        message = format!("rank {rank} on {}, {message}", event.host);
    }
    if !event.reason.is_empty() {
        message = format!("{message}: {}", event.reason);
    }
    let object = format!("job/{}", job.name);
    controller.log.add(object, reason_of(kind), &message);
    controller.events.publish((job.name.as_str().into(), event));
    controller.sessions.notify(job.id);
}

/// Records that the member with a rank receives the key of a sealed job.
pub fn record_key(controller: &Controller, job: &Job, rank: Rank) {
    if job.key.is_some() {
        let host = &controller
            .fabric
            .host(job.members[usize::from(rank.0)].host)
            .name;
        let message = format!("rank {rank} on {host}, epoch {}", job.epoch.0);
        let object = format!("job/{}", job.name);
        controller.log.add(object, "KeyFetched", &message);
    }
}

/// Records that a switch was lost, refused or connected, if it was not recorded yet.
pub fn record_switch(controller: &Controller, switch: &ManagedSwitch) {
    let object = || format!("switch/{}", switch.name());
    match switch.new_problem() {
        None => {}
        Some(None) => controller.log.add(object(), "Connected", ""),
        Some(Some(problem)) => controller.log.add(object(), "NotReady", &problem),
    }
}

/// Records that an element was drained, or is used again.
pub fn record_drain(controller: &Controller, element: Element, drained: bool) {
    let reason = if drained { "Drained" } else { "Undrained" };
    controller
        .log
        .add(object_of(controller, element), reason, "");
}

/// Records that elements went down or came back: a port also as its link or host. A switch has [events of its
/// own](record_switch).
pub fn record_health(controller: &Controller, changes: Vec<StateChange>) {
    let fabric = &controller.fabric;
    for StateChange { element, state } in changes {
        let at = match element {
            Element::Switch(_) | Element::Transit(_) => continue,
            Element::Port(at) => Some(at),
            Element::Trunk(_) => None,
        };
        let reason = match state {
            State::Up => "Up",
            State::Down => "Down",
            State::Lossy => "LosesPackets",
        };
        let object = object_of(controller, element);
        let peer = at.and_then(|at| match fabric.trunk_at(at) {
            // The link is still down if its other port is.
            Some(_) if state == State::Up && is_far_port_down(controller, at) => None,
            Some(trunk) => Some(object_of(controller, Element::Trunk(trunk))),
            None => {
                let host = fabric.hosts().iter().find(|host| host.attached == at)?;
                Some(format!("host/{}", host.name))
            }
        });
        if let Some(peer) = peer {
            controller.log.add(peer, reason, &object);
        }
        controller.log.add(object, reason, "");
    }
}

/// True if the port at the other end of a port's link is down.
fn is_far_port_down(controller: &Controller, at: SwitchPort) -> bool {
    let far = controller.fabric.across(at).map(Element::Port);
    far.is_some_and(|far| controller.condition().is_down(far))
}

/// The object of an element's events.
fn object_of(controller: &Controller, element: Element) -> String {
    let kind = match element {
        Element::Switch(_) | Element::Transit(_) => "switch",
        Element::Port(_) => "port",
        Element::Trunk(_) => "link",
    };
    format!("{kind}/{}", controller.fabric.name_of(element))
}

/// The reason of an event of members.
pub fn reason_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Unspecified => "",
        Kind::Joined => "Joined",
        Kind::Left => "Left",
        Kind::Suspected => "Suspected",
        Kind::Cleared => "Recovered",
        Kind::Installed => "EpochInstalled",
        Kind::LeftOut => "Removed",
        Kind::Decided => "EpochDecided",
        Kind::Cancelled => "EpochCancelled",
        Kind::Fenced => "EpochFenced",
        Kind::Deleted => "Deleted",
    }
}

/// Stores new events, many at once, while the controller leads. The events of its last seconds are lost.
pub async fn keep_events(controller: Arc<Controller>) {
    let mut has_failed = false;
    loop {
        sleep(controller.timers.events).await;
        let Some(events) = controller.log.to_store() else {
            continue;
        };
        let written = controller.journal.write(Change::Events(events)).await;
        // A controller that does not lead any more stores nothing.
        if controller.open().is_err() {
            return;
        }
        if let Err(error) = &written {
            controller.log.store_again();
            // Once: a full disk must not fill the log, too.
            if !has_failed {
                tracing::warn!(%error, "cannot store recent events; retrying");
            }
        }
        has_failed = written.is_err();
    }
}
