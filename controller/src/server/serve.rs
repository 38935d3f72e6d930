//! Serving the control API: as a single controller, or as one of several that share etcd.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::future::{OptionFuture, join};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::service::Routes;
use ultima_api::address::Listen;
use ultima_api::v1::GetStandingResponse;
use ultima_api::v1::leadership_server::LeadershipServer;
use ultima_grpc::connections::{Connections, Limits};
use ultima_grpc::metrics::{self, Metrics};
use ultima_grpc::server::Certificates;

use super::access::METRICS;
use super::call_rates::CallRates;
use super::candidate::Candidate;
use super::config::Config;
use super::controller::Controller;
use super::entrance::Entrance;
use super::error::ServeError;
use super::gate::Gate;
use super::http_server::{Api, PROTOCOL};
use super::journal::Lead;
use super::leadership_service::LeadershipService;
use super::listen::{self, Listener};
use super::report::store_last_events;
use super::start::start;
use crate::store::etcd::{self, Election, Leader};
use crate::store::{Embedded, Store, StoreError};

/// A controller that no other shares its store with. Dropping it ends everything except the switches' forwarding.
pub struct Handle {
    controller: Arc<Controller>,
    server: Server,
}

/// A controller that shares etcd with others. Dropping it ends everything except the switches' forwarding.
pub struct CandidateHandle {
    candidate: Arc<Candidate>,
    server: Server,
    work: JoinHandle<()>,
}

/// Brings up every switch of the fabric (program, routes), then serves the control API.
///
/// # Errors
/// The fabric exceeds a limit, a switch does not answer or refuses, or the address is taken.
/// Nothing keeps running then.
pub async fn serve(config: Config) -> Result<Handle, ServeError> {
    serve_on(config, None).await
}

/// The same, with a store that only this controller uses; none for the one in `config`.
///
/// # Errors
/// As for [`serve`].
pub async fn serve_on(
    mut config: Config,
    store: Option<Arc<dyn Store>>,
) -> Result<Handle, ServeError> {
    let bound = Bound::new(&config).await?;
    let store = match store {
        Some(store) => store,
        None => Arc::new(match &config.state {
            Some(path) => Embedded::open(path)?,
            None => {
                // Jobs in memory end with their controller, and nothing else could remove them.
                config.take_over = true;
                Embedded::in_memory()?
            }
        }),
    };
    let entrance = Entrance::default();
    let (standing, metrics) = (entrance.clone(), entrance.clone());
    let routes = Routes::new(entrance.clone());
    let metrics = move || metrics.metrics_text();
    let server = bound.serve(routes, move || standing.standing(), metrics);
    // Boxed, because it is large and callers keep it on their stacks.
    let controller = Box::pin(start(config, store, Lead::Alone)).await?;
    entrance.open(&controller);
    Ok(Handle { controller, server })
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
    let bound = Bound::new(&config).await?;
    if store.secret.is_none() {
        tracing::warn!(
            "the keys of sealed jobs are stored in etcd in plain text; pass --etcd-secret"
        );
    }
    let itself = Leader {
        address: advertise.unwrap_or_else(|| bound.listener.address.to_string()),
        fabric: config.fabric.digest(),
        program: config.program.cookie(),
    };
    let election = Election::new(store, itself).map_err(StoreError::from)?;
    let candidate = Arc::new(Candidate::new(config, election));
    let gate = Gate::new(Arc::clone(&candidate));
    let routes = Routes::new(gate);
    let stands = Arc::clone(&candidate);
    let metered = Arc::clone(&candidate);
    let metrics = move || metered.metrics_text();
    let server = bound.serve(routes, move || stands.standing(), metrics);
    let work = tokio::spawn({
        let candidate = Arc::clone(&candidate);
        async move { candidate.work().await }
    });
    Ok(CandidateHandle {
        candidate,
        server,
        work,
    })
}

/// Checks that strangers cannot reach the control API, unless the operator allows it.
fn check_listen(config: &Config) -> Result<(), ServeError> {
    let listen = || config.listen.clone();
    match (&config.listen, &config.tls) {
        (Listen::Unix(_), Some(_)) => Err(ServeError::TlsOnUnix { listen: listen() }),
        (Listen::Tcp(address), None)
            if !config.insecure && !address.ip().to_canonical().is_loopback() =>
        {
            Err(ServeError::Open { listen: listen() })
        }
        _ => Ok(()),
    }
}

/// The sockets and the certificates of a server that does not run yet.
struct Bound {
    listener: Listener,
    /// A socket for metrics alone, without TLS.
    metrics: Option<Listener>,
    certificates: Certificates,
    rates: CallRates,
    idle: Duration,
}

impl Bound {
    async fn new(config: &Config) -> Result<Self, ServeError> {
        check_listen(config)?;
        let certificates = Certificates::load(config.tls.clone())?;
        let listener = listen::bind(&config.listen, "--listen").await?;
        let metrics = match config.metrics {
            Some(address) => Some(listen::bind(&address.into(), "--metrics").await?),
            None => None,
        };
        Ok(Bound {
            listener,
            metrics,
            certificates,
            rates: CallRates::new(config.rate_limit),
            idle: config.timers.connection,
        })
    }

    /// Serves these routes, the controller's standing, and its metrics.
    fn serve(
        self,
        routes: Routes,
        standing: impl Fn() -> GetStandingResponse + Send + Sync + 'static,
        text: impl Fn() -> String + Clone + Send + Sync + 'static,
    ) -> Server {
        let Bound {
            listener,
            metrics: metrics_listener,
            certificates,
            rates,
            idle,
        } = self;
        let leadership = LeadershipServer::new(LeadershipService::new(standing));
        let metrics = Metrics::new(text);
        let read = metrics.clone();
        let read = get(async move || read.get().await.map(Body::new));
        let routes = routes.add_service(leadership).into_axum_router();
        let router = routes.merge(Router::new().route(METRICS.0, read));
        let (stop, stopped) = watch::channel(());
        let address = listener.address.clone();
        let metrics_address = metrics_listener.as_ref().map(|it| it.address.clone());
        let metrics = metrics_listener.map(|listener| {
            // They take no places of the API.
            let (none, connections) = (Certificates::default(), metrics::connections());
            listener.serve(
                none,
                metrics::PROTOCOL,
                metrics,
                connections,
                stopped.clone(),
            )
        });
        let connections = Connections::new(Limits::of_process(), idle);
        let api = Api { router, rates };
        let serve = listener.serve(certificates, PROTOCOL, api, connections, stopped);
        let task = tokio::spawn(async {
            join(serve, OptionFuture::from(metrics)).await;
        });
        Server {
            address,
            metrics_address,
            stop: Some(stop),
            task,
        }
    }
}

/// A running server. Dropping it ends all calls.
struct Server {
    address: Listen,
    metrics_address: Option<Listen>,
    stop: Option<watch::Sender<()>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Stops accepting, and waits until clients have read all pending answers, at most this long.
    async fn stop(&mut self, limit: Duration) {
        drop(self.stop.take());
        // The task may have ended before.
        if !self.task.is_finished() && timeout(limit, &mut self.task).await.is_err() {
            tracing::warn!(timeout = ?limit, "stopped although clients have not read their answers");
            self.task.abort();
            // Another controller may take the socket then. The error says that the task was aborted.
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Handle {
    /// The address of the control API.
    pub fn address(&self) -> &Listen {
        &self.server.address
    }

    /// The address of metrics without TLS, if the configuration has one.
    pub fn metrics_address(&self) -> Option<&Listen> {
        self.server.metrics_address.as_ref()
    }

    /// The controller, for calls without gRPC.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Stops serving and ends pending calls. The switches keep their entries.
    pub async fn stop(mut self) {
        store_last_events(&self.controller).await;
        self.controller.close();
        self.server.stop(self.controller.timers.stop).await;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.controller.close();
    }
}

impl CandidateHandle {
    /// The address of the control API.
    pub fn address(&self) -> &Listen {
        &self.server.address
    }

    /// Returns the reason when the controller has ended without being stopped, which is a defect.
    pub async fn ended(&mut self) -> String {
        let ended = tokio::select! {
            work = &mut self.work => work,
            server = &mut self.server.task => server,
        };
        let panicked = ended.err().map(|error| error.to_string());
        panicked.unwrap_or_else(|| "the listener has ended".into())
    }

    /// The address of metrics without TLS, if the configuration has one.
    pub fn metrics_address(&self) -> Option<&Listen> {
        self.server.metrics_address.as_ref()
    }

    /// The controller, while it leads.
    pub fn leader(&self) -> Option<Arc<Controller>> {
        self.candidate.leader()
    }

    /// Stops serving, ends pending calls and the lease. The switches keep their entries.
    pub async fn stop(mut self) {
        if let Some(controller) = self.candidate.leader() {
            store_last_events(&controller).await;
        }
        self.work.abort();
        if let Some(leadership) = self.candidate.step_down() {
            leadership.resign().await;
        }
        let timeout = self.candidate.config.timers.stop;
        self.server.stop(timeout).await;
    }
}

impl Drop for CandidateHandle {
    fn drop(&mut self) {
        self.work.abort();
        self.candidate.step_down();
    }
}
