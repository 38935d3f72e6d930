//! The P4Runtime service, with injected faults.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status, Streaming};
use ultima_p4runtime::v1::get_forwarding_pipeline_config_request::ResponseType;
use ultima_p4runtime::v1::*;
use ultima_p4runtime::{batch, rpc};

use super::{Answers, Call, Done, Fault, Hanging, Hangs, State, Wires, cut_all, emulate};
use crate::target::Target;
use crate::testbed::TIMERS;

/// The latency of [`Fault::Delay`].
const LATE: Duration = Duration::from_millis(100);

/// The longest latency of [`Fault::Hang`]: longer than a reroute waits for a change, or for its own call.
fn hang() -> Duration {
    let limit = TIMERS.change.max(TIMERS.reroute_call);
    limit.mul_f64(rand::random_range(1.2..2.0))
}

/// The time from a client's end of a call to the end of a write that hangs.
const AFTER: Duration = Duration::from_millis(30);

/// Completes when the client has given up a call: the server drops the other end.
struct GivenUp(Option<oneshot::Receiver<()>>);

impl GivenUp {
    /// Both ends; the call keeps the first.
    fn pair() -> (oneshot::Sender<()>, GivenUp) {
        let (call, ended) = oneshot::channel();
        (call, GivenUp(Some(ended)))
    }

    async fn wait(&mut self) {
        if let Some(ended) = &mut self.0 {
            // Nothing is ever sent.
            let _ = ended.await;
        }
        self.0 = None;
    }
}

/// The message of injected errors.
const ON_PURPOSE: &str = "on purpose";

/// The number of updates on all switches.
static NOW: AtomicU64 = AtomicU64::new(0);

#[derive(Clone)]
pub struct Service {
    pub target: Target,
    pub state: Arc<Mutex<State>>,
    pub hanging: Hanging,
    pub wires: Wires,
}

/// An entity's key.
fn key(entity: &Entity) -> Vec<u8> {
    let mut key = entity.clone();
    match &mut key.entity {
        Some(entity::Entity::TableEntry(entry)) => {
            entry.action = None;
            entry.metadata.clear();
        }
        Some(entity::Entity::PacketReplicationEngineEntry(entry)) => {
            use packet_replication_engine_entry::Type;
            match entry.r#type.as_mut().unwrap() {
                Type::MulticastGroupEntry(group) => group.replicas.clear(),
                Type::CloneSessionEntry(session) => session.replicas.clear(),
            }
        }
        Some(entity::Entity::DigestEntry(digest)) => digest.config = None,
        other => panic!("the controller writes no {other:?}"),
    }
    key.encode_to_vec()
}

impl State {
    /// A client is not primary just because the previous one has gone (P4Runtime §5.3).
    fn primary(&self) -> Option<u128> {
        let mut ids = self.elections.values().map(|(id, _)| *id);
        ids.any(|id| id == self.highest).then_some(self.highest)
    }

    /// Loses all state, election ids included.
    pub fn forget(&mut self) {
        self.pipeline = None;
        self.held.clear();
        self.cells.clear();
        self.meters.clear();
        self.elections.clear();
        self.highest = 0;
        self.emptied += 1;
        self.restarts += 1;
    }

    /// Applies a new program as BMv2 does: tables and digests are emptied, groups stay.
    pub fn empty(&mut self) {
        let stays = |entity: &Entity| {
            let entity = entity.entity.as_ref();
            matches!(
                entity,
                Some(entity::Entity::PacketReplicationEngineEntry(_))
            )
        };
        self.held.retain(|_, entity| stays(entity));
        self.meters.clear();
        self.emptied += 1;
    }

    /// True if such updates are refused.
    fn refuses(&self, update: &Update) -> bool {
        let entity = update.entity.as_ref().and_then(|it| it.entity.as_ref());
        let (Some((kind, value)), Some(entity::Entity::TableEntry(entry))) =
            (&self.refuses, entity)
        else {
            return false;
        };
        let is_it = |field: &field_match::FieldMatchType| matches!(field, field_match::FieldMatchType::Exact(it) if it.value == *value);
        let mut fields = entry.r#match.iter().flat_map(|it| &it.field_match_type);
        update.r#type() == *kind && fields.any(is_it)
    }

    /// Counts a call, and returns its fault.
    fn begin(&mut self, call: Call) -> Option<Fault> {
        let seen = self.calls.entry(call).or_default();
        let place = (call, *seen);
        *seen += 1;
        self.faults.remove(&place)
    }

    fn apply(&mut self, target: Target, mut update: Update) -> Error {
        if let Err(refusal) = emulate::admit(target, self, &mut update) {
            return batch::failure(refusal.code, refusal.to_string());
        }
        let entity = update.entity.clone().unwrap();
        if let Some(entity::Entity::CounterEntry(cell)) = &entity.entity {
            let index = cell.index.unwrap().index;
            self.cells.insert((cell.counter_id, index), entity);
            return batch::success();
        }
        if let Some(entity::Entity::MeterEntry(cell)) = &entity.entity {
            let place = (cell.meter_id, cell.index.unwrap().index);
            match cell.config {
                Some(config) => self.meters.insert(place, config),
                None => self.meters.remove(&place),
            };
            return batch::success();
        }
        let key = key(&entity);
        self.log.push(Done {
            at: NOW.fetch_add(1, Ordering::Relaxed),
            kind: update.r#type(),
            key: key.clone(),
        });
        match update.r#type() {
            update::Type::Insert if self.held.contains_key(&key) => {
                batch::failure(Code::AlreadyExists, "it is there already")
            }
            update::Type::Insert => {
                self.held.insert(key, entity);
                batch::success()
            }
            update::Type::Modify if self.held.contains_key(&key) => {
                self.held.insert(key, entity);
                batch::success()
            }
            update::Type::Modify => batch::failure(Code::NotFound, "it is not there"),
            update::Type::Delete => match self.held.remove(&key) {
                Some(_) => batch::success(),
                None => batch::failure(Code::NotFound, "it is not there"),
            },
            other => batch::failure(Code::InvalidArgument, format!("{other:?}")),
        }
    }
}

impl State {
    /// The entities that match `wanted`.
    fn find(&self, wanted: &Entity) -> Result<Vec<Entity>, Status> {
        use packet_replication_engine_entry::Type;
        let held = |is: &dyn Fn(&entity::Entity) -> bool| {
            let held = self.held.values();
            let found = held.filter(|held| held.entity.as_ref().is_some_and(is));
            found.cloned().collect()
        };
        Ok(match wanted.entity.as_ref().unwrap() {
            entity::Entity::TableEntry(wanted) => held(
                &|it| matches!(it, entity::Entity::TableEntry(it) if it.table_id == wanted.table_id),
            ),
            entity::Entity::PacketReplicationEngineEntry(wanted) => {
                let groups = matches!(wanted.r#type, Some(Type::MulticastGroupEntry(_)));
                held(&|it| match it {
                    entity::Entity::PacketReplicationEngineEntry(it) => {
                        matches!(it.r#type, Some(Type::MulticastGroupEntry(_))) == groups
                    }
                    _ => false,
                })
            }
            entity::Entity::DigestEntry(wanted) => {
                let found: Vec<Entity> = held(
                    &|it| matches!(it, entity::Entity::DigestEntry(it) if it.digest_id == wanted.digest_id),
                );
                // As on BMv2.
                if found.is_empty() {
                    return Err(Status::not_found("no client has subscribed to it"));
                }
                found
            }
            entity::Entity::CounterEntry(cell) => {
                let index = cell.index.unwrap().index;
                self.cells
                    .get(&(cell.counter_id, index))
                    .cloned()
                    .into_iter()
                    .collect()
            }
            entity::Entity::MeterEntry(wanted) => {
                let of = self
                    .meters
                    .range((wanted.meter_id, 0)..(wanted.meter_id + 1, 0));
                let cell = |(&(meter_id, index), config): (&(u32, i64), &MeterConfig)| MeterEntry {
                    meter_id,
                    index: Some(Index { index }),
                    config: Some(*config),
                    counter_data: None,
                };
                of.map(|it| cell(it).into()).collect()
            }
            other => return Err(Status::unimplemented(format!("{other:?}"))),
        })
    }
}

impl Service {
    /// Waits while this is true.
    async fn stall(&self, is_so: impl Fn(&State) -> bool) {
        while is_so(&self.state.lock().unwrap()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits as a hanging call. The call hangs until the returned guard is dropped. It fails if the switch lost all state
    /// meanwhile.
    /// A write also ends soon after its client has given it up.
    async fn hang(&self, call: Option<&mut GivenUp>) -> Result<Hangs, Status> {
        let hangs = self.hanging.begin();
        let life = self.state.lock().unwrap().restarts;
        let given_up = async {
            match call {
                Some(call) => call.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(hang()) => {}
            () = given_up => tokio::time::sleep(AFTER).await,
        }
        self.stall(|state| state.keeps_hanging).await;
        match self.state.lock().unwrap().restarts == life {
            true => Ok(hangs),
            false => Err(Status::unavailable(ON_PURPOSE)),
        }
    }

    /// Ends hanging calls after a read if that is asked for ([`State::is_late_to_read`]).
    async fn end_hanging(&self) {
        let is_late = {
            let mut state = self.state.lock().unwrap();
            state.keeps_hanging &= !state.is_late_to_read;
            std::mem::take(&mut state.is_late_to_read)
        };
        while is_late && self.hanging.any() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Counts a call and applies faults that come before it. Returns the fault that comes after it.
    async fn before(&self, call: Call) -> Result<Option<Fault>, Status> {
        let fault = self.state.lock().unwrap().begin(call);
        match fault {
            Some(Fault::Hang) => drop(self.hang(None).await?),
            Some(Fault::Refuse) => return Err(Status::resource_exhausted(ON_PURPOSE)),
            Some(Fault::Disconnect) => return Err(self.break_off()),
            Some(Fault::Forget) => {
                self.state.lock().unwrap().forget();
                return Err(self.break_off());
            }
            _ => {}
        }
        Ok(fault)
    }

    /// Applies a fault that comes between a call and its answer.
    async fn after(&self, fault: Option<Fault>) -> Result<(), Status> {
        match fault {
            Some(Fault::Delay) => tokio::time::sleep(LATE).await,
            Some(Fault::HalfApply) => return Err(Status::unknown(ON_PURPOSE)),
            Some(Fault::DoAndDisconnect) => return Err(self.break_off()),
            _ => {}
        }
        Ok(())
    }

    /// Applies a batch in its order, and returns the result of each update.
    async fn update_all(
        &self,
        updates: Vec<Update>,
        mut call: GivenUp,
    ) -> Result<Vec<Error>, Status> {
        let mut outcomes = Vec::new();
        let mut hanging = Vec::new();
        for update in updates {
            let fault = {
                let mut state = self.state.lock().unwrap();
                let refused = state.refuses(&update).then_some(Fault::Refuse);
                state.begin(Call::Update).or(refused)
            };
            if fault == Some(Fault::Hang) {
                hanging.push(self.hang(Some(&mut call)).await?);
            }
            match fault {
                Some(Fault::Refuse) => {
                    outcomes.push(batch::failure(Code::ResourceExhausted, ON_PURPOSE));
                    continue;
                }
                Some(Fault::Disconnect) => return Err(self.break_off()),
                Some(Fault::Forget) => {
                    self.state.lock().unwrap().forget();
                    return Err(self.break_off());
                }
                _ => outcomes.push(self.state.lock().unwrap().apply(self.target, update)),
            }
            self.after(fault).await?;
        }
        Ok(outcomes)
    }

    async fn set_pipeline(
        &self,
        request: SetForwardingPipelineConfigRequest,
    ) -> Result<(), Status> {
        let fault = self.before(Call::SetPipeline).await?;
        {
            let mut state = self.state.lock().unwrap();
            if request.election_id.as_ref().map(u128::from) != state.primary() {
                return Err(Status::permission_denied("not primary"));
            }
            emulate::check_pipeline(self.target, &request)?;
            let is_whole = fault != Some(Fault::HalfApply);
            state.pipeline = request.config.filter(|_| is_whole);
            state.empty();
        }
        self.after(fault).await
    }

    /// Breaks all connections. No wire passes on the status that this returns.
    fn break_off(&self) -> Status {
        cut_all(&self.wires);
        Status::unavailable(ON_PURPOSE)
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl p4_runtime_server::P4Runtime for Service {
    type ReadStream = Responses<ReadResponse>;
    type StreamChannelStream = Responses<StreamMessageResponse>;

    async fn write(
        &self,
        request: Request<WriteRequest>,
    ) -> Result<Response<WriteResponse>, Status> {
        let request = request.into_inner();
        self.state.lock().unwrap().stalled_writes += 1;
        self.stall(|state| state.stalls_writes).await;
        self.state.lock().unwrap().stalled_writes -= 1;
        let election_id = request.election_id.as_ref().map(u128::from);
        if election_id != self.state.lock().unwrap().primary() {
            return Err(Status::permission_denied("not primary"));
        }
        // Some servers complete a write whose client has gone.
        let service = self.clone();
        let (_call, given_up) = GivenUp::pair();
        let updates = async move { service.update_all(request.updates, given_up).await };
        let outcomes = tokio::spawn(updates).await.expect("it does not panic")?;
        match outcomes
            .iter()
            .all(|outcome| outcome.canonical_code == Code::Ok as i32)
        {
            true => Ok(Response::new(WriteResponse {})),
            false => Err(batch::status(&outcomes)),
        }
    }

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        self.stall(|state| state.stalls_reads).await;
        let fault = self.before(Call::Read).await?;
        let mut entities = {
            let state = self.state.lock().unwrap();
            if state.pipeline.is_none() {
                return Err(Status::failed_precondition("no program yet"));
            }
            let mut entities = Vec::new();
            for wanted in request.into_inner().entities {
                emulate::check_read(self.target, &wanted)?;
                entities.extend(state.find(&wanted)?);
            }
            entities
        };
        self.end_hanging().await;
        let broken = match fault {
            Some(Fault::HalfApply) => {
                entities.truncate(entities.len() / 2);
                Some(Err(Status::unknown(ON_PURPOSE)))
            }
            fault => {
                self.after(fault).await?;
                None
            }
        };
        let responses = [Ok(ReadResponse { entities })].into_iter().chain(broken);
        Ok(Response::new(Box::pin(tokio_stream::iter(responses))))
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        let request = request.into_inner();
        self.stall(|state| state.stalls_pipelines).await;
        let service = self.clone();
        let set = async move { service.set_pipeline(request).await };
        tokio::spawn(set).await.expect("it does not panic")?;
        Ok(Response::new(SetForwardingPipelineConfigResponse {}))
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        let fault = self.before(Call::GetPipeline).await?;
        let has_p4info = request.into_inner().response_type() == ResponseType::P4infoAndCookie;
        let config = {
            let state = self.state.lock().unwrap();
            let config = state.pipeline.as_ref();
            let none = || Status::failed_precondition("no program yet");
            let config = config.ok_or_else(none)?;
            Some(ForwardingPipelineConfig {
                cookie: config.cookie,
                p4info: config.p4info.clone().filter(|_| has_p4info),
                ..Default::default()
            })
        };
        self.after(fault).await?;
        Ok(Response::new(GetForwardingPipelineConfigResponse {
            config,
        }))
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        let mut requests = request.into_inner();
        let (responses, outgoing) = mpsc::channel(64);
        let service = self.clone();
        tokio::spawn(async move {
            let Service { state, wires, .. } = &service;
            let stream = {
                let mut state = state.lock().unwrap();
                state.streams += 1;
                state.streams
            };
            while let Ok(Some(message)) = requests.message().await {
                if let Some(stream_message_request::Update::DigestAck(_)) = message.update {
                    state.lock().unwrap().acknowledged += 1;
                    continue;
                }
                let fault = state.lock().unwrap().begin(Call::Arbitration);
                let mut answer = match fault {
                    Some(Fault::Refuse) => Err(Status::resource_exhausted(ON_PURPOSE)),
                    Some(Fault::Disconnect) => {
                        cut_all(wires);
                        break;
                    }
                    Some(Fault::Forget) => {
                        state.lock().unwrap().forget();
                        cut_all(wires);
                        break;
                    }
                    fault => {
                        match fault {
                            Some(Fault::Delay) => tokio::time::sleep(LATE).await,
                            Some(Fault::Hang) => drop(service.hang(None).await),
                            _ => {}
                        }
                        arbitrate(&mut state.lock().unwrap(), stream, message, &responses)
                    }
                };
                match fault {
                    Some(Fault::HalfApply) => answer = Err(Status::unknown(ON_PURPOSE)),
                    Some(Fault::DoAndDisconnect) => {
                        cut_all(wires);
                        break;
                    }
                    _ => {}
                }
                if let Err(refusal) = answer {
                    // Ends here, with or without a client.
                    let _ = responses.send(Err(refusal)).await;
                    break;
                }
                let (lists, bytes) = {
                    let state = state.lock().unwrap();
                    (0..state.digest_lists, state.digest_bytes)
                };
                for list in lists {
                    let list = digest_list(list, bytes);
                    if responses.send(Ok(list)).await.is_err() {
                        break;
                    }
                }
            }
            let mut state = state.lock().unwrap();
            let primary = state.primary();
            state.elections.remove(&stream);
            if state.primary() != primary {
                state.send_roles(|_| true);
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing))))
    }

    async fn capabilities(
        &self,
        _: Request<CapabilitiesRequest>,
    ) -> Result<Response<CapabilitiesResponse>, Status> {
        Ok(Response::new(CapabilitiesResponse::default()))
    }
}

fn digest_list(list_id: u64, bytes: usize) -> StreamMessageResponse {
    let data = p4_data::Data::Bitstring(vec![1; bytes]);
    let list = DigestList {
        list_id,
        data: vec![P4Data { data: Some(data) }],
        ..DigestList::default()
    };
    StreamMessageResponse {
        update: Some(stream_message_response::Update::Digest(list)),
    }
}

impl State {
    /// Sends these streams the election id of the primary.
    fn send_roles(&self, to: impl Fn(u64) -> bool) {
        let primary = self.primary();
        for (stream, (id, answers)) in self.elections.iter().filter(|(stream, _)| to(**stream)) {
            let (code, message) = match primary {
                Some(primary) if primary == *id => (Code::Ok, "you are primary"),
                Some(_) => (Code::AlreadyExists, "another client is"),
                None => (Code::NotFound, "there is no primary"),
            };
            let answer = MasterArbitrationUpdate {
                device_id: 1,
                election_id: Some(self.highest.into()),
                status: Some(rpc::Status {
                    code: code as i32,
                    message: message.into(),
                    ..Default::default()
                }),
                ..Default::default()
            };
            let update = Some(stream_message_response::Update::Arbitration(answer));
            let sent = answers.try_send(Ok(StreamMessageResponse { update }));
            assert!(
                !matches!(sent, Err(mpsc::error::TrySendError::Full(_))),
                "stream {stream} is not read"
            );
        }
    }
}

fn arbitrate(
    state: &mut State,
    stream: u64,
    message: StreamMessageRequest,
    answers: &Answers,
) -> Result<(), Status> {
    let Some(stream_message_request::Update::Arbitration(asked)) = message.update else {
        return Err(Status::invalid_argument("arbitration comes first"));
    };
    if asked.device_id != 1 {
        return Err(Status::not_found(format!(
            "there is no device {}",
            asked.device_id
        )));
    }
    let election_id = asked.election_id.as_ref().map_or(0, u128::from);
    let mut others = state
        .elections
        .iter()
        .filter(|(other, _)| **other != stream);
    if others.any(|(_, (id, _))| *id == election_id) {
        return Err(Status::invalid_argument("the election id is in use"));
    }
    let before = state.primary();
    let entry = (election_id, answers.clone());
    state.elections.insert(stream, entry);
    state.highest = state.highest.max(election_id);
    let is_primary = state.primary() == Some(election_id);
    let all = is_primary || state.primary() != before;
    state.send_roles(|other| all || other == stream);
    Ok(())
}
