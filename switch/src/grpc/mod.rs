//! The switch's gRPC services: P4Runtime, gNMI, port statistics, port control, traffic-manager settings, packet traces.

mod answers;
mod arbitration;
mod deliver;
mod gnmi;
mod limits;
mod pipeline_config;
mod port_control;
mod ports;
mod read;
mod stream;
mod trace;
mod traffic;
mod write;

use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{RwLock, Semaphore};
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use ultima_gnmi::v0::g_nmi_server::GNmiServer;
use ultima_grpc::fair::CallLimit;
use ultima_grpc::server::Services;
use ultima_p4runtime::v1::p4_runtime_server::P4Runtime;
use ultima_p4runtime::v1::{
    CapabilitiesRequest, CapabilitiesResponse, GetForwardingPipelineConfigRequest,
    GetForwardingPipelineConfigResponse, ReadRequest, ReadResponse,
    SetForwardingPipelineConfigRequest, SetForwardingPipelineConfigResponse, StreamMessageRequest,
    StreamMessageResponse, Uint128, WriteRequest, WriteResponse,
};

use crate::datapath::Datapath;
use crate::forward::{Answer, CommandError, Handle};
use crate::notify::{CurrentHeaders, Tallies};
use crate::opener::PortOpener;
use crate::pipeline::Loader;
use crate::proto::port_control_server::PortControlServer;
use crate::proto::port_statistics_server::PortStatisticsServer;
use crate::proto::trace_server::TraceServer;
use crate::proto::traffic_manager_server::TrafficManagerServer;
pub(crate) use deliver::deliver;
use limits::Limited;
use stream::Controllers;
use ultima_engine::Schema;

/// The version of the P4Runtime specification that this server follows.
const API_VERSION: &str = "1.5.0";
/// Largest number of updates of a write and entities of a read: large enough that controllers rarely need two requests, small
/// enough that packets do not wait long.
const MAX_ENTITIES: usize = 1 << 14;
/// Longest request of services other than P4Runtime, in bytes: settings of all ports, or a frame.
const MAX_SIDE_REQUEST: usize = 256 << 10;
/// Number of calls of one connection that are served at once. Others wait.
const MAX_CALLS: usize = 64;

/// The device id, role and election id of a request.
type Sender = (u64, String, Option<Uint128>);

/// The services' calls, each in the file of its name. Clones share their state.
#[derive(Clone)]
pub(crate) struct Service(Arc<State>);

/// The state that all calls share.
pub(crate) struct State {
    device_id: u64,
    loader: Loader,
    forwarder: Handle,
    tallies: Arc<Tallies>,
    headers: CurrentHeaders,
    opener: PortOpener,
    controllers: Mutex<Controllers>,
    /// The tables of the program that writes refer to, as the forwarding thread has them after the commands sent so far. Writes
    /// hold it shared. Changes of the program, and reads that take several turns of the forwarding thread, hold it exclusively.
    schema: RwLock<Option<Arc<Schema>>>,
    /// A read holds it before it locks `schema`, so that a write waits for one read at most.
    reading: tokio::sync::Mutex<()>,
    /// Memory for waiting responses to reads.
    answers: Arc<Semaphore>,
    /// Serializes additions of ports, so that a conflict is found before the second port touches files or sockets.
    adding_ports: tokio::sync::Mutex<()>,
    /// Streams without an arbitration update.
    unarbitrated: CallLimit,
    gnmi_subscribers: CallLimit,
    traces: CallLimit,
}

impl Deref for Service {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl Service {
    pub(crate) fn new(
        device_id: u64,
        loader: Loader,
        forwarder: Handle,
        tallies: Arc<Tallies>,
        headers: CurrentHeaders,
        opener: PortOpener,
        schema: Option<Arc<Schema>>,
    ) -> Self {
        Service(Arc::new(State {
            device_id,
            loader,
            forwarder,
            tallies,
            headers,
            opener,
            controllers: Mutex::new(Controllers::new(device_id)),
            schema: RwLock::new(schema),
            reading: tokio::sync::Mutex::default(),
            answers: answers::room(),
            adding_ports: tokio::sync::Mutex::default(),
            unarbitrated: CallLimit::new(stream::MAX_UNARBITRATED),
            gnmi_subscribers: CallLimit::new(gnmi::SUBSCRIBERS),
            traces: CallLimit::new(trace::REQUESTS),
        }))
    }

    /// Ends all controllers' streams, so that the server can stop.
    pub(crate) fn close_streams(&self) {
        self.controllers().close_all();
    }

    /// Locks the controllers. A poisoned lock is usable: every change of the state is complete or did not begin.
    fn controllers(&self) -> MutexGuard<'_, Controllers> {
        self.controllers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a closure to the forwarding thread if the request is from the primary. Checks and sends under one lock, so that a later
    /// primary is served later (§5.3).
    fn send_as_primary<R: Send + 'static>(
        &self,
        sender: &Sender,
        action: impl FnOnce(&mut Datapath) -> R + Send + 'static,
    ) -> Result<Answer<R>, Status> {
        let controllers = self.controllers();
        controllers.check_primary(sender)?;
        Ok(self.forwarder.send(action))
    }

    /// Runs a primary's closure that changes the program while no write and no read of several turns is in progress. `schema` is
    /// the one that later writes refer to; `None` if it stays.
    async fn change_program<R: Send + 'static>(
        &self,
        sender: &Sender,
        schema: Option<Arc<Schema>>,
        action: impl FnOnce(&mut Datapath) -> R + Send + 'static,
    ) -> Result<R, Status> {
        let mut current = self.schema.write().await;
        let answer = self.send_as_primary(sender, action)?;
        // Later writes reach the forwarding thread after the closure, even if the client does not wait for its result.
        if schema.is_some() {
            *current = schema;
        }
        drop(current);
        Ok(answer.wait().await?)
    }

    /// Checks a device id. In services other than P4Runtime, and for capabilities, 0 means the only device.
    fn check_device_or_only(&self, device_id: u64) -> Result<(), Status> {
        match device_id {
            0 => Ok(()),
            device_id => self.check_device(device_id),
        }
    }

    fn check_device(&self, device_id: u64) -> Result<(), Status> {
        if device_id != self.device_id {
            return Err(unknown_device(device_id, self.device_id));
        }
        Ok(())
    }
}

fn unknown_device(asked: u64, here: u64) -> Status {
    Status::not_found(format!("device_id {asked}: this switch has {here}"))
}

fn no_pipeline() -> Status {
    Status::failed_precondition(
        "no forwarding pipeline config is set; set one with SetForwardingPipelineConfig first",
    )
}

impl From<CommandError> for Status {
    fn from(error: CommandError) -> Status {
        match error {
            CommandError::Stopped => Status::unavailable(error.to_string()),
            CommandError::Panicked => Status::internal(error.to_string()),
        }
    }
}

/// Returns the services of a switch, or of two joined ports.
pub(crate) fn services(service: &Service, joined: bool) -> Services {
    let of = || service.clone();
    let ports = PortStatisticsServer::new(of()).max_decoding_message_size(MAX_SIDE_REQUEST);
    let traffic = TrafficManagerServer::new(of()).max_decoding_message_size(MAX_SIDE_REQUEST);
    let routes = Routes::new(ports).add_service(traffic);
    if joined {
        return Services::new(routes, MAX_CALLS);
    }
    let routes = routes
        .add_service(Limited::new(of()))
        .add_service(GNmiServer::new(of()).max_decoding_message_size(MAX_SIDE_REQUEST))
        .add_service(TraceServer::new(of()).max_decoding_message_size(MAX_SIDE_REQUEST))
        .add_service(PortControlServer::new(of()).max_decoding_message_size(MAX_SIDE_REQUEST));
    Services::new(routes, MAX_CALLS)
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Checks the number of entities in a request.
fn check_count(count: usize, what: &str) -> Result<(), Status> {
    if count > MAX_ENTITIES {
        return Err(Status::resource_exhausted(format!(
            "the request has {count} {what}, expected at most {MAX_ENTITIES}; send several"
        )));
    }
    Ok(())
}

#[tonic::async_trait]
impl P4Runtime for Service {
    type ReadStream = ResponseStream<ReadResponse>;
    type StreamChannelStream = ResponseStream<StreamMessageResponse>;

    async fn write(
        &self,
        request: Request<WriteRequest>,
    ) -> Result<Response<WriteResponse>, Status> {
        // `Limited` serves this call without decoding all updates at once.
        let request = request.into_inner().into();
        self.write(request).await.map(Response::new)
    }

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        self.read(request.into_inner()).await.map(Response::new)
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        self.set_pipeline_config(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        self.get_pipeline_config(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        Ok(Response::new(stream::open(self.clone(), request)))
    }

    async fn capabilities(
        &self,
        request: Request<CapabilitiesRequest>,
    ) -> Result<Response<CapabilitiesResponse>, Status> {
        // §17: 0 asks for what holds for the server as a whole, which is all there is.
        self.check_device_or_only(request.into_inner().device_id)?;
        let p4runtime_api_version = API_VERSION.to_owned();
        Ok(Response::new(CapabilitiesResponse {
            p4runtime_api_version,
            experimental: None,
        }))
    }
}

#[cfg(test)]
mod tests;
