//! The traffic-manager service: settings of ports' queues and wires.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};

use super::Service;
use crate::datapath::Datapath;
use crate::proto::traffic_manager_server::TrafficManager;
use crate::proto::{
    Change, GetSettingsRequest, GetSettingsResponse, PortSettings, SetSettingsRequest,
    SetSettingsResponse,
};
use crate::tm::{ChangeError, WireChange, WireConfig};

#[tonic::async_trait]
impl TrafficManager for Service {
    async fn get(
        &self,
        request: Request<GetSettingsRequest>,
    ) -> Result<Response<GetSettingsResponse>, Status> {
        self.check_device_or_only(request.into_inner().device_id)?;
        let read = |datapath: &mut Datapath| settings(datapath, |_| true);
        let ports = messages(self.forwarder.call(read).await?);
        let device_id = self.device_id;
        Ok(Response::new(GetSettingsResponse { device_id, ports }))
    }

    async fn set(
        &self,
        request: Request<SetSettingsRequest>,
    ) -> Result<Response<SetSettingsResponse>, Status> {
        let SetSettingsRequest { device_id, changes } = request.into_inner();
        self.check_device_or_only(device_id)?;
        let changes = (changes.into_iter().enumerate())
            .map(|(at, Change { ports, settings })| {
                let settings = settings.parse().map_err(|error: ChangeError| {
                    Status::invalid_argument(format!("changes[{at}].settings: {error}"))
                })?;
                Ok((ports, settings))
            })
            .collect::<Result<Vec<_>, Status>>()?;
        let change = move |datapath: &mut Datapath| change(datapath, &changes);
        let ports = messages(self.forwarder.call(change).await??);
        Ok(Response::new(SetSettingsResponse { ports }))
    }
}

/// Number, attachment and settings of ports.
type Settings = Vec<(u16, String, WireConfig)>;

fn settings(datapath: &Datapath, wanted: impl Fn(u16) -> bool) -> Settings {
    let ports = datapath.wires().filter(|(number, ..)| wanted(*number));
    ports
        .map(|(number, attachment, wire)| (number, attachment.to_owned(), wire.clone()))
        .collect()
}

fn messages(settings: Settings) -> Vec<PortSettings> {
    let message = |(number, attachment, wire): (u16, String, WireConfig)| PortSettings {
        port: u32::from(number),
        attachment,
        settings: wire.to_string(),
    };
    settings.into_iter().map(message).collect()
}

/// Largest number of port changes in one request, since packets wait meanwhile.
const MAX_CHANGES: usize = 4096;

/// Computes all new configurations, then applies them.
fn change(datapath: &mut Datapath, changes: &[(Vec<u32>, WireChange)]) -> Result<Settings, Status> {
    let present: BTreeMap<u16, &WireConfig> = datapath
        .wires()
        .map(|(number, _, wire)| (number, wire))
        .collect();
    let named = |(ports, _): &(Vec<u32>, _)| match ports.len() {
        0 => present.len(),
        named => named,
    };
    if changes.iter().map(named).sum::<usize>() > MAX_CHANGES {
        return Err(Status::invalid_argument(format!(
            "more than {MAX_CHANGES} changes of ports in one request; send several requests"
        )));
    }
    let mut new: BTreeMap<u16, WireConfig> = BTreeMap::new();
    for (ports, change) in changes {
        let numbers: Vec<u16> = match ports[..] {
            [] => present.keys().copied().collect(),
            ref ports => ports
                .iter()
                .map(|port| datapath.find(*port))
                .collect::<Result<_, _>>()?,
        };
        for number in numbers {
            let wire = new.get(&number).or(present.get(&number).copied());
            let Some(mut wire) = wire.cloned() else {
                continue;
            };
            change.apply(&mut wire);
            wire.validate()
                .map_err(|error| Status::invalid_argument(format!("port {number}: {error}")))?;
            new.insert(number, wire);
        }
    }
    let changed: Vec<u16> = new.keys().copied().collect();
    for (number, wire) in new {
        datapath.set_wire(number, wire);
    }
    Ok(settings(datapath, |number| changed.contains(&number)))
}
