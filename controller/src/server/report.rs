//! Reporting events of jobs and elements: to the event log, to watchers of jobs, and to tasks that follow members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::time::{sleep, timeout};
use ultima_api::v1::MembershipEvent;
use ultima_api::v1::membership_event::Kind;
use ultima_planner::fabric::{Element, Fabric, SwitchPort, TrunkId};
use ultima_planner::job::{Job, JobId, Rank};

use super::condition::{Condition, Logged, State, StateChange};
use super::controller::Controller;
use super::event_log::EventLog;
use super::switch::ManagedSwitch;
use crate::store::{Change, StoreError};

/// Reasons of events.
const DRAINED: &str = "Drained";
const NOT_READY: &str = "NotReady";
const CONNECTED: &str = "Connected";

/// Reports an event of a member in an installed epoch; without a rank, of the epoch.
pub fn report_installed(
    controller: &Controller,
    id: JobId,
    rank: Option<Rank>,
    kind: Kind,
    reason: &str,
) {
    let job = controller.registry().get(id).map(|it| Arc::clone(&it.job));
    if let Some(job) = job {
        report(controller, &job, kind, rank, None, reason.to_owned());
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
    // Without the epoch, so that a member's events are counted and do not fill the log.
    let mut message = match rank {
        Some(rank) => format!("rank {rank} on {}", event.host),
        None => format!("epoch {}", job.epoch.0),
    };
    if !event.reason.is_empty() {
        message = format!("{message}: {}", event.reason);
    }
    controller.log.add_of_job(job, reason_of(kind), &message);
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
        let message = format!("rank {rank} on {host}");
        controller.log.add_of_job(job, "KeyFetched", &message);
    }
}

/// Records that a switch was lost, refused or connected, if it was not recorded yet.
pub fn record_switch(controller: &Controller, switch: &ManagedSwitch) {
    let object = || format!("switch/{}", switch.name());
    match switch.new_problem() {
        None => {}
        Some(None) => controller.log.add(object(), 0, CONNECTED, ""),
        Some(Some(problem)) => controller.log.add(object(), 0, NOT_READY, &problem),
    }
}

/// Why a switch is not connected, by the event log.
pub fn logged_problem(log: &EventLog, switch: &str) -> Option<String> {
    let mut events = log.of(&format!("switch/{switch}")).into_iter();
    let last = events.rfind(|it| [NOT_READY, CONNECTED].contains(&&*it.reason))?;
    (last.reason == NOT_READY).then_some(last.message)
}

/// Records that an element was drained, or is used again.
pub fn record_drain(controller: &Controller, element: Element, drained: bool) {
    let reason = if drained { DRAINED } else { "Undrained" };
    controller
        .log
        .add(object_of(&controller.fabric, element), 0, reason, "");
    date_drains(
        &mut controller.condition(),
        &controller.fabric,
        &controller.log,
    );
}

/// Sets since when elements are drained, by the event log.
pub fn date_drains(condition: &mut Condition, fabric: &Fabric, log: &EventLog) {
    condition.date_drains(|element| {
        let events = log.of(&object_of(fabric, element));
        let drained = events.iter().rfind(|it| it.reason == DRAINED)?;
        Some(UNIX_EPOCH + Duration::from_millis(drained.last_ms))
    });
}

/// Records that elements went down or came back: a port also as its link or host. A switch has [events of its
/// own](record_switch).
pub fn record_health(controller: &Controller, changes: &[StateChange]) {
    let fabric = &controller.fabric;
    for (at, StateChange { element, state }) in changes.iter().enumerate() {
        let port = match *element {
            Element::Switch(_) | Element::Transit(_) => continue,
            Element::Port(at) => Some(at),
            Element::Trunk(_) => None,
        };
        let object = object_of(fabric, *element);
        // The link is still down if its other port is.
        let is_half_up = |port: SwitchPort| {
            let far = fabric.across(port).map(Element::Port);
            let is_down = |far| {
                let comes_back = |it: &StateChange| it.element == far && it.state == State::Up;
                !controller.condition().is_logged_up(far)
                    || changes[at + 1..].iter().any(comes_back)
            };
            *state == State::Up && far.is_some_and(is_down)
        };
        let peer = port.and_then(|at| match fabric.trunk_at(at) {
            Some(_) if is_half_up(at) => None,
            Some(trunk) => Some(object_of(fabric, Element::Trunk(trunk))),
            None => {
                let host = fabric.hosts().iter().find(|host| host.attached == at)?;
                Some(format!("host/{}", host.name))
            }
        });
        if let Some(peer) = peer {
            controller.log.add(peer, 0, state.reason(), &object);
        }
        controller.log.add(object, 0, state.reason(), "");
    }
}

/// The last state in an event log of each element that is not up there.
pub fn logged_states(fabric: &Fabric, log: &EventLog) -> BTreeMap<Element, Logged> {
    let ports = fabric.switch_ids().flat_map(|switch| {
        let ports = fabric.ports_of(switch);
        ports.map(move |port| Element::Port(SwitchPort { switch, port }))
    });
    let trunks = (0..fabric.trunks().len()).map(|at| Element::Trunk(TrunkId(at)));
    let elements: BTreeMap<String, Element> = ports
        .chain(trunks)
        .map(|element| (object_of(fabric, element), element))
        .collect();
    let mut states = BTreeMap::new();
    for event in log.of("") {
        let state = [State::Up, State::Down, State::Lossy]
            .into_iter()
            .find(|state| state.reason() == event.reason);
        // An event with a message is of the port in the message.
        if let (Some(element), Some(state), "") =
            (elements.get(&event.object), state, &*event.message)
        {
            let since = UNIX_EPOCH + Duration::from_millis(event.last_ms);
            states.insert(*element, Logged { state, since });
        }
    }
    states.retain(|_, logged| logged.state != State::Up);
    states
}

/// The object of an element's events.
fn object_of(fabric: &Fabric, element: Element) -> String {
    let kind = match element {
        Element::Switch(_) | Element::Transit(_) => "switch",
        Element::Port(_) => "port",
        Element::Trunk(_) => "link",
    };
    format!("{kind}/{}", fabric.name_of(element))
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

/// Stores new events, many at once, while the controller leads. The last events of a controller that is killed are lost.
pub async fn keep_events(controller: Arc<Controller>) {
    let mut has_failed = false;
    loop {
        sleep(controller.timers.events).await;
        let written = store_events(&controller).await;
        // A controller that does not lead any more stores nothing.
        if controller.open().is_err() {
            return;
        }
        if let Err(error) = &written {
            // Once: a full disk must not fill the log, too.
            if !has_failed {
                tracing::warn!(%error, "cannot store recent events; retrying");
            }
        }
        has_failed = written.is_err();
    }
}

/// Stores new events, if there are any.
pub async fn store_events(controller: &Controller) -> Result<(), StoreError> {
    // A controller that stops waits for the write in progress, too.
    let _storing = controller.storing_events.lock().await;
    let Some(events) = controller.log.to_store() else {
        return Ok(());
    };
    let written = controller.journal.write(Change::Events(events)).await;
    written.inspect_err(|_| controller.log.store_again())
}

/// Stores the last events of a controller that is stopped.
pub async fn store_last_events(controller: &Controller) {
    // The store may hang, and the controller stops in any case.
    let stored = timeout(controller.timers.stop, store_events(controller)).await;
    if !matches!(stored, Ok(Ok(()))) {
        tracing::warn!("the last events are not stored");
    }
}
