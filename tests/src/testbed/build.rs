//! Builds testbeds of BMv2s and of embedded switches.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use ultima_emulation::Tofino;
use ultima_p4runtime::tofino::TOFINO;
use ultima_switch::{Attach, SwitchConfig, config};

use super::{RunningSwitch, Testbed};
use crate::bmv2::Bmv2;
use crate::embedded::Embedded;
use crate::fabric::Fabric;
use crate::host_end::{self, HostEnd};
use crate::netns;

impl Testbed {
    /// BMv2s, started from `program`, with interfaces in this network namespace.
    ///
    /// # Panics
    /// If the fabric cannot be built.
    pub fn of_bmv2(fabric: Fabric, program: &Path) -> Self {
        let links = Links::of_interfaces(&fabric);
        Self::build(fabric, links, |_, switch, ports| {
            Bmv2::start(program, switch, &ports)
        })
    }

    /// Kills a BMv2 and starts it again on the same interfaces, without a program.
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart_bmv2(&mut self, switch: usize, program: &Path) {
        self.kill(switch);
        let trunk_ends = self.fabric.trunks.iter().flatten();
        let hosts = self
            .fabric
            .hosts
            .iter()
            .map(|host| (host.switch, host.port));
        let ports = hosts
            .chain(trunk_ends.copied())
            .filter(|(at, _)| *at == switch);
        let ports: Vec<(u16, String)> = ports
            .map(|(at, port)| (port, interface(at, port)))
            .collect();
        let bmv2 = Bmv2::start(program, switch, &ports);
        self.switches.insert(switch, Box::new(bmv2));
    }

    /// Embedded switches with interfaces in this network namespace.
    ///
    /// # Panics
    /// If the fabric cannot be built.
    pub fn of_embedded_on_interfaces(fabric: Fabric) -> Self {
        Self::of_polling_on_interfaces(fabric, config::POLL)
    }

    /// As [`Testbed::of_embedded_on_interfaces`]; the forwarding threads poll through pauses of this length.
    ///
    /// # Panics
    /// If the fabric cannot be built.
    pub fn of_polling_on_interfaces(fabric: Fabric, poll: Duration) -> Self {
        let links = Links::of_interfaces(&fabric);
        Self::build(fabric, links, |runtime, switch, ports| {
            let attach = |(port, name)| (port, Attach::Interface(name));
            let config = SwitchConfig {
                poll,
                ..SwitchConfig::default()
            };
            let ports = ports.into_iter().map(attach).collect();
            Embedded::configured(runtime, switch, ports, config)
        })
    }

    /// As [`Testbed::of_embedded_on_interfaces`], with emulated Tofinos. Port numbers are device ports.
    ///
    /// # Panics
    /// If the fabric cannot be built.
    pub fn of_emulated_tofinos(fabric: Fabric) -> Self {
        let links = Links::of_interfaces(&fabric);
        Self::build(fabric, links, |runtime, switch, ports| {
            let attach = |(port, name)| (port, Attach::Interface(name));
            let ports = ports.into_iter().map(attach).collect();
            let config = SwitchConfig {
                target: Some(Arc::new(Tofino(&TOFINO))),
                ..SwitchConfig::default()
            };
            Embedded::configured(runtime, switch, ports, config)
        })
    }

    /// Embedded switches on pairs of Unix sockets, which need no privileges.
    ///
    /// # Panics
    /// If the fabric cannot be built.
    pub fn of_embedded_on_sockets(fabric: Fabric) -> Self {
        let links = Links::of_sockets(&fabric);
        Self::build(fabric, links, |runtime, switch, ports| {
            let attach = |(port, socket): (u16, OwnedFd)| (port, Attach::Socket(socket.into()));
            Embedded::start(runtime, switch, ports.into_iter().map(attach).collect())
        })
    }

    /// As [`Testbed::of_embedded_on_sockets`]; also returns the hosts' ends.
    ///
    /// # Panics
    /// If the fabric cannot be built.
    pub fn of_embedded_with_hosts(fabric: Fabric) -> (Self, Vec<OwnedFd>) {
        let mut links = Links {
            host_ends: Vec::new(),
            switch_ends: Vec::new(),
        };
        let mut ends = Vec::new();
        for host in &fabric.hosts {
            let (end, switch_end) = host_end::sockets().expect("descriptors are left");
            links.switch_ends.push((host.switch, host.port, switch_end));
            ends.push(end);
        }
        links.add_trunks(&fabric);
        let testbed = Self::build(fabric, links, |runtime, switch, ports| {
            let attach = |(port, socket): (u16, OwnedFd)| (port, Attach::Socket(socket.into()));
            Embedded::start(runtime, switch, ports.into_iter().map(attach).collect())
        });
        (testbed, ends)
    }

    fn build<P, S: RunningSwitch + 'static>(
        fabric: Fabric,
        mut links: Links<P>,
        start: impl Fn(&Runtime, usize, Vec<(u16, P)>) -> S,
    ) -> Self {
        // The runtime's threads inherit the caller's network namespace.
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("threads can be started");
        let switches = (0..fabric.switches)
            .map(|switch| {
                let started = start(&runtime, switch, links.take(switch));
                Box::new(started) as Box<dyn RunningSwitch>
            })
            .collect();
        Self {
            fabric,
            ends: links.host_ends,
            switches,
            sentinels: 0,
            runtime,
        }
    }
}

/// The links of a fabric: the hosts' ends and the switches' ends.
struct Links<P> {
    host_ends: Vec<Box<dyn HostEnd>>,
    /// Switch, port, and the switch's end.
    switch_ends: Vec<(usize, u16, P)>,
}

impl<P> Links<P> {
    /// Removes the ends of one switch; returns them with their ports.
    fn take(&mut self, switch: usize) -> Vec<(u16, P)> {
        self.switch_ends
            .extract_if(.., |(at, _, _)| *at == switch)
            .map(|(_, port, end)| (port, end))
            .collect()
    }
}

/// The interface of a switch's port.
fn interface(switch: usize, port: u16) -> String {
    format!("s{}-{port}", switch + 1)
}

impl Links<String> {
    /// Links of pairs of interfaces.
    fn of_interfaces(fabric: &Fabric) -> Self {
        let mut switch_ends = Vec::new();
        let host_ends = (fabric.hosts.iter())
            .map(|host| {
                let end = interface(host.switch, host.port);
                let opened = host_end::veth(&host.name, &end).expect("root can open interfaces");
                switch_ends.push((host.switch, host.port, end));
                opened
            })
            .collect();
        for trunk in &fabric.trunks {
            let [one, other] = trunk.map(|(switch, port)| interface(switch, port));
            netns::veth(&one, &other);
            switch_ends.push((trunk[0].0, trunk[0].1, one));
            switch_ends.push((trunk[1].0, trunk[1].1, other));
        }
        Self {
            host_ends,
            switch_ends,
        }
    }
}

impl Links<OwnedFd> {
    /// Links of pairs of sockets.
    fn of_sockets(fabric: &Fabric) -> Self {
        let mut switch_ends = Vec::new();
        let host_ends = (fabric.hosts.iter())
            .map(|host| {
                let (end, switch_end) = host_end::socket_pair().expect("descriptors are left");
                switch_ends.push((host.switch, host.port, switch_end));
                end
            })
            .collect();
        let mut links = Self {
            host_ends,
            switch_ends,
        };
        links.add_trunks(fabric);
        links
    }

    fn add_trunks(&mut self, fabric: &Fabric) {
        for [one, other] in &fabric.trunks {
            let (end, far_end) = host_end::sockets().expect("descriptors are left");
            self.switch_ends.push((one.0, one.1, end));
            self.switch_ends.push((other.0, other.1, far_end));
        }
    }
}
