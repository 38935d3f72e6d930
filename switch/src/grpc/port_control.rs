//! The port control service: adds and removes ports.

use std::io;
use std::sync::Arc;

use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use super::Service;
use super::ports;
use crate::config::{PortConfig, PortSpec, PortSpecError};
use crate::datapath::{AddPortError, Datapath, NewPort, RemovePortError};
use crate::proto::port_control_server::PortControl;
use crate::proto::{AddPortRequest, AddPortResponse, RemovePortRequest, RemovePortResponse};
use crate::switch::SwitchError;
use crate::tm::WireConfig;

/// The service's calls.
pub(crate) struct PortControlCalls {
    service: Arc<Service>,
    /// Serializes additions, so that a conflict is found before the second port touches files or sockets.
    adding: Mutex<()>,
}

impl PortControlCalls {
    pub(super) fn new(service: Arc<Service>) -> Self {
        let adding = Mutex::default();
        PortControlCalls { service, adding }
    }

    /// Opens a port on a blocking thread, since file systems may be slow.
    async fn opened(&self, config: PortConfig) -> Result<NewPort, Status> {
        let service = self.service.clone();
        let opened = tokio::task::spawn_blocking(move || service.opener.open(config)).await;
        match opened {
            Ok(result) => result.map_err(refused),
            Err(_) => Err(Status::internal(
                "opening the port failed; it was not added",
            )),
        }
    }

    /// Checks that the port can be added at present.
    async fn admits(&self, number: u16, interface: Option<u32>) -> Result<(), Status> {
        let admits = move |datapath: &mut Datapath| datapath.admits(number, interface);
        self.service.forwarder.call(admits).await??;
        Ok(())
    }
}

impl From<AddPortError> for Status {
    fn from(error: AddPortError) -> Status {
        let text = error.to_string();
        match error {
            AddPortError::Taken(_) | AddPortError::Interface { .. } => Status::already_exists(text),
            AddPortError::Register { .. } => Status::failed_precondition(text),
        }
    }
}

/// Returns the status for a port that cannot be opened.
fn refused(error: SwitchError) -> Status {
    let text = error.to_string();
    match error {
        SwitchError::Attach { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
            Status::already_exists(text)
        }
        _ => Status::failed_precondition(text),
    }
}

#[tonic::async_trait]
impl PortControl for PortControlCalls {
    async fn add(
        &self,
        request: Request<AddPortRequest>,
    ) -> Result<Response<AddPortResponse>, Status> {
        let request = request.into_inner();
        self.service.check_device_or_only(request.device_id)?;
        let config = config(request)?;
        let number = config.number;
        let _one_by_one = self.adding.lock().await;
        self.admits(number, None).await?;
        let mut port = self.opened(config).await?;
        self.admits(number, port.io.interface()).await?;
        self.service.opener.begin(&mut port).map_err(refused)?;
        let add = move |datapath: &mut Datapath| datapath.add_port(port);
        self.service.forwarder.call(add).await??;
        Ok(Response::new(AddPortResponse {}))
    }

    async fn remove(
        &self,
        request: Request<RemovePortRequest>,
    ) -> Result<Response<RemovePortResponse>, Status> {
        let RemovePortRequest { device_id, number } = request.into_inner();
        self.service.check_device_or_only(device_id)?;
        // A number that does not fit is none that is there.
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        let remove = self
            .service
            .forwarder
            .call(move |datapath| datapath.remove_port(number));
        let port = remove.await?.map_err(|error| match error {
            RemovePortError::Unknown(_) => Status::not_found(error.to_string()),
            RemovePortError::Cpu(_) => Status::failed_precondition(error.to_string()),
        })?;
        let port = Some(ports::port(port));
        Ok(Response::new(RemovePortResponse { port }))
    }
}

/// Reads a port's configuration from a request, with the rules of the command line.
fn config(request: AddPortRequest) -> Result<PortConfig, Status> {
    let AddPortRequest {
        number,
        attachment,
        settings,
        ..
    } = request;
    let wire = settings.map_or(Ok(WireConfig::default()), WireConfig::try_from);
    let wire = wire.map_err(|error| Status::invalid_argument(format!("port {number}: {error}")))?;
    let invalid = |text: String| Status::invalid_argument(text);
    let spec: PortSpec = format!("{number}@{attachment}")
        .parse()
        .map_err(|error: PortSpecError| invalid(error.to_string()))?;
    let attach = spec.attach.asked_remotely();
    Ok(PortConfig {
        number: spec.number,
        attach: attach.map_err(|error| invalid(format!("port {number}: {error}")))?,
        wire,
    })
}
