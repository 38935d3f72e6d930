//! The gRPC service `Control`: turns requests into calls of the [`Controller`], and results into
//! messages.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use ultima_api::client::READY_WAIT;
use ultima_api::v1::{self as api, control_server::Control};
use ultima_planner::fabric::SwitchId;
use ultima_planner::job::JobSpec;
use ultima_planner::membership::{ChangeOptions, Lost};
use ultima_planner::reconcile::Diff;

use super::access::{Caller, caller};
use super::check::check;
use super::controller::{Controller, JobState};
use super::jobs::JobsRefused;
use super::membership::cancel::cancel_change;
use super::membership::change::{Evictee, JOIN_WAIT, evict, resize_job};
use super::membership::member_messages::{Opened, open_session, sanitize};
use super::messages::{
    all_jobs, check_of, differences, fabric_of, job_named, job_of, seat, spec, specs, switch_of,
};
use super::moves::Drained;
use super::own_task::to_the_end;
use super::proof::Proof;
use super::registry::epochs::EpochRef;
use super::registry::record::Record;
use super::service_telemetry::{Watched, get_telemetry_message, watch_telemetry};
use super::service_watch::{JobWatch, watch_job};
use super::session::pass_on;
use super::sessions::Attributes;
use super::streams;
use super::telemetry::counters;

/// Time limit for the first message of a member that opens a session.
const FIRST_MESSAGE: Duration = Duration::from_secs(5);

/// The settings of a member that are compared, at most. An agent has some ten.
const MOST_SETTINGS: usize = 64;

/// The longest time for new members to join: no other change of the job's members, not even the
/// removal of a failed one, can start meanwhile.
pub const LONGEST_JOIN_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest time that a creation waits for switches.
const LONGEST_READY_WAIT: Duration = Duration::from_secs(600);

/// The time that a creation waits for switches.
fn ready_wait(wait_ms: Option<u32>) -> Duration {
    let wait = wait_ms.map(|wait| Duration::from_millis(wait.into()));
    wait.unwrap_or(READY_WAIT).min(LONGEST_READY_WAIT)
}

/// The control API of a controller.
pub struct ControlService {
    pub(super) controller: Arc<Controller>,
}

impl ControlService {
    pub fn new(controller: Arc<Controller>) -> Self {
        ControlService { controller }
    }

    /// Creates jobs, and waits until they are ready. A client that disconnects ends only the wait.
    async fn create(
        &self,
        caller: &Caller,
        mut specs: Vec<JobSpec>,
        wait: Duration,
    ) -> Result<Result<Vec<api::Job>, JobsRefused>, Status> {
        specs
            .iter_mut()
            .for_each(|spec| spec.client = caller.name());
        let controller = Arc::clone(&self.controller);
        let created = to_the_end(async move { controller.create_jobs(&specs).await }).await?;
        let ids = match created {
            Ok(ids) => ids,
            Err(refused) => return Ok(Err(refused)),
        };
        let states = self.controller.until_ready(&ids, wait).await?;
        let job = |state: &JobState| job_of(self.controller.fabric(), state);
        Ok(Ok(states.iter().map(job).collect()))
    }

    /// Compares all switches with the desired state; with `mend` it also reconciles them.
    async fn audit(&self, mend: bool) -> Result<Vec<api::SwitchDiff>, Status> {
        let controller = Arc::clone(&self.controller);
        let audited = to_the_end(async move { controller.audit(mend).await }).await?;
        let names = self.controller.program().names();
        let of = |(id, diff): (SwitchId, Result<Diff, String>)| {
            let switch = self.controller.fabric().switch(id).name.clone();
            let (differences, problem) = match diff {
                Ok(diff) => (differences(&diff, names), String::new()),
                Err(problem) => (Vec::new(), problem),
            };
            api::SwitchDiff {
                switch,
                problem,
                differences,
            }
        };
        Ok(audited.into_iter().map(of).collect())
    }
}

#[tonic::async_trait]
impl Control for ControlService {
    async fn create_job(
        &self,
        request: Request<api::CreateJobRequest>,
    ) -> Result<Response<api::Job>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let wait = ready_wait(request.wait_ms);
        let specs = vec![spec(request)?];
        let created = self.create(&caller, specs, wait).await;
        // The field is one of the only job.
        let mut jobs = created?.map_err(|refused| *refused.error)?;
        let none = || Status::internal("no job was created");
        Ok(Response::new(jobs.pop().ok_or_else(none)?))
    }

    async fn create_jobs(
        &self,
        request: Request<api::CreateJobsRequest>,
    ) -> Result<Response<api::CreateJobsResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let wait = ready_wait(request.wait_ms);
        let specs = specs(request.jobs)?;
        if specs.is_empty() {
            return Err(Status::invalid_argument("jobs: expected at least one job"));
        }
        let jobs = self.create(&caller, specs, wait).await??;
        Ok(Response::new(api::CreateJobsResponse { jobs }))
    }

    async fn list_jobs(
        &self,
        _: Request<api::ListJobsRequest>,
    ) -> Result<Response<api::ListJobsResponse>, Status> {
        let registry = self.controller.registry();
        let state_of = |record: &Record| self.controller.state_of(&registry, record);
        let jobs = all_jobs(self.controller.fabric(), &registry, state_of);
        Ok(Response::new(api::ListJobsResponse { jobs }))
    }

    async fn get_job(
        &self,
        request: Request<api::GetJobRequest>,
    ) -> Result<Response<api::Job>, Status> {
        let name = request.into_inner().name;
        let registry = self.controller.registry();
        let state_of = |record: &Record| self.controller.state_of(&registry, record);
        let job = job_named(self.controller.fabric(), &registry, &name, state_of)?;
        Ok(Response::new(job))
    }

    async fn delete_job(
        &self,
        request: Request<api::DeleteJobRequest>,
    ) -> Result<Response<api::DeleteJobResponse>, Status> {
        let name = request.into_inner().name;
        let controller = Arc::clone(&self.controller);
        let pending = to_the_end(async move { controller.delete_job(&name).await }).await??;
        let switch = |id| self.controller.fabric().switch(id).name.clone();
        let pending_switches = pending.into_iter().map(switch).collect();
        Ok(Response::new(api::DeleteJobResponse { pending_switches }))
    }

    async fn join(
        &self,
        request: Request<api::JoinRequest>,
    ) -> Result<Response<api::JoinResponse>, Status> {
        let caller = caller(&request)?;
        let api::JoinRequest {
            job,
            host,
            wait_ms,
            attempt,
        } = request.into_inner();
        caller.acts_for(&host)?;
        let wait = (wait_ms > 0).then(|| Duration::from_millis(wait_ms.into()));
        caller.may_get_key(&self.controller.job(&job)?.job)?;
        let (rank, state, token) = self.controller.join(&job, &host, attempt, wait).await?;
        // Another job may have the name by now.
        caller.may_get_key(&state.job)?;
        Ok(Response::new(api::JoinResponse {
            token: token.0,
            ..seat(&self.controller, &state, rank)
        }))
    }

    async fn leave(
        &self,
        request: Request<api::LeaveRequest>,
    ) -> Result<Response<api::LeaveResponse>, Status> {
        let caller = caller(&request)?;
        let api::LeaveRequest {
            job,
            epoch,
            rank,
            job_id,
            token,
        } = request.into_inner();
        let host = caller.host();
        let proof = Proof { token, host };
        (self
            .controller
            .leave(&job, EpochRef { epoch, job_id }, rank, proof))
        .await?;
        Ok(Response::new(api::LeaveResponse {}))
    }

    type AttendStream = ReceiverStream<Result<api::AttendResponse, Status>>;

    async fn attend(
        &self,
        request: Request<Streaming<api::AttendRequest>>,
    ) -> Result<Response<Self::AttendStream>, Status> {
        use api::attend_request::Event;
        let caller = caller(&request)?;
        let mut requests = request.into_inner();
        let first = timeout(FIRST_MESSAGE, requests.message()).await;
        let first =
            first.map_err(|_| Status::deadline_exceeded("no Attendance arrived within 5 s"))?;
        let first = first?.and_then(|request| request.event);
        let Some(Event::Attendance(attendance)) = first else {
            return Err(Status::invalid_argument(
                "the first message must be an Attendance",
            ));
        };
        let api::Attendance {
            job,
            epoch,
            rank,
            job_id,
            slot_bytes,
            settings,
            token,
        } = attendance;
        let attributes = Attributes {
            slot_bytes,
            settings: (settings.into_iter().take(MOST_SETTINGS))
                .map(|(name, value)| (sanitize(&name), sanitize(&value)))
                .collect(),
        };
        // The next epoch has a key of its own.
        caller.may_get_key(&self.controller.job(&job)?.job)?;
        let host = caller.host();
        let proof = Proof { token, host };
        let opened = open_session(
            &self.controller,
            &job,
            EpochRef { epoch, job_id },
            rank,
            proof,
            attributes,
        )?;
        let (member, messages) = match opened {
            Opened::Session(member, messages) => (member, messages),
            Opened::Missed(messages) => {
                let (answers, stream) = mpsc::channel(messages.len().max(1));
                for message in messages {
                    let order = Some(message);
                    // The channel has room for all of them; then the stream ends.
                    let _ = answers.try_send(Ok(api::AttendResponse { order }));
                }
                return Ok(Response::new(ReceiverStream::new(stream)));
            }
        };
        if let Err(closed) = self.controller.open() {
            // `close` has ended the earlier sessions. This one ends with its orders.
            drop(messages);
            self.controller.sessions.notify(member.job);
            return Err(closed.into());
        }
        let (answers, stream) = mpsc::channel(1);
        let controller = Arc::clone(&self.controller);
        tokio::spawn(async move {
            let passing = pass_on(&controller, member, messages, &answers, requests);
            streams::run(&answers, controller.stopped(), passing).await;
            controller.sessions.notify(member.job);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn check_job(
        &self,
        request: Request<api::CheckJobRequest>,
    ) -> Result<Response<api::CheckJobResponse>, Status> {
        let caller = caller(&request)?;
        let job = request.into_inner().job;
        if let Some(host) = caller.host() {
            self.controller.has_member_on(&job, host)?;
        }
        let check = check(&self.controller, &job).await?;
        Ok(Response::new(check_of(check)))
    }

    async fn get_counters(
        &self,
        request: Request<api::GetCountersRequest>,
    ) -> Result<Response<api::GetCountersResponse>, Status> {
        let switches = counters(&self.controller, &request.into_inner().job).await?;
        Ok(Response::new(api::GetCountersResponse { switches }))
    }

    async fn get_telemetry(
        &self,
        request: Request<api::GetTelemetryRequest>,
    ) -> Result<Response<api::GetTelemetryResponse>, Status> {
        let name = request.into_inner().job;
        Ok(Response::new(
            get_telemetry_message(&self.controller, &name).await?,
        ))
    }

    type WatchTelemetryStream = ReceiverStream<Watched>;

    async fn watch_telemetry(
        &self,
        request: Request<api::WatchTelemetryRequest>,
    ) -> Result<Response<Self::WatchTelemetryStream>, Status> {
        let watched = watch_telemetry(&self.controller, request.into_inner())?;
        Ok(Response::new(watched))
    }

    async fn list_switches(
        &self,
        _: Request<api::ListSwitchesRequest>,
    ) -> Result<Response<api::ListSwitchesResponse>, Status> {
        let fabric = self.controller.fabric();
        let switches = self.controller.switches().into_iter();
        let switches = switches.map(|state| switch_of(fabric, state)).collect();
        Ok(Response::new(api::ListSwitchesResponse { switches }))
    }

    async fn diff_fabric(
        &self,
        _: Request<api::DiffFabricRequest>,
    ) -> Result<Response<api::DiffFabricResponse>, Status> {
        let switches = self.audit(false).await?;
        Ok(Response::new(api::DiffFabricResponse { switches }))
    }

    async fn sync_fabric(
        &self,
        _: Request<api::SyncFabricRequest>,
    ) -> Result<Response<api::SyncFabricResponse>, Status> {
        let switches = self.audit(true).await?;
        Ok(Response::new(api::SyncFabricResponse { switches }))
    }

    async fn get_fabric(
        &self,
        _: Request<api::GetFabricRequest>,
    ) -> Result<Response<api::GetFabricResponse>, Status> {
        let condition = self.controller.condition().clone();
        let fabric = fabric_of(self.controller.fabric(), &condition);
        Ok(Response::new(fabric))
    }

    async fn configure_ports(
        &self,
        request: Request<api::ConfigurePortsRequest>,
    ) -> Result<Response<api::ConfigurePortsResponse>, Status> {
        self.ports_of(&request.into_inner().switch).await?;
        Ok(Response::new(api::ConfigurePortsResponse {}))
    }

    async fn plan_jobs(
        &self,
        request: Request<api::PlanJobsRequest>,
    ) -> Result<Response<api::PlanResponse>, Status> {
        self.plan_of_jobs(request.into_inner()).await
    }

    async fn plan_fabric(
        &self,
        request: Request<api::PlanFabricRequest>,
    ) -> Result<Response<api::PlanResponse>, Status> {
        self.plan_of_fabric(request.into_inner()).await
    }

    async fn set_admin_state(
        &self,
        request: Request<api::SetAdminStateRequest>,
    ) -> Result<Response<api::SetAdminStateResponse>, Status> {
        let request = request.into_inner();
        let drained = match request.state() {
            api::AdminState::Drained => true,
            api::AdminState::InUse => false,
            api::AdminState::Unspecified => {
                return Err(Status::invalid_argument(
                    "state: expected ADMIN_STATE_DRAINED or ADMIN_STATE_IN_USE",
                ));
            }
        };
        let controller = Arc::clone(&self.controller);
        let set = to_the_end(async move { controller.drain(&request.element, drained).await });
        let Drained { element, pending } = set.await??;
        let switch = |id| self.controller.fabric().switch(id).name.clone();
        let pending_switches = pending.into_iter().map(switch).collect();
        Ok(Response::new(api::SetAdminStateResponse {
            element,
            pending_switches,
        }))
    }

    async fn resize_job(
        &self,
        request: Request<api::ResizeJobRequest>,
    ) -> Result<Response<api::Job>, Status> {
        let api::ResizeJobRequest {
            job,
            members,
            join_wait_ms,
            leave_out_lost,
            job_id,
        } = request.into_inner();
        let number = (job_id > 0).then_some(job_id);
        let most = LONGEST_JOIN_WAIT.as_millis();
        if u128::from(join_wait_ms) > most {
            return Err(Status::invalid_argument(format!(
                "join_wait_ms: {join_wait_ms}: expected at most {most} (a day), or 0 for a minute"
            )));
        }
        let options = ChangeOptions {
            join: match join_wait_ms {
                0 => JOIN_WAIT,
                wait => Duration::from_millis(wait.into()),
            },
            lost: match leave_out_lost {
                true => Lost::LeaveOut,
                false => Lost::Cancel,
            },
        };
        let controller = Arc::clone(&self.controller);
        let resized =
            to_the_end(
                async move { resize_job(&controller, &job, number, &members, options).await },
            );
        let state = resized.await??;
        Ok(Response::new(job_of(self.controller.fabric(), &state)))
    }

    async fn update_job(
        &self,
        request: Request<api::UpdateJobRequest>,
    ) -> Result<Response<api::Job>, Status> {
        let request = request.into_inner();
        let controller = Arc::clone(&self.controller);
        let updated =
            to_the_end(async move { controller.update_job(&request.job, (&request).into()).await });
        let state = updated.await??;
        Ok(Response::new(job_of(self.controller.fabric(), &state)))
    }

    async fn evict_member(
        &self,
        request: Request<api::EvictMemberRequest>,
    ) -> Result<Response<api::Job>, Status> {
        use api::evict_member_request::Member as Named;
        let api::EvictMemberRequest {
            job,
            member,
            reason,
            job_id,
            epoch,
        } = request.into_inner();
        let who = match member {
            Some(Named::Rank(rank)) => Evictee::Rank(rank),
            Some(Named::Host(host)) => Evictee::Host(host),
            None => {
                return Err(Status::invalid_argument(
                    "member: expected a rank, or a host with only one rank",
                ));
            }
        };
        let controller = Arc::clone(&self.controller);
        let evicted =
            to_the_end(async move { evict(&controller, &job, epoch, job_id, &who, &reason).await });
        let state = evicted.await??;
        Ok(Response::new(job_of(self.controller.fabric(), &state)))
    }

    async fn cancel_change(
        &self,
        request: Request<api::CancelChangeRequest>,
    ) -> Result<Response<api::Job>, Status> {
        let api::CancelChangeRequest { job, epoch } = request.into_inner();
        let state = cancel_change(&self.controller, &job, epoch).await?;
        Ok(Response::new(job_of(self.controller.fabric(), &state)))
    }

    async fn list_events(
        &self,
        request: Request<api::ListEventsRequest>,
    ) -> Result<Response<api::ListEventsResponse>, Status> {
        let events = self.controller.log.of(&request.into_inner().object);
        Ok(Response::new(api::ListEventsResponse { events }))
    }

    type WatchJobStream = ReceiverStream<JobWatch>;

    async fn watch_job(
        &self,
        request: Request<api::WatchJobRequest>,
    ) -> Result<Response<Self::WatchJobStream>, Status> {
        let watched = watch_job(&self.controller, request.into_inner().name)?;
        Ok(Response::new(watched))
    }
}
