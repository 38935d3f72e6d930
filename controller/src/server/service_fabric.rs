//! The control API's requests about the fabric: hosts, links, and switch ports.

use std::sync::Arc;

use tonic::{Code, Status};
use ultima_api::v1 as api;
use ultima_planner::fabric::{Fabric, Health, SwitchId, TrunkId};

use super::condition::Condition;
use super::controller::Controller;
use super::messages::link_of;
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

/// The fabric's hosts and links, as a message.
pub(super) fn fabric_of(fabric: &Fabric, condition: &Condition) -> api::GetFabricResponse {
    let (health, drained) = (condition.health(), condition.drained());
    let hosts = fabric.hosts().iter().map(|host| api::FabricHost {
        name: host.name.clone(),
        mac: host.mac.to_string(),
        ip: host.ip.to_string(),
        ranks: host.ranks.into(),
        switch: fabric.switch(host.attached.switch).name.clone(),
        port: host.attached.port.0.into(),
        port_name: fabric.port_name(host.attached),
        port_down: condition.is_host_down(host.attached),
    });
    let links = (0..fabric.trunks().len()).map(TrunkId).map(|trunk| {
        let ends = fabric.trunk(trunk).ends;
        let is_up = |health: &Health| {
            let carries = ends.iter().all(|end| health.carries(end.switch));
            carries && health.trunk_is_up(fabric, trunk)
        };
        api::FabricLink {
            ends: Some(link_of(fabric, trunk)),
            up: is_up(&health),
            drained: !is_up(&drained),
        }
    });
    api::GetFabricResponse {
        hosts: hosts.collect(),
        links: links.collect(),
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
