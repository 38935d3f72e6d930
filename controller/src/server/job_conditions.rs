//! Events of jobs that become degraded, and that are ready again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
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

/// The elements of each job that is degraded in the event log, by the job's name.
type Logged = BTreeMap<String, String>;

/// Logs an event when the degraded elements of a job change, and when it has no condition any more, until the controller
/// stops.
pub async fn log_conditions(controller: Arc<Controller>) {
    let mut changed = controller.switches_changed.subscribe();
    let mut logged = logged_conditions(&controller.log);
    loop {
        log_changes(&controller, &mut logged);
        sleep(PAUSE).await;
        // The sender is a field of the controller, so it is there.
        let _ = changed.changed().await;
    }
}

/// The conditions in the event log of an earlier leader.
fn logged_conditions(log: &EventLog) -> Logged {
    let mut logged = Logged::new();
    for event in log.of("") {
        let Some(job) = event.object.strip_prefix("job/") else {
            continue;
        };
        match &*event.reason {
            DEGRADED => {
                let elements = event.message.split([':', ';']).next().unwrap_or_default();
                logged.insert(job.to_owned(), elements.to_owned());
            }
            READY | "Created" | "Deleted" => {
                logged.remove(job);
            }
            _ => {}
        }
    }
    logged
}

fn log_changes(controller: &Controller, logged: &mut Logged) {
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
        let expected = Logged::from([("lost".to_owned(), "s1, h3".to_owned())]);
        assert_eq!(logged_conditions(&log), expected);
    }
}
