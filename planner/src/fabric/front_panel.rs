//! A switch's front panel: its connectors, their breakout, and the device ports behind them.

use std::collections::BTreeMap;
use std::fmt;

use crate::target::{Board, Fec, FrontPanelPorts, PortNumber, Speed};

/// A port's position on the front panel: `5/0` is the first channel of connector 5, or the whole
/// connector if it is not broken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PanelPort {
    /// The connector, from 1.
    pub connector: u16,
    /// The port's first lane, from 0.
    pub channel: u8,
}

impl PanelPort {
    /// Parses `CONNECTOR/CHANNEL`.
    pub fn parse(text: &str) -> Option<Self> {
        let (connector, channel) = text.split_once('/')?;
        Some(PanelPort {
            connector: connector.parse().ok()?,
            channel: channel.parse().ok()?,
        })
    }
}

impl fmt::Display for PanelPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.connector, self.channel)
    }
}

/// A port's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// The speed.
    pub speed: Speed,
    /// The forward error correction.
    pub fec: Fec,
    /// True for autonegotiation; none for the switch's default.
    pub autoneg: Option<bool>,
}

/// A port in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontPort {
    /// The position.
    pub at: PanelPort,
    /// The settings.
    pub settings: PortSettings,
    /// The number of lanes, from the port's channel on.
    lanes: u8,
}

/// The device port of each connector's first channel; the other channels follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMap(BTreeMap<u16, PortNumber>);

impl PortMap {
    /// Builds a map from the first device port of each connector.
    ///
    /// # Errors
    /// A lane of a connector is not a port for links, or belongs to two connectors.
    pub fn new(
        first_ports: impl IntoIterator<Item = (u16, u16)>,
        ports: &FrontPanelPorts,
    ) -> Result<Self, String> {
        let mut map = BTreeMap::new();
        let mut taken: BTreeMap<u16, u16> = BTreeMap::new();
        for (connector, first) in first_ports {
            for lane in 0..u16::from(ports.lanes) {
                // Saturates: a number that is too large stays too large.
                let port = first.saturating_add(lane);
                (ports.check(PortNumber(port)))
                    .map_err(|fault| format!("connector {connector}: {fault}"))?;
                if let Some(one) = taken.insert(port, connector) {
                    return Err(format!(
                        "connectors {one} and {connector} both use device port {port}; each needs {} of its own",
                        ports.lanes
                    ));
                }
            }
            map.insert(connector, PortNumber(first));
        }
        Ok(PortMap(map))
    }

    /// The map of a board.
    pub(crate) fn of_board(board: &Board) -> Self {
        let ports = (1..).zip(board.first_ports);
        PortMap(ports.map(|(at, first)| (at, PortNumber(*first))).collect())
    }

    fn device_port(&self, at: PanelPort) -> Result<PortNumber, String> {
        if let Some(PortNumber(first)) = self.0.get(&at.connector) {
            return Ok(PortNumber(first + u16::from(at.channel)));
        }
        match (self.0.keys().next(), self.0.keys().next_back()) {
            (Some(first), Some(last)) => Err(format!(
                "unknown connector {}; the port map has {first} to {last}",
                at.connector
            )),
            _ => Err("the port map is empty".to_owned()),
        }
    }
}

/// A switch's front panel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontPanel {
    kind: FrontPanelPorts,
    map: PortMap,
    usual: PortSettings,
    ports: BTreeMap<PortNumber, FrontPort>,
}

impl FrontPanel {
    /// Returns a front panel without ports in use; `usual` are the default settings.
    ///
    /// # Errors
    /// No port supports the default settings.
    pub fn new(kind: FrontPanelPorts, map: PortMap, usual: PortSettings) -> Result<Self, String> {
        lanes_of(&kind, usual)?;
        Ok(FrontPanel {
            kind,
            map,
            usual,
            ports: BTreeMap::new(),
        })
    }

    /// The kind of ports.
    pub fn kind(&self) -> &FrontPanelPorts {
        &self.kind
    }

    /// The default settings.
    pub fn usual(&self) -> PortSettings {
        self.usual
    }

    /// The ports in use, by device port.
    pub fn ports(&self) -> impl Iterator<Item = (PortNumber, &FrontPort)> {
        self.ports.iter().map(|(number, port)| (*number, port))
    }

    /// A port in use, by device port.
    pub fn port(&self, number: PortNumber) -> Option<&FrontPort> {
        self.ports.get(&number)
    }

    /// The device port of a port in use.
    pub(crate) fn number_of(&self, at: PanelPort) -> Option<PortNumber> {
        let mut ports = self.ports.iter();
        ports
            .find(|(_, port)| port.at == at)
            .map(|(number, _)| *number)
    }

    /// Adds a port with these settings.
    ///
    /// # Errors
    /// The reason why the port does not fit.
    pub fn add(&mut self, at: PanelPort, settings: PortSettings) -> Result<PortNumber, String> {
        let lanes = self.kind.lanes;
        let speed = settings.speed;
        let needed = lanes_of(&self.kind, settings)?;
        if !at.channel.is_multiple_of(needed) || at.channel >= lanes {
            return Err(format!(
                "invalid channel {}: a port of {speed} takes {needed} of the connector's {lanes} lanes, {} each; use a multiple of {needed} below {lanes}",
                at.channel,
                speed.of_lanes(needed)
            ));
        }
        let number = self.map.device_port(at)?;
        let port = FrontPort {
            at,
            settings,
            lanes: needed,
        };
        if let Some(other) = self.ports.values().find(|other| other.meets(&port)) {
            let (there, speed) = (other.at, other.settings.speed);
            let (first, last) = (there.channel, there.channel + other.lanes - 1);
            return Err(format!(
                "{at} overlaps {there}, which at {speed} takes lanes {first} to {last} of connector {}",
                at.connector
            ));
        }
        self.ports.insert(number, port);
        Ok(number)
    }
}

/// The lanes of a port with these settings, if ports can have them.
fn lanes_of(
    kind: &FrontPanelPorts,
    PortSettings { speed, fec, .. }: PortSettings,
) -> Result<u8, String> {
    let lanes = kind.lanes_at(speed);
    let lanes = lanes.ok_or_else(|| format!("the ports do not support speed {speed}"))?;
    match fec.suits(speed) {
        true => Ok(lanes),
        false => Err(format!("fec {fec} is not supported at {speed}")),
    }
}

impl FrontPort {
    /// True if both ports take the same lane.
    fn meets(&self, other: &FrontPort) -> bool {
        let [(one, width), (two, other_width)] = [(self.at, self.lanes), (other.at, other.lanes)];
        one.connector == two.connector
            && one.channel < two.channel + other_width
            && two.channel < one.channel + width
    }

    /// True if the port is a channel of a broken-out connector.
    pub(crate) fn is_channel(&self, kind: &FrontPanelPorts) -> bool {
        self.lanes < kind.lanes
    }
}
