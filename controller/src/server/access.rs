//! Access to the control API: the roles of callers, and the calls that each role may make.
//!
//! With TLS a caller's certificate names its role, in a URI of its subject alternative names:
//! `spiffe://ultima/operator/alice`, `spiffe://ultima/agent/h1` with the host's name in the fabric,
//! `spiffe://ultima/viewer/dashboard`, or `spiffe://ultima/controller/c2`. Without TLS every caller is trusted: only
//! loopback and Unix sockets are served then, unless the operator says otherwise. The keys of sealed jobs do not cross a
//! network without TLS in any case.

use std::sync::Arc;
use std::time::Instant;

use tonic::transport::CertificateDer;
use tonic::{Request, Status};
use ultima_api::identity::{Identity, Role};
use ultima_grpc::connections::{InProgress, Peer};
use ultima_grpc::metrics;
use ultima_planner::job::Job;
use webpki::EndEntityCert;

use super::call_rates::CallRates;
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
    ("Control/UpdateJob", &[Operator]),
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
pub const METRICS: (&str, &[Role]) = (metrics::PATH, &[Operator, Viewer]);

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

    /// The caller with these certificates, its own one first; none if that names no role.
    pub fn certified(certificates: Option<&[CertificateDer<'_>]>) -> Option<Caller> {
        let identity = identity_of(certificates?.first()?)?;
        Some(Caller::Certified(Arc::new(identity)))
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

/// The caller of an admitted request.
///
/// # Errors
/// It was not admitted, which is a defect.
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

/// Checks that a caller has the right role for a request, and does not call too often.
///
/// # Errors
/// The status for the caller.
pub fn admit(
    rates: &CallRates,
    caller: Option<Caller>,
    peer: &Peer,
    path: &str,
) -> Result<(Caller, InProgress), Status> {
    let caller = caller.ok_or_else(|| {
        Status::permission_denied(
            "the client's certificate has no role; expected one URI such as spiffe://ultima/operator/NAME, as `ultima certs issue` makes it",
        )
    })?;
    let mut is_operator = path != METRICS.0;
    if let Caller::Certified(identity) = &caller {
        rates.count(identity, Instant::now())?;
        is_operator &= !matches!(identity.role, Agent | Viewer);
    }
    let in_progress = peer.asks(is_operator).ok_or_else(|| {
        Status::unavailable(
            "no place for another agent, viewer or reader of metrics: try again later",
        )
    })?;
    caller.may_call(path)?;
    Ok((caller, in_progress))
}
