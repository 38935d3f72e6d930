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
use ultima_planner::fabric::Fabric;

use super::candidate::{Candidate, Snapshot};
use super::controller::{JobState, SwitchState, state_of};
use super::messages::{all_jobs, fabric_of, job_named, switch_of};
use super::registry::record::Record;
use super::report::logged_problem;

/// Passes calls to the controller while it leads. A standby answers some reads, and refuses other calls with the leader's
/// address.
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
    match leader {
        Some(leader) => unavailable(
            format!("this controller is a standby; ask the leader at {leader}"),
            leader,
        ),
        None => unavailable(
            "this controller is a standby and knows no leader; try again, or ask another controller",
            "",
        ),
    }
}

/// The answer of a controller that does not lead. Its client asks the `leader` at this address, or, if that is empty, looks for one.
pub fn unavailable(message: impl Into<String>, leader: &str) -> Status {
    let mut status = Status::unavailable(message);
    // An address of a controller is valid metadata.
    let leader = MetadataValue::try_from(leader).unwrap_or(MetadataValue::from_static(""));
    status.metadata_mut().insert(LEADER, leader);
    status
}

/// A read of a standby: a function of the committed state.
struct Read<A, B> {
    candidate: Arc<Candidate>,
    answer: fn(&Fabric, &Snapshot, A) -> Result<B, Status>,
}

impl<A: Send + 'static, B: Send + 'static> tonic::server::UnaryService<A> for Read<A, B> {
    type Response = B;
    type Future = BoxFuture<'static, Result<Response<B>, Status>>;

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (candidate, answer) = (Arc::clone(&self.candidate), self.answer);
        async move {
            let snapshot = candidate.snapshot().await?;
            answer(&candidate.config.fabric, &snapshot, request.into_inner()).map(Response::new)
        }
        .boxed()
    }
}

/// A job with the degraded condition that the leader has stored, unless this standby finds one by itself.
fn with_conditions(it: &Snapshot, mut job: api::Job) -> api::Job {
    let stored = it.conditions.get(&job.name);
    let is_degraded = |it: &api::JobCondition| it.kind() == api::JobConditionKind::Degraded;
    if !job.conditions.iter().any(is_degraded) && job.unfit.is_empty() {
        job.conditions.extend(stored.cloned());
    }
    job
}

impl Snapshot {
    fn state_of(&self, fabric: &Fabric, record: &Record) -> JobState {
        JobState {
            port_problems: self.condition.of_members(fabric, &record.job),
            ..state_of(&self.registry, record)
        }
    }
}

fn list_jobs(
    fabric: &Fabric,
    it: &Snapshot,
    _: api::ListJobsRequest,
) -> Result<api::ListJobsResponse, Status> {
    let jobs = all_jobs(fabric, &it.registry, |job| it.state_of(fabric, job)).into_iter();
    let jobs = jobs.map(|job| with_conditions(it, job)).collect();
    Ok(api::ListJobsResponse { jobs })
}

fn get_job(fabric: &Fabric, it: &Snapshot, asked: api::GetJobRequest) -> Result<api::Job, Status> {
    let state_of = |job: &Record| it.state_of(fabric, job);
    let job = job_named(fabric, &it.registry, &asked.name, state_of)?;
    Ok(with_conditions(it, job))
}

fn list_switches(
    fabric: &Fabric,
    it: &Snapshot,
    _: api::ListSwitchesRequest,
) -> Result<api::ListSwitchesResponse, Status> {
    let problem_of = |id| logged_problem(&it.log, &fabric.switch(id).name);
    let unknown = "unknown: a standby is not connected to switches";
    let switch = |id| SwitchState {
        id,
        problem: problem_of(id).or_else(|| Some(unknown.into())),
        is_unknown: problem_of(id).is_none(),
        health: it.condition.of(fabric, id),
        dirty: false,
        jobs: it.registry.names_at(id),
    };
    let states = fabric.switch_ids().map(switch);
    let switches = states.map(|state| switch_of(fabric, state)).collect();
    Ok(api::ListSwitchesResponse { switches })
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
        let call = request.uri().path().rsplit('/').next();
        let call = call.unwrap_or_default().to_owned();
        let candidate = Arc::clone(&self.candidate);
        match &*call {
            "ListJobs" => read(candidate, request, list_jobs),
            "GetJob" => read(candidate, request, get_job),
            "ListSwitches" => read(candidate, request, list_switches),
            "GetFabric" => read(
                candidate,
                request,
                |fabric, it, _: api::GetFabricRequest| Ok(fabric_of(fabric, &it.condition)),
            ),
            "ListEvents" => read(
                candidate,
                request,
                |_, it, asked: api::ListEventsRequest| {
                    let events = it.log.of(&asked.object);
                    Ok(api::ListEventsResponse { events })
                },
            ),
            _ => ready(Ok(refusal(leader.as_deref()).into_http())).boxed(),
        }
    }
}

/// Answers a call with a function of the committed state.
fn read<A, B>(
    candidate: Arc<Candidate>,
    request: http::Request<Body>,
    answer: fn(&Fabric, &Snapshot, A) -> Result<B, Status>,
) -> BoxFuture<'static, Result<http::Response<Body>, Infallible>>
where
    A: prost::Message + Default + 'static,
    B: prost::Message + Default + 'static,
{
    async move {
        let mut server = tonic::server::Grpc::new(ProstCodec::default());
        let leader = candidate.service().err().flatten();
        let mut response = server.unary(Read { candidate, answer }, request).await;
        // A client that asked for the leader looks for it again.
        let leader = http::HeaderValue::from_str(leader.as_deref().unwrap_or_default());
        if let Ok(leader) = leader {
            response.headers_mut().insert(LEADER, leader);
        }
        Ok(response)
    }
    .boxed()
}
