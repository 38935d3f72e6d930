//! The control API's requests about the fabric: hosts, links, and switch ports.

use std::sync::Arc;

use tonic::{Code, Status};
use ultima_planner::fabric::SwitchId;

use super::controller::Controller;
use super::own_task::to_the_end;
use super::service::ControlService;
use crate::chassis_push::{self, PushError};

impl ControlService {
    /// Pushes the port configuration to a switch's own software.
    pub(super) async fn ports_of(&self, name: &str) -> Result<(), Status> {
        self.controller.open()?;
        let fabric = self.controller.fabric();
        let id = fabric.switch_called(name);
        let id = id.map_err(|error| Status::not_found(error.to_string()))?;
        let controller = Arc::clone(&self.controller);
        to_the_end(async move { push_ports(&controller, id).await }).await?
    }
}

/// Pushes the port configuration of a switch. Two concurrent pushes would configure the same ports.
async fn push_ports(controller: &Controller, id: SwitchId) -> Result<(), Status> {
    let switch = controller.fabric().switch(id);
    let Some(_alone) = controller.switches[id.0].begin_port_push() else {
        return Err(Status::failed_precondition(format!(
            "another request is configuring the ports of switch {}; try again when it has ended",
            switch.name
        )));
    };
    chassis_push::push(switch).await.map_err(|error| {
        let code = match error {
            PushError::Chassis(_) => Code::FailedPrecondition,
            PushError::NoAnswer { .. } => Code::Unavailable,
            PushError::Refused { .. } => Code::Aborted,
        };
        Status::new(code, error.to_string())
    })
}
