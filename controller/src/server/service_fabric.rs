//! The control API: what is linked to what.

use super::messages::link_of;
use super::service::ControlService;
use crate::api;
use crate::fabric::TrunkId;

impl ControlService {
    pub(super) fn fabric(&self) -> api::GetFabricResponse {
        let fabric = self.controller.fabric();
        let health = self.controller.condition().health();
        let hosts = fabric.hosts().iter().map(|host| api::FabricHost {
            name: host.name.clone(),
            mac: host.mac.to_string(),
            ip: host.ip.to_string(),
            ranks: host.ranks.into(),
            switch: fabric.switch(host.attached.switch).name.clone(),
            port: host.attached.port.0.into(),
            port_name: fabric.port_name(host.attached),
        });
        let links = (0..fabric.trunks().len()).map(TrunkId).map(|trunk| {
            let ends = fabric.trunk(trunk).ends;
            let carries = ends.iter().all(|end| health.carries(end.switch));
            api::FabricLink {
                ends: Some(link_of(fabric, trunk)),
                up: carries && health.trunk_is_up(fabric, trunk),
            }
        });
        api::GetFabricResponse {
            hosts: hosts.collect(),
            links: links.collect(),
        }
    }
}
