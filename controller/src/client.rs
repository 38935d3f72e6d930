//! A thin client of the control API.

use std::error::Error;
use std::time::{Duration, Instant};
use std::{io, iter};

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_types::StatusExt as _;
use ultima_p4runtime::transport::{self, root_cause};

use crate::api::{self, FieldProblem, control_client::ControlClient};
use crate::chassis_push;
use crate::job::JobSpec;
use crate::route::{self, Route};
use crate::server::UNIX;

/// In the metadata of what a controller that stands by answers: where the primary is, empty while it knows of none.
pub const PRIMARY: &str = "ultima-primary";

/// In the metadata of a refusal: the member's epoch is over. Of messages that are too long gRPC says `OUT_OF_RANGE` by itself.
pub const EPOCH_OVER: &str = "ultima-epoch-over";

/// The largest answer that is taken: jobs with some hundred thousand members in all, or as many differences.
pub const MAX_ANSWER: usize = 64 << 20;

/// How long to try to reach the controller.
const CONNECT: Duration = Duration::from_secs(5);

/// How often the controller is asked whether it is still there while it says nothing, as members listen for hours: nothing else tells them of
/// a machine that vanished.
const KEEPALIVE: Duration = Duration::from_secs(3);
/// How long it may take to say that it is; a busy one takes a while.
const ALIVE: Duration = Duration::from_secs(5);

/// How long the controller may take for an answer; creating a job waits for its switches.
const ANSWER: Duration = Duration::from_secs(15);

/// How long it may take to create many jobs at once.
const CREATE_ALL: Duration = Duration::from_secs(60);

/// For how long a rank is asked for again when the connection broke meanwhile: another controller takes over within seconds.
const JOIN_AGAIN: Duration = Duration::from_secs(10);
/// And the pause in between.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a check may take.
const CHECK: Duration = Duration::from_secs(60);
/// How long looking at all switches, and putting them right, may take.
const AUDIT: Duration = Duration::from_secs(60);

/// A connection to a controller. Clones share it.
#[derive(Clone, Debug)]
pub struct Client {
    rpc: ControlClient<Route>,
    address: String,
    is_of_several: bool,
}

/// What happens to a job's members.
#[derive(Debug)]
pub struct JobWatch {
    stream: Streaming<api::WatchJobResponse>,
    client: Client,
}

impl JobWatch {
    /// The next that happens; none when the job has been deleted, or the controller stops.
    ///
    /// # Errors
    /// The connection broke.
    pub async fn next(&mut self) -> Result<Option<api::WatchJobResponse>, ClientError> {
        let next = self.stream.message().await;
        next.map_err(|status| self.client.error(status))
    }
}

/// What jobs lose, again and again.
#[derive(Debug)]
pub struct TelemetryWatch {
    stream: Streaming<api::WatchTelemetryResponse>,
    client: Client,
}

impl TelemetryWatch {
    /// What the jobs that are watched have lost by now; none when the controller stops.
    ///
    /// # Errors
    /// The job that is watched is gone, or the connection broke.
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

/// Why a request was not granted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there, or the connection broke.
    #[error(
        "the controller at {address} doesn't answer: {reason}; {}",
        advice(address)
    )]
    NoAnswer {
        /// Where it should be.
        address: String,
        /// What was seen instead.
        reason: String,
    },
    /// Of several controllers nobody listens anywhere.
    #[error(
        "none of the controllers at {addresses} answers: {reason}; start them with `ultima controller serve`, or correct the addresses"
    )]
    NoneAnswers {
        /// Where they should be.
        addresses: String,
        /// What was seen of one of them instead.
        reason: String,
    },
    /// The connection to the primary of several broke.
    #[error(
        "the primary of the controllers at {addresses} doesn't answer any more: {reason}; see which one leads with `ultima controller status`"
    )]
    LostPrimary {
        /// Where they are.
        addresses: String,
        /// What was seen of it.
        reason: String,
    },
    /// Its socket is another user's.
    #[error(
        "the controller at {address} is another user's; run this as that one: for a lab, as root"
    )]
    NotOurs {
        /// Where it is.
        address: String,
    },
    /// Controllers answer, and none of them is primary.
    #[error(
        "none of the controllers at {addresses} is primary; see why with `ultima controller status`"
    )]
    NoPrimary {
        /// Where was looked.
        addresses: String,
    },
    /// A member's epoch is over: there is nothing that it could try again.
    #[error("{message}")]
    EpochOver {
        /// What became of it.
        message: String,
    },
    /// A question or an answer has more bytes than the other side takes.
    #[error(
        "what was asked of the controller at {address}, or its answer, is too long: {reason}; ask for less at once, such as for one job"
    )]
    TooLong {
        /// Where it is.
        address: String,
        /// How long it is, and may be.
        reason: String,
    },
    /// The controller says no.
    #[error("{message}")]
    Refused {
        /// What kind of no.
        code: Code,
        /// What it says.
        message: String,
        /// The field of the request that is in the way, where it is one.
        field: Option<Box<FieldProblem>>,
    },
}

/// A request that ends after `timeout`, also where something listens that never answers.
fn within<T>(timeout: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

impl From<&JobSpec> for api::CreateJobRequest {
    fn from(spec: &JobSpec) -> Self {
        api::CreateJobRequest {
            name: spec.name.clone(),
            members: spec.members.clone(),
            gather: api::Gather::from(spec.gather).into(),
            seed: spec.seed,
            loss_threshold: Some(spec.loss_threshold),
            weight: Some(spec.weight.get().into()),
            evict_after_s: spec.eviction.seconds(),
            sealed: spec.sealed,
        }
    }
}

/// Whether the system does not let this user connect, as to a socket in a folder of root's.
fn is_denied(error: &(dyn Error + 'static)) -> bool {
    iter::successors(Some(error), |error| (*error).source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Where a controller is that listens at `address`, `HOST:PORT` or `unix:PATH`.
pub(crate) fn endpoint(address: &str) -> Result<Endpoint, tonic::transport::Error> {
    match address.starts_with(UNIX) {
        true => Endpoint::from_shared(address.to_owned()),
        false => transport::endpoint(address, None),
    }
}

/// Connects to the controller at `address`.
pub(crate) async fn dial(address: &str) -> Result<Channel, ClientError> {
    let no_answer = |error: tonic::transport::Error| {
        let address = address.to_owned();
        match address.starts_with(UNIX) && is_denied(&error) {
            true => ClientError::NotOurs { address },
            false => ClientError::NoAnswer {
                address,
                reason: root_cause(&error),
            },
        }
    };
    let endpoint = endpoint(address).map_err(no_answer)?;
    let endpoint = endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(ALIVE)
        .keep_alive_while_idle(true)
        // Why something is refused comes in a header, percent-encoded.
        .http2_max_header_list_size(64 << 10);
    endpoint.connect().await.map_err(no_answer)
}

/// What to do where no controller answers. A loopback address is the default, and wrong on every machine but the
/// controller's.
fn advice(address: &str) -> String {
    let start = "start it with `ultima controller serve`, or correct the address";
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    match host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback()) {
        true => format!(
            "{start}; if it runs on another machine, start it there with --listen ADDRESS:9555, an address that this machine \
             reaches, and use --controller ADDRESS:9555 here"
        ),
        false => start.to_owned(),
    }
}

impl ClientError {
    /// Whether what was asked for may be done all the same: there was no answer, or one that leaves it open.
    pub fn may_be_done(&self) -> bool {
        match self {
            ClientError::Refused { code, .. } => matches!(
                code,
                Code::Unavailable
                    | Code::Internal
                    | Code::Unknown
                    | Code::Cancelled
                    | Code::DeadlineExceeded
            ),
            ClientError::EpochOver { .. } => false,
            // Those that nobody has heard.
            ClientError::NotOurs { .. } | ClientError::NoPrimary { .. } => false,
            ClientError::NoAnswer { .. }
            | ClientError::NoneAnswers { .. }
            | ClientError::LostPrimary { .. }
            | ClientError::TooLong { .. } => true,
        }
    }

    /// Whether a member is refused because its epoch is over: there is nothing that it could try again.
    pub fn is_over(&self) -> bool {
        matches!(self, ClientError::EpochOver { .. })
    }

    /// Whether the same may be granted in a moment: nobody answers, or nobody who leads.
    fn is_passing(&self) -> bool {
        match self {
            ClientError::NoPrimary { .. } => true,
            ClientError::Refused { code, .. } => *code == Code::Unavailable,
            silence => silence.is_silence(),
        }
    }

    /// Whether the answer is lost, so that what was asked for may have been done.
    fn is_silence(&self) -> bool {
        matches!(
            self,
            ClientError::NoAnswer { .. } | ClientError::LostPrimary { .. }
        )
    }
}

impl Client {
    /// Connects to the controller at `address`, `HOST:PORT` or `unix:PATH`; of several, separated by commas, to whichever is
    /// primary, also when that is another one later.
    ///
    /// # Errors
    /// It doesn't answer, or none of them is primary for a while.
    pub async fn connect(address: &str) -> Result<Self, ClientError> {
        let addresses = address.split(',').map(|it| it.trim().to_owned());
        let route = Route::find(addresses.collect()).await?;
        Ok(Client {
            address: route.addresses(),
            is_of_several: route.is_to_several(),
            rpc: ControlClient::new(route).max_decoding_message_size(MAX_ANSWER),
        })
    }

    /// Whether it was given several controllers: where the primary goes, another one is looked for.
    pub fn is_of_several(&self) -> bool {
        self.is_of_several
    }

    /// What the controller at `address` is, and who follows it.
    ///
    /// # Errors
    /// It doesn't answer.
    pub async fn standing(address: &str) -> Result<api::GetStandingResponse, ClientError> {
        let standing = route::standing(dial(address).await?).await;
        standing.map_err(|status| ClientError::of(status, address))
    }

    /// Creates a job.
    ///
    /// # Errors
    /// The controller refuses it or doesn't answer.
    pub async fn create_job(&self, spec: &JobSpec) -> Result<api::Job, ClientError> {
        let request = within(ANSWER, spec.into());
        let answer = self.rpc.clone().create_job(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Creates jobs, all of them or none.
    ///
    /// # Errors
    /// The controller refuses one of them, and with it all, or doesn't answer.
    pub async fn create_jobs(&self, specs: &[JobSpec]) -> Result<Vec<api::Job>, ClientError> {
        let jobs = specs.iter().map(Into::into).collect();
        let request = within(CREATE_ALL, api::CreateJobsRequest { jobs });
        let answer = self.rpc.clone().create_jobs(request).await;
        Ok(answer
            .map_err(|status| self.error(status))?
            .into_inner()
            .jobs)
    }

    /// All jobs, by id.
    ///
    /// # Errors
    /// The controller doesn't answer.
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

    /// One job.
    ///
    /// # Errors
    /// There is none of that name, or the controller doesn't answer.
    pub async fn job(&self, name: &str) -> Result<api::Job, ClientError> {
        let answer = self
            .rpc
            .clone()
            .get_job(within(ANSWER, api::GetJobRequest { name: name.into() }))
            .await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Deletes a job; returns the switches, by name, that lose what they have of it only when they
    /// are back.
    ///
    /// # Errors
    /// There is none of that name, or the controller doesn't answer.
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

    /// Gives a job other members, on these hosts in rank order; newcomers may take `join_wait` to join. Members that should stay and do not
    /// answer are left out, or else the change is called off then. With a `number` only where that is still the job's in packets: where its
    /// members are the ones from which the new ones were made. Answers when the new epoch is installed; [`Client::watch_job`] tells
    /// what follows.
    ///
    /// # Errors
    /// The controller refuses it or doesn't answer.
    pub async fn resize_job(
        &self,
        (job, number): (&str, Option<u32>),
        members: &[String],
        (join_wait, leave_out_lost): (Duration, bool),
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

    /// Takes a member's place away, for a `reason` that it is told, whichever epoch the job is in.
    ///
    /// # Errors
    /// The controller refuses it or doesn't answer.
    pub async fn evict(
        &self,
        job: &str,
        member: api::evict_member_request::Member,
        reason: &str,
    ) -> Result<api::Job, ClientError> {
        self.evict_seen((job, 0, 0), member, reason).await
    }

    /// The same, only where the job is in the epoch, and has the number in packets, in which the member was seen to be the one that is meant; 0
    /// where that is not said.
    ///
    /// # Errors
    /// The job is in another epoch by now, the controller refuses it or doesn't answer.
    pub async fn evict_seen(
        &self,
        (job, epoch, number): (&str, u32, u32),
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

    /// Calls off the change of a job's members that is on its way, if that is to `epoch`; 0 for any.
    ///
    /// # Errors
    /// There is none, or it is decided; the controller doesn't answer.
    pub async fn call_off_change(&self, job: &str, epoch: u32) -> Result<api::Job, ClientError> {
        let request = api::CallOffChangeRequest {
            job: job.into(),
            epoch,
        };
        let answer = self
            .rpc
            .clone()
            .call_off_change(within(ANSWER, request))
            .await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// The job as it is, and then whatever happens to its members, until it is deleted.
    ///
    /// # Errors
    /// There is no such job, or the controller doesn't answer.
    pub async fn watch_job(&self, name: &str) -> Result<JobWatch, ClientError> {
        let request = api::WatchJobRequest { name: name.into() };
        let stream = self.rpc.clone().watch_job(request).await;
        Ok(JobWatch {
            stream: stream.map_err(|status| self.error(status))?.into_inner(),
            client: self.clone(),
        })
    }

    /// Joins a job from `host`; `wait` is how long to wait for all other members, zero not at all. Where the connection breaks it asks again,
    /// whoever is primary then, for ten seconds, and so that it never has two ranks.
    ///
    /// # Errors
    /// No rank is left there, not all members came, or the controller doesn't answer.
    pub async fn join(
        &self,
        job: &str,
        host: &str,
        wait: Duration,
    ) -> Result<api::JoinResponse, ClientError> {
        let (begun, attempt) = (Instant::now(), rand::random_range(1..=u64::MAX));
        let (mut left, mut lost) = (wait, None);
        loop {
            let request = api::JoinRequest {
                job: job.into(),
                host: host.into(),
                wait_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX),
                attempt,
            };
            let request = within(left.saturating_add(ANSWER), request);
            let answer = self.rpc.clone().join(request).await;
            let error = match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => self.error(status),
            };
            let since = match lost {
                // It may have been given a rank of which it does not know.
                None if error.is_silence() => Instant::now(),
                Some(since) if error.is_passing() => since,
                _ => return Err(error),
            };
            if since.elapsed() >= JOIN_AGAIN {
                return Err(error);
            }
            lost = Some(since);
            tracing::debug!(%error, "asking for the rank again");
            tokio::time::sleep(PAUSE).await;
            // What is left of a time that was given is not none.
            let rest = wait.saturating_sub(begun.elapsed());
            left = rest.max(wait.min(Duration::from_millis(1)));
        }
    }

    /// Gives a rank up that was joined in `epoch`, in which the job has `number` in packets; 0 where that is not known.
    ///
    /// # Errors
    /// It had not joined, or the controller doesn't answer.
    pub async fn leave(
        &self,
        job: &str,
        (epoch, number): (u32, u32),
        rank: u32,
    ) -> Result<(), ClientError> {
        let request = api::LeaveRequest {
            job: job.into(),
            epoch,
            rank,
            job_id: number,
        };
        self.rpc
            .clone()
            .leave(within(ANSWER, request))
            .await
            .map_err(|status| self.error(status))?;
        Ok(())
    }

    /// What the job's switches have counted for it.
    ///
    /// # Errors
    /// There is no such job, or a switch or the controller doesn't answer.
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

    /// What the job's switches have counted for it, by port and by source too, and the lossy operations that they
    /// have told of.
    ///
    /// # Errors
    /// There is no such job, or a switch or the controller doesn't answer.
    pub async fn telemetry(&self, job: &str) -> Result<api::GetTelemetryResponse, ClientError> {
        let request = api::GetTelemetryRequest { job: job.into() };
        let answer = self
            .rpc
            .clone()
            .get_telemetry(within(ANSWER, request))
            .await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Watches what a job has lost, or each job, at these intervals.
    ///
    /// # Errors
    /// There is no such job, the interval is not one of 100 ms to 60 s, too many watch already, or the controller doesn't answer.
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

    /// The fabric's switches.
    ///
    /// # Errors
    /// The controller doesn't answer.
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

    /// What is linked to what.
    ///
    /// # Errors
    /// The controller doesn't answer.
    pub async fn fabric(&self) -> Result<api::GetFabricResponse, ClientError> {
        let request = within(ANSWER, api::GetFabricRequest {});
        let answer = self.rpc.clone().get_fabric(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// In what each switch is not as it should be.
    ///
    /// # Errors
    /// The controller doesn't answer.
    pub async fn diff_fabric(&self) -> Result<Vec<api::SwitchDiff>, ClientError> {
        let request = within(AUDIT, api::DiffFabricRequest {});
        let answer = self.rpc.clone().diff_fabric(request).await;
        let answer = answer.map_err(|status| self.error(status))?;
        Ok(answer.into_inner().switches)
    }

    /// Puts that right; returns what it was.
    ///
    /// # Errors
    /// The controller doesn't answer.
    pub async fn sync_fabric(&self) -> Result<Vec<api::SwitchDiff>, ClientError> {
        let request = within(AUDIT, api::SyncFabricRequest {});
        let answer = self.rpc.clone().sync_fabric(request).await;
        let answer = answer.map_err(|status| self.error(status))?;
        Ok(answer.into_inner().switches)
    }

    /// Has a switch's own software take the ports that the fabric's file gives it.
    ///
    /// # Errors
    /// There is no such switch, its ports cannot be told to it, it does not answer or refuses, or the controller doesn't answer.
    pub async fn configure_ports(&self, switch: &str) -> Result<(), ClientError> {
        let request = api::ConfigurePortsRequest {
            switch: switch.into(),
        };
        // The switch may take all of its time.
        let request = within(chassis_push::PATIENCE + ANSWER, request);
        let answer = self.rpc.clone().configure_ports(request).await;
        answer.map(drop).map_err(|status| self.error(status))
    }

    /// What deleting jobs, by name, then resizing some and creating others would do.
    ///
    /// # Errors
    /// There is none of those that are to be deleted, or the controller doesn't answer. Where one cannot be created the answer says so.
    pub async fn plan_jobs(
        &self,
        delete: &[String],
        resize: Vec<api::ResizeJobRequest>,
        create: &[JobSpec],
    ) -> Result<api::PlanResponse, ClientError> {
        let request = api::PlanJobsRequest {
            delete: delete.to_vec(),
            resize,
            create: create.iter().map(Into::into).collect(),
        };
        let answer = self.rpc.clone().plan_jobs(within(AUDIT, request)).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// What starting the controller with another fabric's file would do.
    ///
    /// # Errors
    /// It would not start, or the controller doesn't answer.
    pub async fn plan_fabric(&self, yaml: &str) -> Result<api::PlanResponse, ClientError> {
        let yaml = yaml.to_owned();
        let request = within(AUDIT, api::PlanFabricRequest { yaml });
        let answer = self.rpc.clone().plan_fabric(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// Moves everything off a part of the fabric, or lets it be used again; returns its full name, and the switches that are not known to have
    /// the new ways.
    ///
    /// # Errors
    /// There is no such part, or the controller doesn't answer.
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
            part: part.to_owned(),
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

    /// Finds out where a job's packets stop; takes some seconds where much is broken.
    ///
    /// # Errors
    /// There is no such job, or a switch or the controller doesn't answer.
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
            ClientError::NoAnswer { address, reason } if self.is_of_several => {
                let addresses = address;
                ClientError::LostPrimary { addresses, reason }
            }
            error => error,
        }
    }
}

impl ClientError {
    /// What a call to the controller at `address` gave.
    pub(crate) fn of(status: Status, address: &str) -> ClientError {
        let sources = || iter::successors(status.source(), |error| (*error).source());
        // The way to a primary was not found.
        if let Some(error) = sources().find_map(|it| it.downcast_ref::<ClientError>()) {
            return error.clone();
        }
        match status.source() {
            // Made here, not there: the transport failed.
            Some(source) => ClientError::NoAnswer {
                address: address.to_owned(),
                reason: root_cause(source),
            },
            None => {
                let is_over = status.metadata().contains_key(EPOCH_OVER);
                let (code, message) = (status.code(), status.message().to_owned());
                match code {
                    Code::OutOfRange if is_over => ClientError::EpochOver { message },
                    Code::OutOfRange => ClientError::TooLong {
                        address: address.to_owned(),
                        reason: message,
                    },
                    // Nobody there has said so: the request is not known.
                    Code::Unimplemented if message.is_empty() => ClientError::Refused {
                        code,
                        message: format!(
                            "the controller at {address} does not know this request; it is of an older version, or none of Ultima's"
                        ),
                        field: None,
                    },
                    _ => ClientError::Refused {
                        code,
                        message,
                        field: field_of(&status).map(Box::new),
                    },
                }
            }
        }
    }
}

/// The field of a request that a status is about. There is never more than one: the first problem is told.
fn field_of(status: &Status) -> Option<FieldProblem> {
    let violation = status
        .get_details_bad_request()?
        .field_violations
        .into_iter()
        .next()?;
    Some(FieldProblem {
        field: violation.field,
        problem: violation.description,
    })
}
