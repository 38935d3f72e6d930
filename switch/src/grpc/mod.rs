//! The switch's gRPC services: P4Runtime, gNMI, port statistics, port control, traffic-manager settings, packet traces.

mod answers;
mod arbitration;
mod arrays;
mod deliver;
mod digests;
mod direct;
mod error;
mod gnmi;
mod limits;
mod pipeline_config;
mod port_control;
mod ports;
mod profile;
mod read;
mod reconcile;
mod replication;
mod scan;
mod stream;
pub(crate) mod strings;
mod table_entry;
mod trace;
mod traffic;
mod undo;
mod value_set;
mod write;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};
use ultima_gnmi::v0::g_nmi_server::GNmiServer;
use ultima_p4runtime::v1::p4_runtime_server::P4Runtime;
use ultima_p4runtime::v1::{
    CapabilitiesRequest, CapabilitiesResponse, GetForwardingPipelineConfigRequest,
    GetForwardingPipelineConfigResponse, ReadRequest, ReadResponse,
    SetForwardingPipelineConfigRequest, SetForwardingPipelineConfigResponse, StreamMessageRequest,
    StreamMessageResponse, Uint128, WriteRequest, WriteResponse,
};

use crate::datapath::Datapath;
use crate::forward::{Answer, CommandError, Handle};
use crate::notify::Tallies;
use crate::opener::PortOpener;
use crate::pipeline::Loader;
use crate::proto::port_control_server::PortControlServer;
use crate::proto::port_statistics_server::PortStatisticsServer;
use crate::proto::trace_server::TraceServer;
use crate::proto::traffic_manager_server::TrafficManagerServer;
pub(crate) use deliver::deliver;
use limits::Limited;
pub(crate) use ports::statistics;
use stream::Controllers;
pub(crate) use strings::with_strings;
pub(crate) use table_entry::idle_entry;
pub(crate) use write::apply;

/// The version of the P4Runtime specification that this server follows.
const API_VERSION: &str = "1.5.0";
/// Largest number of updates of a write and entities of a read: large enough that controllers rarely need two requests, small
/// enough that packets do not wait long.
const MAX_ENTITIES: usize = 1 << 14;
/// Longest request of services other than P4Runtime, in bytes: settings of all ports, or a frame.
const MAX_SIDE_REQUEST: usize = 256 << 10;

/// The state that all calls share.
pub(crate) struct Service {
    device_id: u64,
    loader: Loader,
    forwarder: Handle,
    tallies: Arc<Tallies>,
    opener: PortOpener,
    controllers: Mutex<Controllers>,
    /// Writes hold it shared. Reads that take several turns of the forwarding thread hold it exclusively.
    between_writes: tokio::sync::RwLock<()>,
    /// A read holds it before it locks `between_writes`, so that a write waits for one read at most.
    reading: tokio::sync::Mutex<()>,
    /// Memory for waiting responses to reads.
    answers: Arc<Semaphore>,
}

impl Service {
    pub(crate) fn new(
        device_id: u64,
        loader: Loader,
        forwarder: Handle,
        tallies: Arc<Tallies>,
        opener: PortOpener,
    ) -> Arc<Self> {
        let controllers = Mutex::new(Controllers::new(device_id));
        Arc::new(Service {
            device_id,
            loader,
            forwarder,
            tallies,
            opener,
            controllers,
            between_writes: tokio::sync::RwLock::default(),
            reading: tokio::sync::Mutex::default(),
            answers: answers::room(),
        })
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
        device_id: u64,
        role: &str,
        election_id: Option<Uint128>,
        action: impl FnOnce(&mut Datapath) -> R + Send + 'static,
    ) -> Result<Answer<R>, Status> {
        let controllers = self.controllers();
        controllers.check_primary(device_id, role, election_id)?;
        Ok(self.forwarder.send(action))
    }

    /// Checks a device id. In services other than P4Runtime, 0 means the only device.
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
    Status::not_found(format!("device {asked}: this switch is device {here}"))
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

/// Returns P4Runtime's server.
pub(crate) fn p4runtime_server(service: Arc<Service>) -> Limited<P4RuntimeCalls> {
    Limited::new(P4RuntimeCalls(service))
}

/// Returns the server for port statistics.
pub(crate) fn ports_server(service: Arc<Service>) -> PortStatisticsServer<ports::PortCalls> {
    PortStatisticsServer::new(ports::PortCalls(service)).max_decoding_message_size(MAX_SIDE_REQUEST)
}

/// Returns the server for traffic-manager settings.
pub(crate) fn traffic_server(service: Arc<Service>) -> TrafficManagerServer<traffic::TrafficCalls> {
    TrafficManagerServer::new(traffic::TrafficCalls(service))
        .max_decoding_message_size(MAX_SIDE_REQUEST)
}

/// Returns the server for packet traces.
pub(crate) fn trace_server(service: Arc<Service>) -> TraceServer<trace::TraceCalls> {
    TraceServer::new(trace::TraceCalls(service)).max_decoding_message_size(MAX_SIDE_REQUEST)
}

/// Returns the server for port control.
pub(crate) fn port_control_server(
    service: Arc<Service>,
) -> PortControlServer<port_control::PortControlCalls> {
    PortControlServer::new(port_control::PortControlCalls::new(service))
        .max_decoding_message_size(MAX_SIDE_REQUEST)
}

/// Returns gNMI's server.
pub(crate) fn gnmi_server(service: Arc<Service>) -> GNmiServer<gnmi::GnmiCalls> {
    GNmiServer::new(gnmi::GnmiCalls::new(service)).max_decoding_message_size(MAX_SIDE_REQUEST)
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

/// P4Runtime's calls, each in the file of its name.
pub(crate) struct P4RuntimeCalls(Arc<Service>);

#[tonic::async_trait]
impl P4Runtime for P4RuntimeCalls {
    type ReadStream = ResponseStream<ReadResponse>;
    type StreamChannelStream = ResponseStream<StreamMessageResponse>;

    async fn write(
        &self,
        request: Request<WriteRequest>,
    ) -> Result<Response<WriteResponse>, Status> {
        self.0.write(request.into_inner()).await.map(Response::new)
    }

    async fn read(
        &self,
        request: Request<ReadRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        self.0.read(request.into_inner()).await.map(Response::new)
    }

    async fn set_forwarding_pipeline_config(
        &self,
        request: Request<SetForwardingPipelineConfigRequest>,
    ) -> Result<Response<SetForwardingPipelineConfigResponse>, Status> {
        self.0
            .set_pipeline_config(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn get_forwarding_pipeline_config(
        &self,
        request: Request<GetForwardingPipelineConfigRequest>,
    ) -> Result<Response<GetForwardingPipelineConfigResponse>, Status> {
        self.0
            .get_pipeline_config(request.into_inner())
            .await
            .map(Response::new)
    }

    async fn stream_channel(
        &self,
        request: Request<Streaming<StreamMessageRequest>>,
    ) -> Result<Response<Self::StreamChannelStream>, Status> {
        Ok(Response::new(stream::open(
            self.0.clone(),
            request.into_inner(),
        )))
    }

    async fn capabilities(
        &self,
        request: Request<CapabilitiesRequest>,
    ) -> Result<Response<CapabilitiesResponse>, Status> {
        // §17: 0 asks for what holds for the server as a whole, which is all there is.
        let device_id = request.into_inner().device_id;
        if device_id != 0 {
            self.0.check_device(device_id)?;
        }
        let p4runtime_api_version = API_VERSION.to_owned();
        Ok(Response::new(CapabilitiesResponse {
            p4runtime_api_version,
            experimental: None,
        }))
    }
}

#[cfg(test)]
mod tests;
