//! Events of jobs that become degraded, and that are ready again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use ultima_api::v1::JobCondition;
use ultima_api::v1::JobConditionKind::Degraded;
use ultima_planner::names::some_of;

use super::controller::Controller;
use super::event_log::EventLog;
use super::messages::conditions;

/// The shortest time between two events of a job: a failure changes many conditions at about the same time.
const PAUSE: Duration = Duration::from_millis(100);

/// The reasons of the events.
const DEGRADED: &str = "Degraded";
const READY: &str = "Ready";

/// Logs an event when the degraded elements of a job change, and when it has no condition any more, until the controller
/// stops.
pub async fn log_conditions(controller: Arc<Controller>) {
    let mut changed = controller.switches_changed.subscribe();
    let logged = logged_conditions(&controller.log).into_iter();
    let mut logged = logged.map(|(job, it)| (job, it.element)).collect();
    loop {
        log_changes(&controller, &mut logged);
        sleep(PAUSE).await;
        // The sender is a field of the controller, so it is there.
        let _ = changed.changed().await;
    }
}

/// The condition of each job that is degraded in the event log, by the job's name: all elements, and the reason of one.
pub fn logged_conditions(log: &EventLog) -> BTreeMap<String, JobCondition> {
    let mut logged = BTreeMap::new();
    for event in log.of("") {
        let Some(job) = event.object.strip_prefix("job/") else {
            continue;
        };
        match &*event.reason {
            DEGRADED => {
                let (elements, reason) = event.message.split_once(": ").unwrap_or_default();
                let condition = JobCondition {
                    kind: Degraded.into(),
                    element: elements.split(';').next().unwrap_or_default().to_owned(),
                    reason: reason.to_owned(),
                    since: event.last_ms / 1000,
                };
                logged.insert(job.to_owned(), condition);
            }
            READY | "Created" | "Deleted" => {
                logged.remove(job);
            }
            _ => {}
        }
    }
    logged
}

/// Writes events of the jobs whose degraded elements are not those in `logged`.
fn log_changes(controller: &Controller, logged: &mut BTreeMap<String, String>) {
    let mut events = Vec::new();
    {
        let registry = controller.registry();
        logged.retain(|job, _| registry.named(job).is_ok());
        for record in registry.iter() {
            let job = &record.job.name;
            // Most jobs have none, and building a state takes long.
            if controller.has_no_condition(record) {
                if logged.remove(job).is_some() {
                    events.push((Arc::clone(&record.job), READY, String::new()));
                }
                continue;
            }
            let state = controller.state_of(&registry, record);
            let conditions = conditions(controller.fabric(), &state);
            let mut degraded = (conditions.iter()).filter(|it| it.kind() == Degraded);
            if let Some(first) = degraded.next() {
                let mut elements = vec![&first.element];
                elements.extend(degraded.map(|it| &it.element));
                elements.dedup();
                let elements = some_of(elements);
                if logged.get(job) != Some(&elements) {
                    let first_of = match elements == first.element {
                        true => String::new(),
                        false => format!("; {}", first.element),
                    };
                    let message = format!("{elements}{first_of}: {}", first.reason);
                    events.push((Arc::clone(&record.job), DEGRADED, message));
                    logged.insert(job.clone(), elements);
                }
            }
        }
    }
    for (job, reason, message) in events {
        controller.log.add_of_job(&job, reason, &message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_leader_adopts_the_conditions_in_the_log() {
        let log = EventLog::default();
        let add = |job: &str, reason: &str, message: &str| {
            log.add(format!("job/{job}"), 1, reason, message);
        };
        for job in ["lost", "back", "deleted", "whole"] {
            add(job, "Created", "");
        }
        add("back", DEGRADED, "s1: not connected: no answer");
        add("lost", DEGRADED, "s1: not connected: no answer");
        add("lost", DEGRADED, "s1, h3; s1: not connected: no answer");
        add("deleted", DEGRADED, "s1: not connected: no answer");
        add("back", READY, "");
        add("deleted", "Deleted", "");
        log.add("switch/s1".to_owned(), 0, DEGRADED, "s1: not a job");
        let logged = logged_conditions(&log);
        let [(job, condition)] = &Vec::from_iter(logged)[..] else {
            panic!("one job is degraded")
        };
        assert_eq!((&**job, &*condition.element), ("lost", "s1, h3"));
        assert_eq!(condition.reason, "not connected: no answer");
    }
}
