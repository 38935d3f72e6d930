//! Access to the control API: the roles of callers, and the calls that each role may make.
//!
//! With TLS a caller's certificate names its role, in a URI of its subject alternative names:
//! `spiffe://ultima/operator/alice`, `spiffe://ultima/agent/h1` with the host's name in the fabric,
//! `spiffe://ultima/viewer/dashboard`, or `spiffe://ultima/controller/c2`. Without TLS every caller is trusted: only
//! loopback and Unix sockets are served then, unless the operator says otherwise. The keys of sealed jobs do not cross a
//! network without TLS in any case.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::future::{BoxFuture, ready};
use futures_util::{FutureExt as _, TryFutureExt as _};
use http_body_util::BodyExt as _;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::transport::CertificateDer;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Request, Status};
use ultima_api::identity::{Identity, Role};
use ultima_planner::job::Job;
use webpki::EndEntityCert;

use super::call_rates::CallRates;
use super::connections::{InProgress, Peer};
use super::error::JobRequestError;

use Role::{Agent, Controller, Operator, Viewer};

/// The calls of the control API with the roles that may make them. Streams are checked when they open.
const CALLS: &[(&str, &[Role])] = &[
    ("Control/CreateJob", &[Operator]),
    ("Control/CreateJobs", &[Operator]),
    ("Control/ListJobs", &[Operator, Agent, Viewer]),
    ("Control/GetJob", &[Operator, Agent, Viewer]),
    ("Control/DeleteJob", &[Operator]),
    // An agent joins from its own host, leaves and attends as a member that it joined as, and checks jobs with a member on
    // its host.
    ("Control/Join", &[Operator, Agent]),
    ("Control/Leave", &[Operator, Agent]),
    ("Control/Attend", &[Operator, Agent]),
    ("Control/CheckJob", &[Operator, Agent]),
    ("Control/GetCounters", &[Operator, Viewer]),
    ("Control/GetTelemetry", &[Operator, Viewer]),
    ("Control/WatchTelemetry", &[Operator, Viewer]),
    ("Control/ListSwitches", &[Operator, Viewer]),
    ("Control/GetFabric", &[Operator, Viewer]),
    ("Control/DiffFabric", &[Operator, Viewer]),
    ("Control/SyncFabric", &[Operator]),
    ("Control/PlanJobs", &[Operator, Viewer]),
    ("Control/PlanFabric", &[Operator, Viewer]),
    ("Control/SetAdminState", &[Operator]),
    ("Control/ConfigurePorts", &[Operator]),
    ("Control/ResizeJob", &[Operator]),
    ("Control/EvictMember", &[Operator]),
    ("Control/CancelChange", &[Operator]),
    ("Control/WatchJob", &[Operator, Viewer]),
    ("Control/ListEvents", &[Operator, Viewer]),
    // Every client asks for the leader.
    (
        "Leadership/GetStanding",
        &[Operator, Agent, Viewer, Controller],
    ),
];

/// The path of metrics, and the roles that may read them.
pub const METRICS: (&str, &[Role]) = ("/metrics", &[Operator, Viewer]);

const PACKAGE: &str = "/ultima.control.v1.";

/// The roles that may make a call, by its path; none if there is no such call.
pub fn roles(path: &str) -> Option<&'static [Role]> {
    if path == METRICS.0 {
        return Some(METRICS.1);
    }
    let call = path.strip_prefix(PACKAGE)?;
    let entry = CALLS.iter().find(|(of, _)| *of == call)?;
    Some(entry.1)
}

/// A caller of the control API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A caller without a certificate, on a server without TLS: it may do everything on this machine.
    Trusted {
        /// True if its connection crosses a network.
        is_remote: bool,
    },
    /// The identity in the caller's certificate.
    Certified(Arc<Identity>),
}

impl Caller {
    /// The only host that the caller may act for; none if it may act for all.
    pub fn host(&self) -> Option<&str> {
        match self {
            Caller::Certified(identity) if identity.role == Agent => Some(&identity.name),
            Caller::Certified(_) | Caller::Trusted { .. } => None,
        }
    }

    /// Its role and name; empty without a certificate.
    pub fn name(&self) -> String {
        match self {
            Caller::Certified(identity) => identity.to_string(),
            Caller::Trusted { .. } => String::new(),
        }
    }

    /// Checks that the caller may act for a host.
    ///
    /// # Errors
    /// It is the agent of another host.
    pub fn acts_for(&self, host: &str) -> Result<(), Status> {
        match self.host() {
            Some(own) if own != host => Err(Status::permission_denied(format!(
                "the certificate is that of the agent on host {own}, which cannot act for host {host}"
            ))),
            _ => Ok(()),
        }
    }

    /// Checks that a job's key may be sent to the caller.
    ///
    /// # Errors
    /// The key would cross a network in plain text.
    pub fn may_get_key(&self, job: &Job) -> Result<(), JobRequestError> {
        match self {
            Caller::Trusted { is_remote: true } if job.key.is_some() => {
                Err(JobRequestError::KeyInPlainText {
                    name: job.name.clone(),
                })
            }
            Caller::Trusted { .. } | Caller::Certified(_) => Ok(()),
        }
    }

    fn of(extensions: &http::Extensions) -> Result<Caller, Status> {
        let Some(info) = extensions.get::<TlsConnectInfo<Peer>>() else {
            let is_remote = extensions.get().is_some_and(Peer::is_remote);
            return Ok(Caller::Trusted { is_remote });
        };
        let certificates = info.peer_certs();
        let certificate = certificates.as_ref().and_then(|all| all.first());
        let identity = certificate.and_then(identity_of);
        let identity = identity.ok_or_else(|| {
            Status::permission_denied(
                "the client's certificate has no role; expected one URI such as spiffe://ultima/operator/NAME, as `ultima certs issue` makes it",
            )
        })?;
        Ok(Caller::Certified(Arc::new(identity)))
    }

    /// Checks that the caller may make a call.
    fn may_call(&self, path: &str) -> Result<(), Status> {
        let Caller::Certified(identity) = self else {
            return Ok(());
        };
        match roles(path) {
            Some(roles) if roles.contains(&identity.role) => Ok(()),
            Some(roles) => {
                let call = path.rsplit('/').next().unwrap_or_default();
                let roles: Vec<String> = roles.iter().map(Role::to_string).collect();
                Err(Status::permission_denied(format!(
                    "{identity} may not call {call}; use a certificate with the role {}",
                    roles.join(" or ")
                )))
            }
            None => Err(Status::unimplemented("")),
        }
    }
}

/// The caller of a request that passed a [`Guard`].
///
/// # Errors
/// It has not passed one, which is a defect.
pub fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    let caller = request.extensions().get::<Caller>();
    caller
        .cloned()
        .ok_or_else(|| Status::internal("the caller is not known"))
}

/// The identity in a certificate; none unless exactly one of its URIs is one.
fn identity_of(certificate: &CertificateDer<'_>) -> Option<Identity> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut identities = certificate.valid_uri_names().filter_map(Identity::of_uri);
    let identity = identities.next()?;
    identities.next().is_none().then_some(identity)
}

/// Checks that a caller has the right role for its request, and does not call too often.
///
/// # Errors
/// The status for the caller.
pub fn admit<B>(
    rates: &CallRates,
    request: &http::Request<B>,
) -> Result<(Caller, InProgress), Status> {
    let extensions = request.extensions();
    let caller = Caller::of(extensions)?;
    let is_operator =
        !matches!(&caller, Caller::Certified(it) if matches!(it.role, Agent | Viewer));
    if let Caller::Certified(identity) = &caller {
        rates.count(identity, Instant::now())?;
    }
    let tls = extensions.get::<TlsConnectInfo<Peer>>();
    let peer = tls.map(TlsConnectInfo::get_ref).or(extensions.get());
    let place = peer.and_then(|peer: &Peer| peer.asks(is_operator));
    let in_progress = place.ok_or_else(|| {
        Status::unavailable("no place for another agent or viewer: try again later")
    })?;
    caller.may_call(request.uri().path())?;
    Ok((caller, in_progress))
}

/// A service that only callers with the right role reach, and not too often. Requests carry their [`Caller`].
#[derive(Clone)]
pub struct Guard<S> {
    service: S,
    rates: CallRates,
}

impl<S> Guard<S> {
    /// Guards a service. The calls of all services with these rates count together.
    pub fn new(service: S, rates: &CallRates) -> Self {
        let rates = rates.clone();
        Guard { service, rates }
    }
}

impl<S: NamedService> NamedService for Guard<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Guard<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        match admit(&self.rates, &request) {
            Ok((caller, in_progress)) => {
                request.extensions_mut().insert(caller);
                let answer = self.service.call(request);
                // Until the answer's last frame is on its way.
                let hold = |body: Body| {
                    Body::new(body.map_frame(move |frame| {
                        let _ = &in_progress;
                        frame
                    }))
                };
                answer.map_ok(|answer| answer.map(hold)).boxed()
            }
            Err(refused) => ready(Ok(refused.into_http())).boxed(),
        }
    }
}
