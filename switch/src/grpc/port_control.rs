//! The port control service: adds and removes ports.

use tonic::{Request, Response, Status};

use super::Service;
use crate::config::{Attach, PortConfig, SpecError};
use crate::datapath::{Datapath, NewPort};
use crate::error::SwitchError;
use crate::proto::port_control_server::PortControl;
use crate::proto::{AddPortRequest, AddPortResponse, RemovePortRequest, RemovePortResponse};
use crate::tm::{ChangeError, WireChange, WireConfig};
use crate::translate::statistics;

impl Service {
    /// Opens a port on a blocking thread, since file systems may be slow.
    async fn opened(&self, config: PortConfig) -> Result<NewPort, Status> {
        let service = self.clone();
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
        self.forwarder.call(admits).await??;
        Ok(())
    }
}

/// Returns the status for a port that cannot be opened.
fn refused(error: SwitchError) -> Status {
    Status::failed_precondition(error.to_string())
}

#[tonic::async_trait]
impl PortControl for Service {
    async fn add(
        &self,
        request: Request<AddPortRequest>,
    ) -> Result<Response<AddPortResponse>, Status> {
        let request = request.into_inner();
        self.check_device_or_only(request.device_id)?;
        let config = config(request, self.opener.added_wire.clone())?;
        let number = config.number;
        let _one_by_one = self.adding_ports.lock().await;
        self.admits(number, None).await?;
        let mut port = self.opened(config).await?;
        self.admits(number, port.io.interface()).await?;
        self.opener.begin(&mut port).map_err(refused)?;
        let add = move |datapath: &mut Datapath| datapath.add_port(port);
        self.forwarder.call(add).await??;
        Ok(Response::new(AddPortResponse {}))
    }

    async fn remove(
        &self,
        request: Request<RemovePortRequest>,
    ) -> Result<Response<RemovePortResponse>, Status> {
        let RemovePortRequest { device_id, number } = request.into_inner();
        self.check_device_or_only(device_id)?;
        let remove = move |datapath: &mut Datapath| datapath.remove_port(number);
        let port = Some(statistics::port(self.forwarder.call(remove).await??));
        Ok(Response::new(RemovePortResponse { port }))
    }
}

/// Reads a port's configuration from a request, with the rules of the command line. `wire` is that of a request without settings.
fn config(request: AddPortRequest, wire: WireConfig) -> Result<PortConfig, Status> {
    let AddPortRequest {
        number,
        attachment,
        settings,
        ..
    } = request;
    let invalid = |text: String| Status::invalid_argument(text);
    let mut config: PortConfig = format!("{number}@{attachment}")
        .parse()
        .map_err(|error: SpecError| invalid(error.to_string()))?;
    config.wire = wire;
    if let Attach::Inherited(_) = config.attach {
        return Err(invalid(format!(
            "port {number}: {attachment}: only the process that starts the switch can give descriptors; expected an \
             interface or unix:PATH"
        )));
    }
    if !settings.is_empty() {
        let settings: WireChange = (settings.parse())
            .map_err(|error: ChangeError| invalid(format!("port {number}: {error}")))?;
        settings.apply(&mut config.wire);
    }
    let valid = config.wire.validate();
    valid.map_err(|error| invalid(format!("port {number}: {error}")))?;
    Ok(config)
}
