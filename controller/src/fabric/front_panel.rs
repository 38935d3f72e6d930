//! The front panel of a switch: its connectors, what they are broken out to, and the device ports behind them.

use std::collections::BTreeMap;
use std::fmt;

use ultima_p4runtime::tofino::PortFault;

use crate::target::{Board, Fec, FrontPanelPorts, PortNumber, Speed};

/// A port as the front panel has it: `5/0` is the first channel of connector 5, and all of it where it is not broken
/// out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PanelPort {
    /// The connector, from 1.
    pub connector: u16,
    /// The first of its lanes that the port has, from 0.
    pub channel: u8,
}

impl PanelPort {
    /// The port written `CONNECTOR/CHANNEL`.
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

/// What a port is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Its speed.
    pub speed: Speed,
    /// Its forward error correction.
    pub fec: Fec,
    /// Whether it negotiates with the other end; none leaves that to the switch.
    pub autoneg: Option<bool>,
}

/// A port that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontPort {
    /// Where it is.
    pub at: PanelPort,
    /// What it is set to.
    pub settings: PortSettings,
    /// How many lanes it takes from its channel on.
    lanes: u8,
}

/// Why a port cannot be on a front panel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PanelError {
    /// No such connector.
    #[error("there is no connector {connector}; the port map has {first} to {last}")]
    NoConnector {
        /// The connector.
        connector: u16,
        /// The first that there is.
        first: u16,
        /// The last.
        last: u16,
    },
    /// Nothing is behind the connectors.
    #[error("the port map is empty")]
    NoConnectors,
    /// A speed that the chip does not have.
    #[error("ports have no speed of {0}")]
    NoSpeed(Speed),
    /// A port that does not begin where ports of its width do, or that is wider than what is left.
    #[error(
        "a port of {speed} takes {needed} of a connector's {lanes} lanes, of {} each: its channel is a multiple of {needed} below {lanes}, and not {}",
        speed.of_lanes(*needed),
        at.channel
    )]
    Lanes {
        /// The port.
        at: PanelPort,
        /// Its speed.
        speed: Speed,
        /// Lanes that it takes.
        needed: u8,
        /// Lanes that there are.
        lanes: u8,
    },
    /// Two ports that take the same lane.
    #[error("{at} and {other} cannot both be: {other} at {speed} takes lanes {first} to {last} of connector {}", at.connector)]
    Taken {
        /// The port.
        at: PanelPort,
        /// The one that was there before.
        other: PanelPort,
        /// Its speed.
        speed: Speed,
        /// Its first lane.
        first: u8,
        /// Its last lane.
        last: u8,
    },
    /// Forward error correction that ports of the speed do not have.
    #[error("ports of {speed} cannot have fec {fec}")]
    Fec {
        /// The speed.
        speed: Speed,
        /// What was asked for.
        fec: Fec,
    },
}

/// The device port of the first channel of each connector; others follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMap(BTreeMap<u16, PortNumber>);

/// Why a port map is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortMapError {
    /// A lane that is no port of the front panel.
    #[error("connector {connector}: {fault}")]
    Fault {
        /// The connector.
        connector: u16,
        /// Why not.
        fault: PortFault,
    },
    /// Two connectors with a device port in common.
    #[error(
        "connectors {one} and {other} both have device port {port}; each has {lanes} of its own"
    )]
    Shared {
        /// One connector.
        one: u16,
        /// The other one.
        other: u16,
        /// The device port.
        port: PortNumber,
        /// Lanes of a connector.
        lanes: u8,
    },
}

impl PortMap {
    /// The map of first device ports by connector.
    ///
    /// # Errors
    /// A lane of a connector is no port that links may use, or belongs to two.
    pub fn new(
        first_ports: impl IntoIterator<Item = (u16, u16)>,
        ports: &FrontPanelPorts,
    ) -> Result<Self, PortMapError> {
        let mut map = BTreeMap::new();
        let mut taken: BTreeMap<u16, u16> = BTreeMap::new();
        for (connector, first) in first_ports {
            for lane in 0..u16::from(ports.lanes) {
                // A number that is too large stays one.
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

    /// A board's.
    pub fn of_board(board: &Board) -> Self {
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
    /// One without ports in use; those that are not set otherwise are `usual`.
    ///
    /// # Errors
    /// No port can be as the usual ones are to be.
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

    /// What kind of ports it has.
    pub fn kind(&self) -> &FrontPanelPorts {
        &self.kind
    }

    /// What its ports are unless they are set otherwise.
    pub fn usual(&self) -> PortSettings {
        self.usual
    }

    /// The ports in use, by device port.
    pub fn ports(&self) -> impl Iterator<Item = (PortNumber, &FrontPort)> {
        self.ports.iter().map(|(number, port)| (*number, port))
    }

    /// One of them.
    pub fn port(&self, number: PortNumber) -> Option<&FrontPort> {
        self.ports.get(&number)
    }

    /// The device port of a port that is in use.
    pub fn number_of(&self, at: PanelPort) -> Option<PortNumber> {
        let mut ports = self.ports.iter();
        ports
            .find(|(_, port)| port.at == at)
            .map(|(number, _)| *number)
    }

    /// Takes a port into use, with these settings.
    ///
    /// # Errors
    /// Why it cannot be there.
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
    /// Whether both take one lane.
    fn meets(&self, other: &FrontPort) -> bool {
        let [(one, width), (two, other_width)] = [(self.at, self.lanes), (other.at, other.lanes)];
        one.connector == two.connector
            && one.channel < two.channel + other_width
            && two.channel < one.channel + width
    }

    /// Whether the connector is broken out: whether the port leaves lanes to others.
    pub fn is_channel(&self, kind: &FrontPanelPorts) -> bool {
        self.lanes < kind.lanes
    }
}
