//! One of several controllers: it is a standby, leads, and becomes a standby again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tonic::Status;
use ultima_api::v1::control_server::ControlServer;
use ultima_grpc::tls::{ClientTls, ServerTls};

use super::lookout::Lookout;
use super::peer::{self, Peer, Standing};
use super::replication::standing_of_member;
use super::{Group, Shape};
use crate::metrics::GroupStanding;
use crate::p4rt::Term;
use crate::server::Config;
use crate::server::controller::Controller;
use crate::server::error::ServeError;
use crate::server::journal::Lead;
use crate::server::service::ControlService;
use crate::store::Store;

/// How long a switch may take to accept a new primary before that begins without it.
const TAKE_OVER: Duration = Duration::from_secs(1);
/// How often a leader asks the others whether one of them leads: its switches may be unreachable
/// while the others are not.
const LOOK: Duration = Duration::from_millis(500);

/// The present role of a controller.
pub enum Role {
    /// It is a standby.
    Standby {
        /// The address of the leader that it follows.
        leader: Option<String>,
    },
    /// It leads.
    Leader {
        controller: Arc<Controller>,
        service: ControlServer<ControlService>,
    },
}

/// One of several controllers.
pub struct Member {
    config: Config,
    pub(super) group: Group,
    /// The parameters in which all of them must agree.
    pub(super) shape: Shape,
    pub(super) store: Arc<Store>,
    pub(super) peers: Vec<Peer>,
    /// True if the next claim may lose committed changes.
    pub(super) lead_anyway: AtomicBool,
    /// Notified when it has accepted another controller's term.
    pub(super) granted: watch::Sender<()>,
    role: watch::Sender<Role>,
    /// Observes the switches while it is a standby.
    lookout: Mutex<Option<Arc<Lookout>>>,
    /// Why it does not lead although it should, or why another controller does not follow although
    /// it should.
    problem: Mutex<Option<String>>,
}

/// A task that ends when this is dropped.
struct Task(JoinHandle<()>);

impl Task {
    /// Ends it; it has stopped when this returns.
    async fn end(mut self) {
        self.0.abort();
        // The result is either the cancellation or a panic that was logged.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Member {
    pub fn new(config: Config, group: Group, store: Arc<Store>) -> Result<Self, ServeError> {
        // The authorities of clients are those of the other controllers, too.
        let tls = match &config.tls {
            Some(ServerTls {
                identity,
                client_ca: Some(ca),
            }) => Some(ClientTls::load(ca, Some(identity))?),
            _ => None,
        };
        let peer = |address: &String| {
            Peer::new(address.clone(), tls.as_ref()).map_err(|_| ServeError::Peer {
                address: address.clone(),
            })
        };
        let peers = group.peers.iter().map(peer).collect::<Result<_, _>>()?;
        let role = Role::Standby { leader: None };
        Ok(Member {
            shape: group.shape(&config),
            config,
            lead_anyway: AtomicBool::new(group.lead_anyway),
            granted: watch::Sender::default(),
            group,
            store,
            peers,
            role: watch::Sender::new(role),
            lookout: Mutex::default(),
            problem: Mutex::default(),
        })
    }

    /// Alternates between standby and leader, forever.
    pub async fn work(self: Arc<Self>) {
        loop {
            let term = self.stand_by().await;
            tracing::info!(%term, "taking over");
            if let Err(error) = self.lead(term).await {
                self.set_problem(Some(format!("cannot lead: {error}")));
                self.step_down();
                // Another controller may be able to lead.
                sleep(self.group.grace * 2).await;
            }
        }
    }

    /// Follows the leader until the switches need another one and enough controllers agree to this
    /// one.
    async fn stand_by(self: &Arc<Self>) -> Term {
        let lookout = Arc::new(Lookout::start(&self.config.fabric));
        *self.lookout() = Some(Arc::clone(&lookout));
        let grace = self.group.grace;
        loop {
            let follower = Arc::clone(self);
            let following = Task(tokio::spawn(
                async move { follower.follow_the_leader().await },
            ));
            match self.lead_anyway.load(Ordering::Acquire) {
                // The switches may not notice that their primary is gone.
                true => lookout.wait_for_most().await,
                false => lookout.wait_for_vacancy(grace).await,
            }
            // The controller with the latest store goes first, and among equals the one with the
            // greatest number.
            let Ok(ours) = self.store.history() else {
                sleep(grace).await;
                continue;
            };
            let ours = (ours, self.store.controller());
            let others = peer::standings(&self.peers).await;
            let first = (others.iter().flatten())
                .filter(|other| (other.history, other.controller) > ours)
                .count() as u32;
            if first > 0 && !self.lead_anyway.load(Ordering::Acquire) {
                sleep(grace * first).await;
                if !lookout.is_vacant() {
                    continue;
                }
            }
            following.end().await;
            self.know_leader(None);
            match self.claim(&lookout).await {
                Ok(term) => {
                    *self.lookout() = None;
                    self.lead_anyway.store(false, Ordering::Release);
                    return term;
                }
                Err(error) => {
                    self.set_problem(Some(format!("does not lead: {error}")));
                    sleep(grace.mul_f64(rand::random::<f64>())).await;
                }
            }
        }
    }

    /// Time for clients to read pending answers when the controller stops.
    pub fn stop_timeout(&self) -> Duration {
        self.config.timers.stop
    }

    /// Leads until a later term is known.
    async fn lead(&self, term: Term) -> Result<(), ServeError> {
        let lead = Lead {
            term,
            group: self.shape,
            ack_timeout: self.group.ack_timeout,
            by_majority: true,
            outranked: watch::Sender::new(None),
        };
        let mut outranked = lead.outranked.subscribe();
        let config = Config {
            patience: TAKE_OVER,
            ..self.config.clone()
        };
        let store = Arc::clone(&self.store);
        let controller = Controller::start(config, store, lead).await?;
        let service = ControlServer::new(ControlService::new(Arc::clone(&controller)));
        self.role.send_replace(Role::Leader {
            controller: Arc::clone(&controller),
            service,
        });
        self.set_problem(None);
        tracing::info!(%term, "leading");
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let later = loop {
            let later = async {
                let later = outranked.wait_for(Option::is_some).await;
                later.ok().and_then(|later| *later).unwrap_or_default()
            };
            tokio::select! {
                later = later => break later,
                _ = ticks.tick() => {
                    let others = peer::standings(&self.peers).await;
                    let leaders = others.iter().flatten().filter(|other| other.is_leader);
                    if let Some(later) = leaders.map(|other| other.term).max() {
                        controller.journal.outrank(later);
                    }
                    self.set_problem(self.mismatch(&others));
                },
            }
        };
        tracing::warn!(%term, %later, "another controller has claimed a later term");
        self.step_down();
        // Otherwise its next claim may be of an earlier term, which the others would refuse.
        if let Err(error) = self.in_store(move |store| store.accept(later)).await {
            tracing::warn!(%error, "cannot store the later term");
        }
        Ok(())
    }

    /// The first other controller that is not of this group, and why.
    fn mismatch(&self, others: &[Result<Standing, Status>]) -> Option<String> {
        let mut all = self.peers.iter().zip(others);
        all.find_map(|(peer, other)| {
            let refusal = self.shape.refusal_of(other.as_ref().ok()?.shape)?;
            Some(format!(
                "the controller at {} cannot follow: {refusal}",
                peer.address
            ))
        })
    }

    /// Stops leading: pending calls end, and later ones go to the leader.
    pub fn step_down(&self) {
        let role = self.role.send_replace(Role::Standby { leader: None });
        if let Role::Leader { controller, .. } = role {
            controller.close();
        }
    }

    /// The controller, while it leads.
    pub fn leader(&self) -> Option<Arc<Controller>> {
        match &*self.role.borrow() {
            Role::Leader { controller, .. } => Some(Arc::clone(controller)),
            Role::Standby { .. } => None,
        }
    }

    /// The control API, while this controller leads at most switches; otherwise the leader's
    /// address, if known.
    pub fn service(&self) -> Result<ControlServer<ControlService>, Option<String>> {
        match &*self.role.borrow() {
            Role::Leader {
                controller,
                service,
            } => match controller.journal.leads() {
                true => Ok(service.clone()),
                false => Err(None),
            },
            Role::Standby { leader } => Err(leader.clone()),
        }
    }

    /// Records the leader's address.
    pub(super) fn know_leader(&self, address: Option<String>) {
        if address.is_some() {
            self.set_problem(None);
        }
        self.role.send_if_modified(|role| match role {
            Role::Standby { leader } => {
                *leader = address;
                true
            }
            Role::Leader { .. } => false,
        });
    }

    /// The number of switches that report no primary, while this controller is a standby.
    pub(super) fn vacant(&self) -> usize {
        self.lookout()
            .as_ref()
            .map_or(0, |lookout| lookout.vacant())
    }

    /// The number of switches in the fabric.
    pub(super) fn switches(&self) -> usize {
        self.config.fabric.switches().len()
    }

    /// The metrics as OpenMetrics text.
    pub(super) fn metrics_text(&self) -> String {
        // If the store cannot be read there is no standing; the log has the error.
        let standing = standing_of_member(self).ok().map(GroupStanding::from);
        match (self.leader(), standing) {
            (Some(controller), standing) => controller.metrics_text_of(standing),
            (None, Some(standing)) => standing.text(),
            (None, None) => "# EOF\n".to_owned(),
        }
    }

    /// Why it does not lead although it should, or why another controller does not follow although
    /// it should.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = self.problem.lock();
        problem.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records a problem and logs it if it is new.
    fn set_problem(&self, problem: Option<String>) {
        if let Some(new) = &problem
            && self.problem().as_ref() != Some(new)
        {
            tracing::warn!("{new}");
        }
        self.know_problem(problem);
    }

    /// Records a problem for later requests.
    pub(super) fn know_problem(&self, problem: Option<String>) {
        let mut known = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        *known = problem;
    }

    fn lookout(&self) -> std::sync::MutexGuard<'_, Option<Arc<Lookout>>> {
        // No thread panics while it holds the lock.
        self.lookout.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
