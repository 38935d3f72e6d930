//! One of several controllers that share etcd: it is a standby, leads, and becomes a standby again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tonic::Status;
use ultima_api::address::Listen;
use ultima_api::v1::control_server::ControlServer;
use ultima_api::v1::leadership_server::LeadershipServer;
use ultima_api::v1::{self as api, Role as ApiRole};
use ultima_planner::fabric::Fabric;
use ultima_planner::routing::Routes;

use super::access::Guard;
use super::call_rates::CallRates;
use super::condition::Condition;
use super::controller::Controller;
use super::error::ServeError;
use super::gate::Gate;
use super::journal::Lead;
use super::leadership_service::{LeadershipService, Who, standing_of};
use super::listen::{self, Secured};
use super::registry::Registry;
use super::service::ControlService;
use super::{Config, check_listen, drained, lock};
use crate::metrics::RoleStanding;
use crate::store::etcd::{self, Election, Leader, Leadership, Shared};

/// How long a switch may take to accept a new primary before the others are used without it.
const TAKE_OVER: Duration = Duration::from_secs(1);
/// The pause after the first failed start, in which another controller may succeed. It doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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
    config: Config,
    election: Election,
    role: watch::Sender<Role>,
    /// Why it could not lead.
    problem: std::sync::Mutex<Option<String>>,
}

/// Failed starts in sequence.
#[derive(Default)]
struct Failures {
    pause: Duration,
    problem: String,
}

impl Failures {
    /// Adds one. Returns the pause before the next attempt, and true if the problem is another than before.
    fn add(&mut self, problem: &str) -> (Duration, bool) {
        self.pause = (2 * self.pause).clamp(PAUSE, LONGEST_PAUSE);
        let is_new = self.problem != problem;
        self.problem = problem.to_owned();
        (self.pause, is_new)
    }
}

/// A controller that shares etcd with others. Dropping it ends everything except the switches'
/// forwarding.
pub struct CandidateHandle {
    address: Listen,
    candidate: Arc<Candidate>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    work: JoinHandle<()>,
}

/// Serves the control API as one of the controllers that share etcd: as a standby, and as the leader
/// while etcd has elected it. Clients reach it at `advertise`, or where it listens.
///
/// # Errors
/// The address is taken, or an address of etcd is malformed.
pub async fn serve_with_etcd(
    config: Config,
    store: etcd::Config,
    advertise: Option<String>,
) -> Result<CandidateHandle, ServeError> {
    check_listen(&config)?;
    let server = Secured::new(config.tls.clone())?;
    let listener = listen::bind(&config.listen).await?;
    let address = listener.address.clone();
    let itself = Leader {
        address: advertise.unwrap_or_else(|| address.to_string()),
        fabric: config.fabric.digest(),
        program: config.program.cookie(),
    };
    let election = Election::new(store, itself).map_err(crate::store::StoreError::from)?;
    let candidate = Arc::new(Candidate {
        config,
        election,
        role: watch::Sender::new(Role::Standby),
        problem: std::sync::Mutex::default(),
    });
    let leadership = LeadershipService::new(Who::Candidate(Arc::clone(&candidate)));
    let (gate, rates) = (Gate::new(Arc::clone(&candidate)), CallRates::default());
    let leadership = LeadershipServer::new(leadership);
    let routes = tonic::service::Routes::new(Guard::new(gate, &rates))
        .add_service(Guard::new(leadership, &rates));
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(listener.serve((server, routes), async {
        // An error means that the handle was dropped, which also stops the server.
        let _ = stopped.await;
    }));
    let work = tokio::spawn({
        let candidate = Arc::clone(&candidate);
        async move { candidate.work().await }
    });
    Ok(CandidateHandle {
        address,
        candidate,
        stop: Some(stop),
        server,
        work,
    })
}

impl CandidateHandle {
    /// The address of the control API.
    pub fn address(&self) -> &Listen {
        &self.address
    }

    /// Returns the reason when the controller has ended without being stopped, which is a defect.
    pub async fn ended(&mut self) -> String {
        let ended = tokio::select! {
            work = &mut self.work => work,
            server = &mut self.server => server,
        };
        let panicked = ended.err().map(|error| error.to_string());
        panicked.unwrap_or_else(|| "the listener has ended".into())
    }

    /// Returns a function for the present metrics as OpenMetrics text: the controller's role, and
    /// while it leads everything that a single controller reports.
    pub fn metrics(&self) -> impl Fn() -> String + Send + Sync + use<> {
        let candidate = Arc::clone(&self.candidate);
        move || candidate.metrics_text()
    }

    /// The controller, while it leads.
    pub fn leader(&self) -> Option<Arc<Controller>> {
        self.candidate.leader()
    }

    /// Stops serving, ends pending calls and the lease. The switches keep their entries.
    pub async fn stop(mut self) {
        self.work.abort();
        if let Some(leadership) = self.candidate.step_down() {
            leadership.resign().await;
        }
        drop(self.stop.take());
        if !self.server.is_finished() {
            drained(&mut self.server, self.candidate.config.timers.stop).await;
        }
    }
}

impl Drop for CandidateHandle {
    fn drop(&mut self) {
        self.work.abort();
        self.candidate.step_down();
        self.server.abort();
    }
}

impl Candidate {
    /// Alternates between standby and leader, forever.
    async fn work(self: Arc<Self>) {
        let mut failures = Failures::default();
        loop {
            let leadership = self.election.win().await;
            let revision = leadership.revision();
            tracing::debug!(revision, "elected; taking over");
            match self.lead(&leadership).await {
                Ok(()) => failures = Failures::default(),
                Err(error) => {
                    let problem = format!("cannot lead: {error}");
                    let (pause, is_new) = failures.add(&problem);
                    if is_new {
                        tracing::warn!("{problem}");
                    }
                    *lock(&self.problem) = Some(problem);
                    leadership.resign().await;
                    if self.election.pause(pause).await {
                        failures = Failures::default();
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
            patience: TAKE_OVER,
            ..self.config.clone()
        };
        let store = Arc::new(Shared::new(&self.election, leadership.clone()));
        let lead = Lead::Elected(leadership.clone());
        let starting = Box::pin(Controller::start(config, store, lead));
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
    fn step_down(&self) -> Option<Leadership> {
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

    /// The committed jobs, for a standby: it reads them from etcd, and plans their paths as if no
    /// element were down.
    pub async fn jobs(&self) -> Result<Registry, Status> {
        let stored = etcd::read(&self.election).await;
        let stored = stored.map_err(|error| Status::unavailable(error.to_string()))?;
        let Config {
            fabric,
            program,
            timers,
            ..
        } = &self.config;
        let condition = Condition::new(fabric, self.config.terms, &stored.drained);
        let routes = Routes::new(fabric, condition.health());
        Ok(Registry::restore_what_fits(
            fabric,
            routes,
            program.names(),
            stored,
            timers.members,
        ))
    }

    /// The fabric.
    pub fn fabric(&self) -> &Fabric {
        &self.config.fabric
    }

    /// Its role.
    pub fn standing(&self) -> api::GetStandingResponse {
        let view = self.election.view();
        // While another controller leads, it does not matter why this one could not.
        let own = lock(&self.problem).clone();
        let own = own.filter(|_| !self.election.follows(&view));
        let problem = own.or(view.problem);
        match self.leader() {
            Some(controller) => standing_of(&controller),
            None => api::GetStandingResponse {
                role: ApiRole::Standby.into(),
                leader: view.leader.map(|it| it.address).unwrap_or_default(),
                switches: self.config.fabric.switches().len() as u32,
                problem: problem.unwrap_or_default(),
                ..Default::default()
            },
        }
    }

    fn metrics_text(&self) -> String {
        let standing = RoleStanding::from(self.standing());
        match self.leader() {
            Some(controller) => controller.metrics_text_of(Some(standing)),
            None => standing.text(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_starts_become_rare_and_are_reported_once() {
        let mut failures = Failures::default();
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
