//! The entrance to the control API of one of several controllers: the leader serves it, and a standby
//! answers what it can read from etcd.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use ultima_api::client::LEADER;
use ultima_api::v1 as api;
use ultima_api::v1::control_server::SERVICE_NAME;

use super::candidate::Candidate;
use super::controller::state_of;
use super::messages::{all_jobs, job_named};
use super::registry::record::Record;

/// Passes calls to the controller while it leads; a standby reads jobs, and answers other calls with
/// the leader's address.
#[derive(Clone)]
pub struct Gate {
    candidate: Arc<Candidate>,
}

impl Gate {
    pub fn new(candidate: Arc<Candidate>) -> Self {
        Gate { candidate }
    }
}

impl NamedService for Gate {
    const NAME: &'static str = SERVICE_NAME;
}

/// The answer of a standby to a call that only the leader serves.
fn refusal(leader: Option<&str>) -> Status {
    let mut status = Status::unavailable(match leader {
        Some(leader) => {
            format!("this controller is a standby; ask the leader at {leader}")
        }
        None => {
            "this controller is a standby and knows no leader; try again, or ask another controller"
                .into()
        }
    });
    let leader = MetadataValue::try_from(leader.unwrap_or_default());
    // An address of a controller is valid metadata.
    let leader = leader.unwrap_or_else(|_| MetadataValue::from_static(""));
    status.metadata_mut().insert(LEADER, leader);
    status
}

/// `ListJobs` of a standby.
struct ListJobs(Arc<Candidate>);

impl tonic::server::UnaryService<api::ListJobsRequest> for ListJobs {
    type Response = api::ListJobsResponse;
    type Future = BoxFuture<'static, Result<Response<api::ListJobsResponse>, Status>>;

    fn call(&mut self, _: Request<api::ListJobsRequest>) -> Self::Future {
        let candidate = Arc::clone(&self.0);
        async move {
            let registry = candidate.jobs().await?;
            // A standby does not know its switches.
            let jobs = all_jobs(candidate.fabric(), &registry, |it| state_of(&registry, it));
            Ok(Response::new(api::ListJobsResponse { jobs }))
        }
        .boxed()
    }
}

/// `GetJob` of a standby.
struct GetJob(Arc<Candidate>);

impl tonic::server::UnaryService<api::GetJobRequest> for GetJob {
    type Response = api::Job;
    type Future = BoxFuture<'static, Result<Response<api::Job>, Status>>;

    fn call(&mut self, request: Request<api::GetJobRequest>) -> Self::Future {
        let candidate = Arc::clone(&self.0);
        async move {
            let name = request.into_inner().name;
            let registry = candidate.jobs().await?;
            let state_of = |it: &Record| state_of(&registry, it);
            let job = job_named(candidate.fabric(), &registry, &name, state_of)?;
            Ok(Response::new(job))
        }
        .boxed()
    }
}

impl Service<http::Request<Body>> for Gate {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let leader = match self.candidate.service() {
            Ok(mut service) => return service.call(request),
            Err(leader) => leader,
        };
        let candidate = Arc::clone(&self.candidate);
        match request.uri().path().rsplit('/').next() {
            Some("ListJobs") => async move {
                let mut server = tonic::server::Grpc::new(ProstCodec::default());
                Ok(server.unary(ListJobs(candidate), request).await)
            }
            .boxed(),
            Some("GetJob") => async move {
                let mut server = tonic::server::Grpc::new(ProstCodec::default());
                Ok(server.unary(GetJob(candidate), request).await)
            }
            .boxed(),
            _ => ready(Ok(refusal(leader.as_deref()).into_http())).boxed(),
        }
    }
}
