//! A client of the control API.

use std::time::{Duration, Instant};

use backon::{ConstantBuilder, Retryable as _};
use tonic::{Request, Status, Streaming};
use ultima_grpc::tls::ClientTls;

use crate::dial::dial;
pub use crate::dial::endpoint;
pub use crate::error::{ClientError, EPOCH_OVER, LEADER};
use crate::route::{self, Route};
use crate::v1::{self as api, control_client::ControlClient};

/// The largest answer that the client accepts: some hundred thousand members or differences.
pub const MAX_ANSWER: usize = 64 << 20;

/// Time in which a switch must accept its port configuration from the controller. A Tofino restarts
/// its ports when they change.
pub const PORTS_PUSH: Duration = Duration::from_secs(60);

/// The default time in which the switches of a created job get it: the controller answers a creation after it
/// at the latest, and so do commands that wait for the job. Shorter than an ordinary call.
pub const READY_WAIT: Duration = Duration::from_secs(10);

/// Timeout of an ordinary call. Creating a job waits for its switches.
pub const ANSWER: Duration = Duration::from_secs(15);

/// Timeout of a call that creates many jobs.
const CREATE_ALL: Duration = Duration::from_secs(60);

/// Time for which a join is repeated after a broken connection. Another controller takes over
/// within seconds.
const JOIN_AGAIN: Duration = Duration::from_secs(10);
/// Pause between attempts to join.
const PAUSE: Duration = Duration::from_millis(200);

/// Timeout of a connectivity check.
const CHECK: Duration = Duration::from_secs(60);
/// Timeout of comparing or repairing all switches.
const AUDIT: Duration = Duration::from_secs(60);

/// A connection to the controllers. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    rpc: ControlClient<Route>,
    address: String,
    is_of_several: bool,
    standby: Option<String>,
}

/// The events of a job's members.
#[derive(Debug)]
pub struct JobWatch {
    stream: Streaming<api::WatchJobResponse>,
    client: Client,
}

impl JobWatch {
    /// Returns the next event; none after the job was deleted or the controller stopped.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn next(&mut self) -> Result<Option<api::WatchJobResponse>, ClientError> {
        let next = self.stream.message().await;
        next.map_err(|status| self.client.error(status))
    }
}

/// Periodic loss reports of jobs.
#[derive(Debug)]
pub struct TelemetryWatch {
    stream: Streaming<api::WatchTelemetryResponse>,
    client: Client,
}

impl TelemetryWatch {
    /// Returns the losses of the watched jobs so far; none after the controller stopped.
    ///
    /// # Errors
    /// The watched job was deleted, or the connection broke.
    pub async fn next(&mut self) -> Result<Option<Vec<api::JobTelemetry>>, ClientError> {
        let mut jobs = Vec::new();
        loop {
            let next = self.stream.message().await;
            let Some(next) = next.map_err(|status| self.client.error(status))? else {
                return Ok(None);
            };
            jobs.extend(next.jobs);
            if !next.more {
                return Ok(Some(jobs));
            }
        }
    }
}

/// A request that ends after `timeout`, even if the server never answers.
fn within<T>(timeout: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

impl Client {
    /// Connects to the controller at `address`, `HOST:PORT` or `unix:PATH`, without TLS. With several addresses,
    /// separated by commas, it connects to the leader, also after the leader changes.
    ///
    /// # Errors
    /// No controller answers, or none leads in time.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        Client::connect_with(address, None).await
    }

    /// Connects as [`connect`](Self::connect), over TLS if `tls` is given. Unix sockets have no TLS.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect).
    pub async fn connect_with(address: &str, tls: Option<ClientTls>) -> Result<Self, ClientError> {
        let addresses = address.split(',').map(|it| it.trim().to_owned());
        let route = Route::find(addresses.collect(), tls).await?;
        Ok(Client::over(route, None))
    }

    /// Connects as [`connect_with`](Self::connect_with), but a standby answers the reads that it serves while no controller
    /// leads. It does not know the states of switches and sessions.
    ///
    /// # Errors
    /// No controller answers.
    pub async fn connect_to_read(
        address: &str,
        tls: Option<ClientTls>,
    ) -> Result<Self, ClientError> {
        let addresses = address.split(',').map(|it| it.trim().to_owned());
        let (route, standby) = Route::find_to_read(addresses.collect(), tls).await?;
        Ok(Client::over(route, standby))
    }

    /// The address of a standby that answers reads, if no controller led when the client connected to read.
    pub fn standby(&self) -> Option<&str> {
        self.standby.as_deref()
    }

    fn over(route: Route, standby: Option<String>) -> Self {
        Client {
            address: route.addresses(),
            is_of_several: route.is_to_several(),
            standby,
            rpc: ControlClient::new(route).max_decoding_message_size(MAX_ANSWER),
        }
    }

    /// True if the client has several controllers and looks for a new leader after a failure.
    pub fn is_of_several(&self) -> bool {
        self.is_of_several
    }

    /// Asks the controller at `address` for its role.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn standing(
        address: &str,
        tls: Option<&ClientTls>,
    ) -> Result<api::GetStandingResponse, ClientError> {
        let standing = route::standing(dial(address, tls).await?).await;
        standing.map_err(|status| ClientError::of(status, address))
    }

    /// Creates a job, and waits as long as the request says until it is ready.
    ///
    /// # Errors
    /// The controller rejects the job or does not answer.
    pub async fn create_job(
        &self,
        job: impl Into<api::CreateJobRequest>,
    ) -> Result<api::Job, ClientError> {
        let job = job.into();
        let wait = Duration::from_millis(job.wait_ms.unwrap_or_default().into());
        let request = within(ANSWER.saturating_add(wait), job);
        let answer = self.rpc.clone().create_job(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Creates jobs, all or none, and waits until they are ready, at most `wait_ms`; none for the controller's default.
    ///
    /// # Errors
    /// The controller rejects one of the jobs, or does not answer.
    pub async fn create_jobs(
        &self,
        jobs: impl IntoIterator<Item: Into<api::CreateJobRequest>>,
        wait_ms: Option<u32>,
    ) -> Result<Vec<api::Job>, ClientError> {
        let jobs = jobs.into_iter().map(Into::into).collect();
        let wait = Duration::from_millis(wait_ms.unwrap_or_default().into());
        let request = api::CreateJobsRequest { jobs, wait_ms };
        let request = within(CREATE_ALL.saturating_add(wait), request);
        let answer = self.rpc.clone().create_jobs(request).await;
        Ok(answer
            .map_err(|status| self.error(status))?
            .into_inner()
            .jobs)
    }

    /// Returns all jobs, by id.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn jobs(&self) -> Result<Vec<api::Job>, ClientError> {
        let answer = self
            .rpc
            .clone()
            .list_jobs(within(ANSWER, api::ListJobsRequest {}))
            .await;
        Ok(answer
            .map_err(|status| self.error(status))?
            .into_inner()
            .jobs)
    }

    /// Returns the recent events of an object such as `job/train`, or of all with an empty name; the latest last.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn events(&self, object: &str) -> Result<Vec<api::Event>, ClientError> {
        let object = object.to_owned();
        let request = within(ANSWER, api::ListEventsRequest { object });
        let answer = self.rpc.clone().list_events(request).await;
        Ok(answer
            .map_err(|status| self.error(status))?
            .into_inner()
            .events)
    }

    /// Returns one job.
    ///
    /// # Errors
    /// The job does not exist, or the controller does not answer.
    pub async fn job(&self, name: &str) -> Result<api::Job, ClientError> {
        let answer = self
            .rpc
            .clone()
            .get_job(within(ANSWER, api::GetJobRequest { name: name.into() }))
            .await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Deletes a job. Returns the names of the switches that still hold its entries and drop them
    /// when they are back.
    ///
    /// # Errors
    /// The job does not exist, or the controller does not answer.
    pub async fn delete_job(&self, name: &str) -> Result<Vec<String>, ClientError> {
        let answer = self
            .rpc
            .clone()
            .delete_job(within(ANSWER, api::DeleteJobRequest { name: name.into() }))
            .await;
        Ok(answer
            .map_err(|status| self.error(status))?
            .into_inner()
            .pending_switches)
    }

    /// Changes a job's members to these hosts, in rank order. New members have `join_wait` to join.
    /// Current members that do not answer are left out, or else the change is cancelled. With a
    /// `number`, the change is made only if that is still the job's id in packets, so that the new
    /// members were derived from the current ones. Returns when the new epoch is installed;
    /// [`Client::watch_job`] reports what follows.
    ///
    /// # Errors
    /// The controller rejects the change or does not answer.
    pub async fn resize_job(
        &self,
        job: &str,
        number: Option<u32>,
        members: &[String],
        join_wait: Duration,
        leave_out_lost: bool,
    ) -> Result<api::Job, ClientError> {
        let request = api::ResizeJobRequest {
            job: job.into(),
            members: members.to_vec(),
            join_wait_ms: u32::try_from(join_wait.as_millis()).unwrap_or(u32::MAX),
            leave_out_lost,
            job_id: number.unwrap_or_default(),
        };
        let answer = self.rpc.clone().resize_job(within(ANSWER, request)).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Changes settings of a job that its members do not know. Returns when its connected switches have tried to take them.
    ///
    /// # Errors
    /// The controller rejects the change or does not answer.
    pub async fn update_job(&self, job: api::UpdateJobRequest) -> Result<api::Job, ClientError> {
        let answer = self.rpc.clone().update_job(within(ANSWER, job)).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Evicts a member, in whichever epoch the job is. The member gets the `reason`.
    ///
    /// # Errors
    /// The controller rejects the eviction or does not answer.
    pub async fn evict(
        &self,
        job: &str,
        member: api::evict_member_request::Member,
        reason: &str,
    ) -> Result<api::Job, ClientError> {
        self.evict_seen(job, 0, 0, member, reason).await
    }

    /// Like [`evict`](Self::evict), but only if the job is still in the given epoch and has the
    /// given id in packets; 0 stands for any.
    ///
    /// # Errors
    /// The job is in another epoch, or the controller rejects the eviction or does not answer.
    pub async fn evict_seen(
        &self,
        job: &str,
        epoch: u32,
        number: u32,
        member: api::evict_member_request::Member,
        reason: &str,
    ) -> Result<api::Job, ClientError> {
        let request = api::EvictMemberRequest {
            job: job.into(),
            member: Some(member),
            reason: reason.into(),
            job_id: number,
            epoch,
        };
        let answer = self.rpc.clone().evict_member(within(ANSWER, request)).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Cancels the pending change of a job's members if it leads to `epoch`; 0 for any.
    ///
    /// # Errors
    /// No change is pending, the change is already decided, or the controller does not answer.
    pub async fn cancel_change(&self, job: &str, epoch: u32) -> Result<api::Job, ClientError> {
        let request = api::CancelChangeRequest {
            job: job.into(),
            epoch,
        };
        let answer = self
            .rpc
            .clone()
            .cancel_change(within(ANSWER, request))
            .await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Watches a job: first its current state, then every event of its members, until it is
    /// deleted.
    ///
    /// # Errors
    /// The job does not exist, or the controller does not answer.
    pub async fn watch_job(&self, name: &str) -> Result<JobWatch, ClientError> {
        let request = api::WatchJobRequest { name: name.into() };
        let stream = self.rpc.clone().watch_job(request).await;
        Ok(JobWatch {
            stream: stream.map_err(|status| self.error(status))?.into_inner(),
            client: self.clone(),
        })
    }

    /// Joins a job from `host` and waits up to `wait` for all other members. After a broken
    /// connection it repeats the request for ten seconds, to whichever controller leads then; the
    /// controller recognises the repetition, so the caller never gets two ranks.
    ///
    /// # Errors
    /// The host has no free rank, not all members joined in time, or the controller does not
    /// answer.
    pub async fn join(
        &self,
        job: &str,
        host: &str,
        wait: Duration,
    ) -> Result<api::JoinResponse, ClientError> {
        let (begun, attempt) = (Instant::now(), rand::random_range(1..=u64::MAX));
        let mut is_first = true;
        let join = || {
            let rest = wait.saturating_sub(begun.elapsed());
            let left = match std::mem::take(&mut is_first) {
                true => wait,
                // 0 would mean no wait at all.
                false => rest.max(wait.min(Duration::from_millis(1))),
            };
            let request = api::JoinRequest {
                job: job.into(),
                host: host.into(),
                wait_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
                attempt,
            };
            let request = within(left.saturating_add(ANSWER), request);
            let mut rpc = self.rpc.clone();
            async move {
                let answer = rpc.join(request).await;
                Ok(answer.map_err(|status| self.error(status))?.into_inner())
            }
        };
        let mut lost = None;
        let may_repeat = |error: &ClientError| {
            // The controller may have given it a rank in the lost answer.
            let is_lost = error.is_silence() || (lost.is_some() && error.is_for_now());
            is_lost && lost.get_or_insert_with(Instant::now).elapsed() < JOIN_AGAIN
        };
        let pauses = ConstantBuilder::new().with_delay(PAUSE).without_max_times();
        let joined = join.retry(pauses).when(may_repeat);
        let joined = joined.notify(|error, _| {
            tracing::debug!(%error, "repeating the request for a rank");
        });
        joined.await
    }

    /// Gives up a rank.
    ///
    /// # Errors
    /// The rank had not joined, the token is another one, or the controller does not answer.
    pub async fn leave(&self, request: api::LeaveRequest) -> Result<(), ClientError> {
        self.rpc
            .clone()
            .leave(within(ANSWER, request))
            .await
            .map_err(|status| self.error(status))?;
        Ok(())
    }

    /// Returns the counters of a job's switches.
    ///
    /// # Errors
    /// The job does not exist, or a switch or the controller does not answer.
    pub async fn counters(&self, job: &str) -> Result<Vec<api::SwitchCounters>, ClientError> {
        let answer = self
            .rpc
            .clone()
            .get_counters(within(ANSWER, api::GetCountersRequest { job: job.into() }))
            .await;
        Ok(answer
            .map_err(|status| self.error(status))?
            .into_inner()
            .switches)
    }

    /// Returns the counters of a job's switches, also by port and source, and the lossy operations
    /// that switches reported.
    ///
    /// # Errors
    /// The job does not exist, or a switch or the controller does not answer.
    pub async fn telemetry(&self, job: &str) -> Result<api::GetTelemetryResponse, ClientError> {
        let request = api::GetTelemetryRequest { job: job.into() };
        let answer = self
            .rpc
            .clone()
            .get_telemetry(within(ANSWER, request))
            .await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Watches the losses of one job, or of all jobs, at an interval.
    ///
    /// # Errors
    /// The job does not exist, the interval is not between 100 ms and 60 s, too many clients watch
    /// already, or the controller does not answer.
    pub async fn watch_telemetry(
        &self,
        job: Option<&str>,
        every: Duration,
    ) -> Result<TelemetryWatch, ClientError> {
        let request = api::WatchTelemetryRequest {
            job: job.unwrap_or_default().into(),
            interval_ms: u32::try_from(every.as_millis()).unwrap_or(u32::MAX),
        };
        let stream = self.rpc.clone().watch_telemetry(request).await;
        Ok(TelemetryWatch {
            stream: stream.map_err(|status| self.error(status))?.into_inner(),
            client: self.clone(),
        })
    }

    /// Returns the fabric's switches.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn switches(&self) -> Result<Vec<api::Switch>, ClientError> {
        let answer = self
            .rpc
            .clone()
            .list_switches(within(ANSWER, api::ListSwitchesRequest {}))
            .await;
        Ok(answer
            .map_err(|status| self.error(status))?
            .into_inner()
            .switches)
    }

    /// Returns the fabric's elements and links.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn fabric(&self) -> Result<api::GetFabricResponse, ClientError> {
        let request = within(ANSWER, api::GetFabricRequest {});
        let answer = self.rpc.clone().get_fabric(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Returns each switch's differences from its desired entries.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn diff_fabric(&self) -> Result<Vec<api::SwitchDiff>, ClientError> {
        let request = within(AUDIT, api::DiffFabricRequest {});
        let answer = self.rpc.clone().diff_fabric(request).await;
        let answer = answer.map_err(|status| self.error(status))?;
        Ok(answer.into_inner().switches)
    }

    /// Removes those differences and returns them.
    ///
    /// # Errors
    /// The controller does not answer.
    pub async fn sync_fabric(&self) -> Result<Vec<api::SwitchDiff>, ClientError> {
        let request = within(AUDIT, api::SyncFabricRequest {});
        let answer = self.rpc.clone().sync_fabric(request).await;
        let answer = answer.map_err(|status| self.error(status))?;
        Ok(answer.into_inner().switches)
    }

    /// Sends a switch's port configuration, as in the fabric's file, to the switch's own software.
    ///
    /// # Errors
    /// The switch does not exist, its ports cannot be configured, it does not answer or rejects
    /// them, or the controller does not answer.
    pub async fn configure_ports(&self, switch: &str) -> Result<(), ClientError> {
        let request = api::ConfigurePortsRequest {
            switch: switch.into(),
        };
        // The switch may use all of its own timeout.
        let request = within(PORTS_PUSH + ANSWER, request);
        let answer = self.rpc.clone().configure_ports(request).await;
        answer.map(drop).map_err(|status| self.error(status))
    }

    /// Returns the plan of deleting, changing and creating jobs.
    ///
    /// # Errors
    /// A job to delete does not exist, or the controller does not answer. The plan itself names
    /// jobs that cannot be created.
    pub async fn plan_jobs(
        &self,
        request: api::PlanJobsRequest,
    ) -> Result<api::PlanResponse, ClientError> {
        let answer = self.rpc.clone().plan_jobs(within(AUDIT, request)).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Returns the plan of starting the controller with another fabric file.
    ///
    /// # Errors
    /// The controller would not start, or does not answer.
    pub async fn plan_fabric(&self, yaml: &str) -> Result<api::PlanResponse, ClientError> {
        let yaml = yaml.to_owned();
        let request = within(AUDIT, api::PlanFabricRequest { yaml });
        let answer = self.rpc.clone().plan_fabric(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Drains an element of the fabric, or ends its drain. Returns the element's full name, and the
    /// switches that may not have the new routes yet.
    ///
    /// # Errors
    /// The element does not exist, or the controller does not answer.
    pub async fn drain(
        &self,
        part: &str,
        drained: bool,
    ) -> Result<api::SetAdminStateResponse, ClientError> {
        let state = match drained {
            true => api::AdminState::Drained,
            false => api::AdminState::InUse,
        };
        let request = api::SetAdminStateRequest {
            element: part.to_owned(),
            state: state.into(),
        };
        let answer = self
            .rpc
            .clone()
            .set_admin_state(within(AUDIT, request))
            .await;
        let answer = answer.map_err(|status| self.error(status))?;
        Ok(answer.into_inner())
    }

    /// Checks where a job's packets are lost. Takes some seconds if much is broken.
    ///
    /// # Errors
    /// The job does not exist, or a switch or the controller does not answer.
    pub async fn check(&self, job: &str) -> Result<api::CheckJobResponse, ClientError> {
        let request = within(CHECK, api::CheckJobRequest { job: job.into() });
        let answer = self.rpc.clone().check_job(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    pub(crate) fn rpc(&self) -> ControlClient<Route> {
        self.rpc.clone()
    }

    pub(crate) fn error(&self, status: Status) -> ClientError {
        match ClientError::of(status, &self.address) {
            ClientError::NoAnswer {
                address, reason, ..
            } if self.is_of_several => {
                let addresses = address;
                ClientError::LostLeader { addresses, reason }
            }
            error => error,
        }
    }
}
