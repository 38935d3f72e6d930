//! Ports added and removed over gRPC.

use std::io;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::Service;
use super::ports;
use crate::config::{PortConfig, PortSpec, PortSpecError};
use crate::datapath::{AddPortError, RemovePortError};
use crate::proto::port_control_server::PortControl;
use crate::proto::{AddPortRequest, AddPortResponse, RemovePortRequest, RemovePortResponse};
use crate::switch::SwitchError;
use crate::tm::WireConfig;

/// The service's calls.
pub(crate) struct PortControlCalls(pub(super) Arc<Service>);

#[tonic::async_trait]
impl PortControl for PortControlCalls {
    async fn add(
        &self,
        request: Request<AddPortRequest>,
    ) -> Result<Response<AddPortResponse>, Status> {
        let request = request.into_inner();
        self.0.check_device_or_only(request.device_id)?;
        let config = config(request)?;
        let port = self.0.opener.open(config).map_err(|error| {
            let text = error.to_string();
            match error {
                SwitchError::Attach { source, .. }
                    if source.kind() == io::ErrorKind::AlreadyExists =>
                {
                    Status::already_exists(text)
                }
                _ => Status::failed_precondition(text),
            }
        })?;
        let add = self.0.forwarder.call(|datapath| datapath.add_port(port));
        add.await?.map_err(|error| match error {
            AddPortError::Taken(_) => Status::already_exists(error.to_string()),
            AddPortError::Register { .. } => Status::failed_precondition(error.to_string()),
        })?;
        Ok(Response::new(AddPortResponse {}))
    }

    async fn remove(
        &self,
        request: Request<RemovePortRequest>,
    ) -> Result<Response<RemovePortResponse>, Status> {
        let RemovePortRequest { device_id, number } = request.into_inner();
        self.0.check_device_or_only(device_id)?;
        // A number that does not fit is none that is there.
        let number = u16::try_from(number).unwrap_or(u16::MAX);
        let remove = self
            .0
            .forwarder
            .call(move |datapath| datapath.remove_port(number));
        let port = remove.await?.map_err(|error| match error {
            RemovePortError::Unknown { .. } => Status::not_found(error.to_string()),
            RemovePortError::Cpu(_) => Status::failed_precondition(error.to_string()),
        })?;
        let port = Some(ports::port(port));
        Ok(Response::new(RemovePortResponse { port }))
    }
}

/// What a request asks for, held to the rules of the command line.
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
