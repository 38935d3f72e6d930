//! A switch's front panel: its connectors, their breakout, and the device ports behind them.

use std::collections::BTreeMap;
use std::fmt;

use ultima_p4runtime::tofino::PortFault;

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

/// Reason why a port does not fit the front panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PanelError {
    /// An unknown connector.
    #[error("unknown connector {connector}; the port map has {first} to {last}")]
    NoConnector {
        /// The connector.
        connector: u16,
        /// The first connector.
        first: u16,
        /// The last connector.
        last: u16,
    },
    /// A port map without connectors.
    #[error("the port map is empty")]
    NoConnectors,
    /// A speed that the chip does not have.
    #[error("the ports do not support speed {0}")]
    NoSpeed(Speed),
    /// A channel at which no port of this width begins.
    #[error(
        "invalid channel {1}: a port of {speed} takes {needed} of the connector's {lanes} lanes, {0} each; use a multiple of {needed} below {lanes}",
        speed.of_lanes(*needed),
        at.channel
    )]
    Lanes {
        /// The port.
        at: PanelPort,
        /// Its speed.
        speed: Speed,
        /// The lanes of the port.
        needed: u8,
        /// The lanes of the connector.
        lanes: u8,
    },
    /// Two ports that overlap.
    #[error("{at} overlaps {other}, which at {speed} takes lanes {first} to {last} of connector {}", at.connector)]
    Taken {
        /// The port.
        at: PanelPort,
        /// The existing port.
        other: PanelPort,
        /// The speed of the existing port.
        speed: Speed,
        /// Its first lane.
        first: u8,
        /// Its last lane.
        last: u8,
    },
    /// Error correction that the speed does not support.
    #[error("fec {fec} is not supported at {speed}")]
    Fec {
        /// The speed.
        speed: Speed,
        /// The requested error correction.
        fec: Fec,
    },
}

/// The device port of each connector's first channel; the other channels follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMap(BTreeMap<u16, PortNumber>);

/// Reason why a port map is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortMapError {
    /// A lane that is not a front-panel port.
    #[error("connector {connector}: {fault}")]
    Fault {
        /// The connector.
        connector: u16,
        /// The reason.
        fault: PortFault,
    },
    /// Two connectors that share a device port.
    #[error(
        "connectors {one} and {other} both use device port {port}; each needs {lanes} of its own"
    )]
    Shared {
        /// One connector.
        one: u16,
        /// The other connector.
        other: u16,
        /// The shared device port.
        port: PortNumber,
        /// The lanes of a connector.
        lanes: u8,
    },
}

impl PortMap {
    /// Builds a map from the first device port of each connector.
    ///
    /// # Errors
    /// A lane of a connector is not a port for links, or belongs to two connectors.
    pub fn new(
        first_ports: impl IntoIterator<Item = (u16, u16)>,
        ports: &FrontPanelPorts,
    ) -> Result<Self, PortMapError> {
        let mut map = BTreeMap::new();
        let mut taken: BTreeMap<u16, u16> = BTreeMap::new();
        for (connector, first) in first_ports {
            for lane in 0..u16::from(ports.lanes) {
                // Saturates: a number that is too large stays too large.
                let port = first.saturating_add(lane);
                let fault = |fault| PortMapError::Fault { connector, fault };
                ports.check(PortNumber(port)).map_err(fault)?;
                if let Some(one) = taken.insert(port, connector) {
                    return Err(PortMapError::Shared {
                        one,
                        other: connector,
                        port: PortNumber(port),
                        lanes: ports.lanes,
                    });
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

    fn device_port(&self, at: PanelPort) -> Result<PortNumber, PanelError> {
        if let Some(PortNumber(first)) = self.0.get(&at.connector) {
            return Ok(PortNumber(first + u16::from(at.channel)));
        }
        match (self.0.keys().next(), self.0.keys().next_back()) {
            (Some(first), Some(last)) => Err(PanelError::NoConnector {
                connector: at.connector,
                first: *first,
                last: *last,
            }),
            _ => Err(PanelError::NoConnectors),
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
    pub fn new(
        kind: FrontPanelPorts,
        map: PortMap,
        usual: PortSettings,
    ) -> Result<Self, PanelError> {
        kind.lanes_at(usual.speed)
            .ok_or(PanelError::NoSpeed(usual.speed))?;
        check_fec(usual)?;
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
    pub fn add(&mut self, at: PanelPort, settings: PortSettings) -> Result<PortNumber, PanelError> {
        let lanes = self.kind.lanes;
        let speed = settings.speed;
        let needed = (self.kind.lanes_at(speed)).ok_or(PanelError::NoSpeed(speed))?;
        check_fec(settings)?;
        if !at.channel.is_multiple_of(needed) || at.channel >= lanes {
            return Err(PanelError::Lanes {
                at,
                speed,
                needed,
                lanes,
            });
        }
        let number = self.map.device_port(at)?;
        let port = FrontPort {
            at,
            settings,
            lanes: needed,
        };
        if let Some(other) = self.ports.values().find(|other| other.meets(&port)) {
            return Err(PanelError::Taken {
                at,
                other: other.at,
                speed: other.settings.speed,
                first: other.at.channel,
                last: other.at.channel + other.lanes - 1,
            });
        }
        self.ports.insert(number, port);
        Ok(number)
    }
}

fn check_fec(PortSettings { speed, fec, .. }: PortSettings) -> Result<(), PanelError> {
    match fec.suits(speed) {
        true => Ok(()),
        false => Err(PanelError::Fec { speed, fec }),
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
