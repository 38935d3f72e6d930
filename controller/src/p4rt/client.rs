//! The P4Runtime client of one switch, as its primary.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::{ConstantBuilder, Retryable as _};
use futures_util::stream;
use futures_util::{StreamExt as _, TryFutureExt as _};
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use ultima_p4runtime::batch;
use ultima_p4runtime::v1::p4_runtime_client::P4RuntimeClient;
use ultima_p4runtime::v1::{
    self, CapabilitiesRequest, DigestList, Entity, ForwardingPipelineConfig, ReadRequest,
    SetForwardingPipelineConfigRequest, Uint128, Update, WriteRequest, forwarding_pipeline_config,
    get_forwarding_pipeline_config_request::ResponseType, set_forwarding_pipeline_config_request,
    write_request,
};
use ultima_planner::program::Program;

use super::call::{BATCH, CALL_TIMEOUT, is_from_there};
use super::change_deadline::ChangeDeadline;
use super::device::Device;
use super::dial::{self, ARBITRATION, Deadline, READ, RETRY, is_later};
use super::error::{ConnectError, RpcError, WriteError, failed};
use super::heartbeat::{BEAT, MISSES, silence};
use super::owner::{Checks, Owner};
use super::program;
use super::session::{Mastership, Session};
use super::unanswered::Unanswered;
use crate::metrics::Metrics;

/// The most entities of one read: more than all tables, groups and counters of a program have
/// together.
const MOST_READ: usize = 1 << 20;
/// The most bytes of one read: twice those of all entities of Ultima's program.
const MOST_READ_BYTES: usize = 512 << 20;
/// Timeout of installing a program. BMv2 takes well under a second for Ultima's; a Tofino is reset
/// with all its ports.
const PIPELINE_TIMEOUT: Duration = Duration::from_secs(60);
/// Batches in flight to a switch if their order does not matter, so that the next one arrives while
/// the switch works on one.
pub(crate) const IN_FLIGHT: usize = 4;

/// The options of calls over a connection.
#[derive(Clone, Debug)]
struct CallOptions {
    /// Updates per call.
    batch: usize,
    /// Timeout after which a write is abandoned; none for the timeout of any call.
    write_timeout: Option<Duration>,
    /// When all calls are abandoned because others wait.
    deadline: Option<ChangeDeadline>,
}

impl Default for CallOptions {
    fn default() -> Self {
        CallOptions {
            batch: BATCH,
            write_timeout: None,
            deadline: None,
        }
    }
}

/// The order of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each batch is sent after the previous one is done.
    AsGiven,
    /// The updates do not depend on each other: several batches are in flight, and the switch may
    /// apply them in any order (P4Runtime orders no calls).
    Any,
}

/// The result of a batch.
enum BatchResult {
    /// All updates are applied.
    Written,
    /// Some updates were rejected: one result for each.
    Refused(Vec<v1::Error>),
    /// The call failed.
    Failed(RpcError),
    /// An earlier batch failed.
    NotSent,
}

/// A connection to a switch as its primary. Dropping it ends the primary role.
pub struct SwitchClient {
    device: Device,
    election_id: u128,
    rpc: P4RuntimeClient<Channel>,
    session: Arc<Session>,
    metrics: Metrics,
    unanswered: Unanswered,
    options: CallOptions,
    /// True if a call was abandoned because others waited.
    has_abandoned: AtomicBool,
    /// The store whose jobs it writes; none for a client that writes no jobs of a store.
    owner: Option<Owner>,
}

impl SwitchClient {
    /// Connects to `device` and becomes its primary. Retries for `limit`, because the switch may just
    /// be starting.
    ///
    /// # Errors
    /// The last attempt's error, after `limit`; at once if the switch rejects the connection for
    /// any reason but an election id in use.
    pub async fn connect(
        device: Device,
        election_id: u128,
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let deadline = Deadline::after(limit);
        Self::connect_by(device, election_id, Checks::default(), deadline).await
    }

    /// Like [`connect`](Self::connect) until a deadline, if the switch passes `checks`.
    pub(crate) async fn connect_by(
        device: Device,
        election_id: u128,
        Checks { owner, cookie }: Checks,
        deadline: Deadline,
    ) -> Result<Self, ConnectError> {
        let mut rpc = dial::connect(&device, deadline).await?;
        if let Some(cookie) = cookie {
            let program = program::foreign(&mut rpc, device.device_id, cookie);
            match timeout_at(deadline.at, program).await {
                Ok(Ok(Some(program))) => {
                    return Err(ConnectError::foreign_program(&device, program));
                }
                // Arbitration reports a broken connection, and a later read any other error.
                Ok(Ok(None) | Err(_)) => {}
                Err(_) => return Err(dial::no_answer(&device, deadline, READ.into())),
            }
        }
        if let Some(owner) = owner {
            let count = owner.count_foreign(&mut rpc, device.device_id);
            match timeout_at(deadline.at, count).await {
                Ok(Ok(0)) => {}
                Ok(Ok(jobs)) => return Err(ConnectError::foreign(&device, jobs)),
                Ok(Err(status)) => return Err(dial::refused(&device, &status)),
                Err(_) => return Err(dial::no_answer(&device, deadline, READ.into())),
            }
        }
        let arbitrate = || async {
            let mut rpc = rpc.clone();
            let arbitration = dial::arbitrate(&mut rpc, device.device_id, election_id);
            match timeout_at(deadline.at, arbitration).await {
                Ok(answer) => answer.map_err(Some),
                Err(_) => Err(None),
            }
        };
        let mut said = None;
        // Another stream has this election id (P4Runtime §5.3). It may be the stream of a crashed
        // controller, which switches notice late.
        let is_taken = |error: &Option<Status>| {
            let status = error.as_ref();
            let status = status.filter(|it| it.code() == Code::InvalidArgument);
            said = status.cloned().or(said.take());
            status.is_some() && Instant::now() + RETRY < deadline.at
        };
        let pauses = ConstantBuilder::new().with_delay(RETRY).without_max_times();
        let stream = match arbitrate.retry(pauses).when(is_taken).await {
            Ok(stream) => stream,
            // Prefers the switch's last answer to a timeout of the final attempt.
            Err(error) => match error.or(said) {
                Some(status) => return Err(dial::refused(&device, &status)),
                None => return Err(dial::no_answer(&device, deadline, ARBITRATION.into())),
            },
        };
        let Device { name, grpc, .. } = &device;
        let (switch, grpc) = (name.clone(), grpc.clone());
        Err(match stream.mastership.clone() {
            Mastership::Primary => {
                let election_id = stream.election_id;
                let mut session = Session::start(stream);
                session.mark_lost_after(silent(rpc.clone()));
                return Ok(SwitchClient {
                    device,
                    election_id,
                    rpc,
                    session: Arc::new(session),
                    metrics: Metrics::default(),
                    // `recording_unanswered` replaces it.
                    unanswered: Unanswered::new(CALL_TIMEOUT),
                    options: CallOptions::default(),
                    has_abandoned: AtomicBool::new(false),
                    owner: None,
                });
            }
            Mastership::Backup { highest, .. } | Mastership::Vacant { highest }
                if is_later(highest, election_id) =>
            {
                let revision = (highest >> 64) as u64;
                ConnectError::Superseded {
                    switch,
                    grpc,
                    revision,
                }
            }
            Mastership::Backup { message, .. } => ConnectError::NotPrimary {
                switch,
                grpc,
                message,
            },
            Mastership::Vacant { .. } => ConnectError::NotPrimary {
                switch,
                grpc,
                message: "it has no primary and accepts none".into(),
            },
            Mastership::Lost { reason } => ConnectError::Refused {
                switch,
                grpc,
                message: reason,
            },
        })
    }

    /// Returns the client with its writes counted in these metrics.
    pub fn measured(mut self, metrics: Metrics) -> Self {
        metrics.export_writes(&self.device.name);
        self.metrics = metrics;
        self
    }

    /// Returns the client with the jobs that it writes marked as this store's.
    pub(crate) fn marking(mut self, owner: Option<Owner>) -> Self {
        self.owner = owner;
        self
    }

    /// Returns the client with writes of unknown result recorded here.
    pub(crate) fn recording_unanswered(mut self, unanswered: Unanswered) -> Self {
        self.unanswered = unanswered;
        self
    }

    /// Returns the same connection for a change that others wait for. When they have waited too
    /// long, the current call and all later ones are abandoned, and the switch needs a resync.
    pub fn with_deadline(&self, deadline: ChangeDeadline) -> Self {
        let options = CallOptions {
            deadline: Some(deadline),
            ..self.options.clone()
        };
        self.with_options(options)
    }

    /// Returns the same connection with short timeouts: calls have at most `batch` updates, and a
    /// call without an answer within `write_timeout` is abandoned, with all later ones.
    pub fn with_limits(&self, batch: usize, write_timeout: Duration) -> Self {
        let options = CallOptions {
            batch: batch.clamp(1, BATCH),
            write_timeout: Some(write_timeout),
            ..self.options.clone()
        };
        self.with_options(options)
    }

    fn with_options(&self, options: CallOptions) -> Self {
        SwitchClient {
            device: self.device.clone(),
            election_id: self.election_id,
            rpc: self.rpc.clone(),
            session: Arc::clone(&self.session),
            metrics: self.metrics.clone(),
            unanswered: self.unanswered.clone(),
            options,
            has_abandoned: AtomicBool::new(false),
            owner: self.owner,
        }
    }

    /// The connected device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The client's role at the switch, and its changes.
    pub fn mastership(&self) -> watch::Receiver<Mastership> {
        self.session.mastership()
    }

    /// Marks the connection as lost, for a reason.
    pub fn mark_lost(&self, reason: String) {
        self.session.mark_lost(reason);
    }

    /// The switch's digests, already acknowledged; none if called a second time.
    pub fn digests(&self) -> Option<mpsc::Receiver<DigestList>> {
        self.session.digests()
    }

    /// The number of digest lists dropped because too many others waited to be read.
    pub fn digest_lists_dropped(&self) -> u64 {
        self.session.digest_lists_dropped()
    }

    /// Verifies and commits a program, which clears all tables.
    ///
    /// # Errors
    /// The switch rejects the program, or the call fails.
    pub async fn set_pipeline(&self, program: &Program) -> Result<(), RpcError> {
        use set_forwarding_pipeline_config_request::Action;
        let cookie = program.cookie();
        let request = SetForwardingPipelineConfigRequest {
            device_id: self.device.device_id,
            election_id: Some(Uint128::from(self.election_id)),
            action: Action::VerifyAndCommit.into(),
            config: Some(ForwardingPipelineConfig {
                p4info: Some(program.names().p4info().clone()),
                p4_device_config: program.device_config(self.device.packing),
                cookie: Some(forwarding_pipeline_config::Cookie { cookie }),
            }),
            ..Default::default()
        };
        let mut rpc = self.rpc.clone();
        let set = self
            .unanswered
            .sent(rpc.set_forwarding_pipeline_config(request));
        let answer = self.answered_within(PIPELINE_TIMEOUT, set).await;
        answer.map(drop)
    }

    /// The cookie of the current program; none if there is no program or no cookie.
    ///
    /// # Errors
    /// The call fails.
    pub async fn pipeline_cookie(&self) -> Result<Option<u64>, RpcError> {
        let (mut rpc, id) = (self.rpc.clone(), self.device.device_id);
        let config = program::read(&mut rpc, id, ResponseType::CookieOnly);
        let config = self.answered(config.map_ok(Response::new)).await?;
        Ok(config.and_then(|it| it.cookie).map(|it| it.cookie))
    }

    /// See [`program::foreign`].
    ///
    /// # Errors
    /// The call fails.
    pub async fn foreign_program(&self, own: u64) -> Result<Option<String>, RpcError> {
        let (mut rpc, id) = (self.rpc.clone(), self.device.device_id);
        let foreign = program::foreign(&mut rpc, id, own);
        self.answered(foreign.map_ok(Response::new)).await
    }

    /// Writes `updates` in as many batches as needed. Each update is tried, whatever the others'
    /// results (CONTINUE_ON_ERROR, BMv2's only mode).
    ///
    /// # Errors
    /// An update failed. Batches that were not in flight by then are not sent; their updates get
    /// ABORTED.
    pub async fn write(&self, updates: Vec<Update>, order: Order) -> Result<(), WriteError> {
        let has_failed = AtomicBool::new(false);
        let batches = updates.chunks(self.options.batch);
        let batches: Vec<_> = batches
            .map(|batch| self.write_unless_failed(batch, &has_failed))
            .collect();
        let in_flight = match order {
            Order::AsGiven => 1,
            Order::Any => IN_FLIGHT,
        };
        let answers = stream::iter(batches).buffered(in_flight);
        outcome_of(answers.collect().await)
    }

    /// Writes a batch, unless an earlier one has failed.
    async fn write_unless_failed<'a>(
        &self,
        batch: &'a [Update],
        has_failed: &AtomicBool,
    ) -> (&'a [Update], BatchResult) {
        let answer = match has_failed.load(Ordering::Relaxed) {
            true => BatchResult::NotSent,
            false => self.write_batch(batch).await,
        };
        has_failed.fetch_or(!matches!(answer, BatchResult::Written), Ordering::Relaxed);
        (batch, answer)
    }

    async fn write_batch(&self, batch: &[Update]) -> BatchResult {
        let mut updates = batch.to_vec();
        if let Some(owner) = &self.owner {
            owner.mark(&mut updates);
        }
        let request = WriteRequest {
            device_id: self.device.device_id,
            election_id: Some(Uint128::from(self.election_id)),
            updates,
            atomicity: write_request::Atomicity::ContinueOnError.into(),
            ..Default::default()
        };
        let begun = Instant::now().into_std();
        let mut rpc = self.rpc.clone();
        let write = self.unanswered.sent(rpc.write(request));
        let write_timeout = after(self.options.write_timeout);
        let answer = self
            .answered_unless(write_timeout, CALL_TIMEOUT, write)
            .await;
        let is_answered = answer.is_ok();
        let switch = &self.device.name;
        (self.metrics).written(switch, begun, batch.len(), is_answered);
        match answer {
            Ok(_) => BatchResult::Written,
            Err(RpcError::Status(status)) => match batch::outcomes(&status) {
                Some(outcomes) if describes(&outcomes, batch) => BatchResult::Refused(outcomes),
                _ => BatchResult::Failed(RpcError::Status(status)),
            },
            Err(error) => BatchResult::Failed(error),
        }
    }

    /// Reads all entities that match one of `entities`.
    ///
    /// # Errors
    /// The call fails.
    pub async fn read(&self, entities: Vec<Entity>) -> Result<Vec<Entity>, RpcError> {
        let request = ReadRequest {
            device_id: self.device.device_id,
            entities,
            ..Default::default()
        };
        let mut rpc = self.rpc.clone();
        let all = async move {
            let mut responses = rpc.read(request).await?.into_inner();
            let (mut read, mut bytes) = (Vec::new(), 0);
            while let Some(response) = responses.message().await? {
                bytes += response.encoded_len();
                if bytes > MOST_READ_BYTES {
                    let text = format!("the answer exceeds {MOST_READ_BYTES} bytes");
                    return Err(Status::resource_exhausted(text));
                }
                read.extend(response.entities);
                if read.len() > MOST_READ {
                    let text = format!("the answer exceeds {MOST_READ} entities");
                    return Err(Status::resource_exhausted(text));
                }
            }
            Ok(Response::new(read))
        };
        self.answered(all).await.map_err(RpcError::of_read)
    }

    /// Waits for a call's answer while the connection lasts. After a timeout the connection counts
    /// as lost, so that no later call waits as long again.
    async fn answered<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        self.answered_within(CALL_TIMEOUT, call).await
    }

    async fn answered_within<T>(
        &self,
        most: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        self.answered_unless(pending(), most, call).await
    }

    /// Like [`answered`](Self::answered), but abandons the call when `write_timeout` completes.
    async fn answered_unless<T>(
        &self,
        write_timeout: impl Future<Output = ()>,
        most: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, RpcError> {
        if let Some(reason) = self.session.is_lost() {
            return Err(RpcError::Lost(reason));
        }
        if self.has_abandoned.load(Ordering::Relaxed)
            || self
                .options
                .deadline
                .as_ref()
                .is_some_and(ChangeDeadline::has_passed)
        {
            return Err(RpcError::Abandoned);
        }
        let deadline = async {
            match &self.options.deadline {
                Some(deadline) => deadline.passed().await,
                None => pending().await,
            }
        };
        let gives_up = async {
            tokio::select! {
                () = deadline => {}
                () = write_timeout => {}
            }
        };
        tokio::select! {
            biased;
            answer = timeout(most, call) => match answer {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(RpcError::Status(status)),
                Err(_) => {
                    let error = RpcError::Timeout(most);
                    self.session.mark_lost(error.to_string());
                    Err(error)
                }
            },
            reason = self.session.lost() => Err(RpcError::Lost(reason)),
            () = gives_up => {
                self.has_abandoned.store(true, Ordering::Relaxed);
                Err(RpcError::Abandoned)
            }
        }
    }
}

/// Completes after a time; never for none.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// Completes with a message when a switch stops answering.
async fn silent(rpc: P4RuntimeClient<Channel>) -> String {
    silence(|| is_there(rpc.clone())).await;
    format!("no answer for {} ms", (BEAT * MISSES).as_millis())
}

/// Asks a switch for an answer of any kind. Returns true for an error, too.
async fn is_there(mut rpc: P4RuntimeClient<Channel>) -> bool {
    match rpc.capabilities(CapabilitiesRequest::default()).await {
        Ok(_) => true,
        Err(status) => is_from_there(&status),
    }
}

/// The result of a write from its batches' results.
fn outcome_of(answers: Vec<(&[Update], BatchResult)>) -> Result<(), WriteError> {
    let is_whole = |answer: &BatchResult| matches!(answer, BatchResult::Written);
    if answers.iter().all(|(_, answer)| is_whole(answer)) {
        return Ok(());
    }
    let has_done =
        |answer: &BatchResult| matches!(answer, BatchResult::Written | BatchResult::Refused(_));
    let some_done = answers.iter().any(|(_, answer)| has_done(answer));
    let mut all = Vec::new();
    for (batch, answer) in answers {
        let same = |outcome: v1::Error| vec![outcome; batch.len()];
        all.extend(match answer {
            BatchResult::Written => same(batch::success()),
            BatchResult::Refused(outcomes) => outcomes,
            BatchResult::NotSent => same(batch::failure(Code::Aborted, "not sent")),
            // No update of this batch was applied, but some of others were.
            BatchResult::Failed(RpcError::Status(status))
                if some_done && !RpcError::Status(status.clone()).is_uncertain() =>
            {
                same(batch::failure(status.code(), status.message()))
            }
            BatchResult::Failed(error) => return Err(error.into()),
        });
    }
    Err(WriteError::Updates(all))
}

/// True if the results of a failed batch are plausible: one for each update, and at least one
/// failure.
fn describes(outcomes: &[v1::Error], batch: &[Update]) -> bool {
    outcomes.len() == batch.len() && outcomes.iter().any(failed)
}
