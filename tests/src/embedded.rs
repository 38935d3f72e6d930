//! The embedded switch, in the test's process.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::runtime::Runtime;
use ultima_switch::{Attach, PortConfig, Switch, SwitchConfig, WireConfig};

use crate::fabric::device_id;
use crate::testbed::RunningSwitch;

/// A running embedded switch. It ends when this is dropped.
pub struct Embedded(Switch);

impl Embedded {
    /// Starts one of a fabric's switches, whose program a controller installs.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(runtime: &Runtime, switch: usize, ports: Vec<(u16, Attach)>) -> Self {
        Self::configured(runtime, switch, ports, SwitchConfig::default())
    }

    /// As [`Embedded::start`], with other settings than the default.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn configured(
        runtime: &Runtime,
        switch: usize,
        ports: Vec<(u16, Attach)>,
        config: SwitchConfig,
    ) -> Self {
        let ports = ports.into_iter().map(|(number, attach)| PortConfig {
            number,
            attach,
            wire: WireConfig::default(),
        });
        let config = SwitchConfig {
            device_id: device_id(switch),
            grpc: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            ports: ports.collect(),
            seed: 0,
            ..config
        };
        Self(
            runtime
                .block_on(Switch::start(config))
                .unwrap_or_else(|error| panic!("{error}")),
        )
    }
}

impl RunningSwitch for Embedded {
    fn end(self: Box<Self>, runtime: &Runtime) {
        let ended = runtime.block_on(self.0.stop());
        ended.unwrap_or_else(|error| panic!("{error}"));
    }

    fn grpc(&self) -> SocketAddr {
        self.0.grpc_addr()
    }

    fn process(&self) -> u32 {
        std::process::id()
    }
}
