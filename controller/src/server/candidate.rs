//! One of several controllers that share etcd: it is a standby, leads, and becomes a standby again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::sync::watch;
use tonic::Status;
use ultima_api::v1::control_server::ControlServer;
use ultima_api::v1::{self as api, Role as ApiRole};
use ultima_planner::routing::Routes;

use super::condition::Condition;
use super::config::Config;
use super::controller::Controller;
use super::error::ServeError;
use super::event_log::EventLog;
use super::job_conditions::logged_conditions;
use super::journal::Lead;
use super::leadership_service::standing_of;
use super::lock::lock;
use super::metrics::metrics_text;
use super::registry::Registry;
use super::report::{date_drains, logged_states};
use super::service::ControlService;
use super::start::start;
use crate::metrics::RoleGauges;
use crate::store::etcd::{self, Election, Leadership, Shared};

/// Time limit for a switch to accept a new primary. After it, the other switches are used without this one.
const TAKE_OVER: Duration = Duration::from_secs(1);

/// The present role of a controller.
enum Role {
    Standby,
    Leader {
        controller: Arc<Controller>,
        service: ControlServer<ControlService>,
        leadership: Leadership,
    },
}

/// One of several controllers.
pub(super) struct Candidate {
    pub config: Config,
    election: Election,
    role: watch::Sender<Role>,
    /// Why it could not lead.
    problem: std::sync::Mutex<Option<String>>,
}

/// The committed state, without what a leader knows from its switches and members.
pub(super) struct Snapshot {
    pub registry: Registry,
    /// The drained elements, and the ports and links that are down in the stored events.
    pub condition: Condition,
    /// The conditions of jobs in the stored events, by job.
    pub conditions: BTreeMap<String, api::JobCondition>,
    pub log: EventLog,
}

/// Failed starts in sequence.
struct Failures {
    /// The pauses after them, in which another controller may succeed.
    pauses: ExponentialBackoff,
    problem: String,
}

impl Failures {
    fn none() -> Self {
        let pauses = ExponentialBuilder::new()
            .with_min_delay(Duration::from_secs(1))
            .with_max_delay(Duration::from_secs(30))
            .without_max_times();
        Failures {
            pauses: pauses.build(),
            problem: String::new(),
        }
    }

    /// Adds one. Returns the pause before the next attempt, and true if the problem is another than before.
    fn add(&mut self, problem: &str) -> (Duration, bool) {
        let is_new = self.problem != problem;
        self.problem = problem.to_owned();
        (self.pauses.next().unwrap_or_default(), is_new)
    }
}

impl Candidate {
    /// A standby.
    pub fn new(config: Config, election: Election) -> Self {
        Candidate {
            config,
            election,
            role: watch::Sender::new(Role::Standby),
            problem: std::sync::Mutex::default(),
        }
    }

    /// Alternates between standby and leader, forever.
    pub async fn work(self: Arc<Self>) {
        let mut failures = Failures::none();
        loop {
            let leadership = self.election.win().await;
            let revision = leadership.revision();
            tracing::debug!(revision, "elected; taking over");
            match self.lead(&leadership).await {
                Ok(()) => failures = Failures::none(),
                Err(error) => {
                    let problem = format!("cannot lead: {error}");
                    let (pause, is_new) = failures.add(&problem);
                    if is_new {
                        tracing::warn!("{problem}");
                    }
                    *lock(&self.problem) = Some(problem);
                    leadership.resign().await;
                    if self.election.pause(pause).await {
                        failures = Failures::none();
                        *lock(&self.problem) = None;
                    }
                }
            }
            self.step_down();
        }
    }

    /// Leads until the lead ends.
    async fn lead(&self, leadership: &Leadership) -> Result<(), ServeError> {
        let config = Config {
            startup_timeout: TAKE_OVER,
            ..self.config.clone()
        };
        let store = Arc::new(Shared::new(&self.election, leadership.clone()));
        let lead = Lead::Elected(leadership.clone());
        let starting = Box::pin(start(config, store, lead));
        let controller = tokio::select! {
            started = starting => started?,
            () = leadership.ended() => return Err(crate::store::StoreError::NotLeader.into()),
        };
        let service = ControlServer::new(ControlService::new(Arc::clone(&controller)));
        self.role.send_replace(Role::Leader {
            controller,
            service,
            leadership: leadership.clone(),
        });
        *lock(&self.problem) = None;
        let revision = leadership.revision();
        tracing::info!(revision, "leading");
        leadership.ended().await;
        tracing::warn!(revision, "the lead has ended; standing by");
        Ok(())
    }

    /// Stops leading: pending calls end, and later ones go to the next leader. Returns the ended lead.
    pub fn step_down(&self) -> Option<Leadership> {
        match self.role.send_replace(Role::Standby) {
            Role::Leader {
                controller,
                leadership,
                ..
            } => {
                controller.close();
                leadership.end();
                Some(leadership)
            }
            Role::Standby => None,
        }
    }

    /// The controller, while it leads.
    pub fn leader(&self) -> Option<Arc<Controller>> {
        match &*self.role.borrow() {
            Role::Leader { controller, .. } if controller.journal.leads() => {
                Some(Arc::clone(controller))
            }
            Role::Leader { .. } | Role::Standby => None,
        }
    }

    /// The control API, while this controller leads; otherwise the leader's address, if known.
    pub fn service(&self) -> Result<ControlServer<ControlService>, Option<String>> {
        match &*self.role.borrow() {
            Role::Leader {
                controller,
                service,
                ..
            } if controller.journal.leads() => Ok(service.clone()),
            Role::Leader { .. } => Err(None),
            Role::Standby => Err(self.election.view().leader.map(|it| it.address)),
        }
    }

    /// The committed state, for a standby: it reads it from etcd, and plans the jobs' paths around the elements that are down in the
    /// stored events.
    pub async fn snapshot(&self) -> Result<Snapshot, Status> {
        let stored = etcd::read(&self.election).await;
        let stored = stored.map_err(|error| Status::unavailable(error.to_string()))?;
        let Config {
            fabric,
            program,
            timers,
            ..
        } = &self.config;
        let log = EventLog::restored(&stored.events);
        let mut condition = Condition::new(fabric, self.config.damping, &stored.drained);
        condition.restore(fabric, logged_states(fabric, &log), Instant::now());
        date_drains(&mut condition, fabric, &log);
        let routes = Routes::new(fabric, condition.health());
        let registry =
            Registry::restore_what_fits(fabric, routes, program.names(), stored, timers.members);
        Ok(Snapshot {
            registry,
            condition,
            conditions: logged_conditions(&log),
            log,
        })
    }

    /// Its role.
    pub fn standing(&self) -> api::GetStandingResponse {
        let view = self.election.view();
        // While another controller leads, it does not matter why this one could not.
        let own = lock(&self.problem).clone();
        let own = own.filter(|_| !self.election.follows(&view));
        let problem = own.or(view.problem);
        let cannot_read = !view.is_known;
        match self.leader() {
            Some(controller) => standing_of(&controller),
            None => api::GetStandingResponse {
                role: ApiRole::Standby.into(),
                leader: view.leader.map(|it| it.address).unwrap_or_default(),
                switches: self.config.fabric.switches().len() as u32,
                problem: problem.unwrap_or_default(),
                cannot_read,
                ..Default::default()
            },
        }
    }

    /// Its metrics as OpenMetrics text.
    pub fn metrics_text(&self) -> String {
        let standing = RoleGauges::from(self.standing());
        match self.leader() {
            Some(controller) => metrics_text(&controller, Some(standing)),
            None => standing.text(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_become_rare_and_are_reported_once() {
        let mut failures = Failures::none();
        let added = ["a"; 7].map(|problem| failures.add(problem));
        assert_eq!(
            added.map(|(pause, _)| pause.as_secs()),
            [1, 2, 4, 8, 16, 30, 30]
        );
        assert_eq!(
            added.map(|(_, is_new)| is_new),
            [true, false, false, false, false, false, false]
        );
        assert!(failures.add("b").1);
    }
}
