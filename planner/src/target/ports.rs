//! The numbering of a target's ports, and the ports that links may use.

use std::ops::RangeInclusive;

use ultima_p4runtime::tofino::{Chip, PortFault};

use super::{PortNumber, Speed};

/// The ports of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Ports with the numbers that the fabric's file uses.
    Flat {
        /// The lowest port for links.
        first: u16,
        /// The highest port for links.
        last: u16,
    },
    /// A front panel, which the fabric's file names, in front of a chip with its own numbers: see
    /// [`FrontPanelPorts`].
    FrontPanel(FrontPanelPorts),
}

impl Ports {
    /// The range of port numbers.
    pub fn numbers(&self) -> RangeInclusive<u16> {
        match *self {
            Ports::Flat { first, last } => first..=last,
            Ports::FrontPanel(ports) => 0..=ports.chip.ports_end() - 1,
        }
    }

    /// A port's name in a fabric's file, as an example.
    pub fn example(&self) -> &'static str {
        match self {
            Ports::Flat { .. } => "1",
            Ports::FrontPanel(_) => "1/0",
        }
    }
}

/// The front-panel ports of a chip with several pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontPanelPorts {
    /// The chip, which defines the device ports.
    pub chip: &'static Chip,
    /// The lanes of a connector, which are also the most channels of a breakout.
    pub lanes: u8,
    /// The supported speeds, with the lanes that a port of each takes.
    pub speeds: &'static [(Speed, u8)],
    /// The default speed.
    pub usual_speed: Speed,
}

impl FrontPanelPorts {
    /// Checks that links may use a device port.
    ///
    /// # Errors
    /// The reason why they may not.
    pub fn check(&self, port: PortNumber) -> Result<(), PortFault> {
        self.chip.check_front_panel(port.0)
    }

    /// The lanes of a port with this speed; none if the speed is not supported.
    pub(crate) fn lanes_at(&self, speed: Speed) -> Option<u8> {
        let mut speeds = self.speeds.iter();
        let found = speeds.find(|(known, _)| *known == speed);
        found.map(|(_, lanes)| *lanes)
    }

    /// The supported speeds, as a list.
    pub(crate) fn known_speeds(&self) -> String {
        let speeds: Vec<String> = self.speeds.iter().map(|(it, _)| it.to_string()).collect();
        speeds.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{BOARDS, TARGETS};

    #[test]
    fn the_loss_session_is_on_no_front_panel_port() {
        for target in TARGETS {
            let port = target.loss_session;
            match target.ports {
                Ports::Flat { first, last } => assert!(!(first..=last).contains(&port.0)),
                Ports::FrontPanel(ports) => assert!(ports.check(port).is_err()),
            }
        }
    }

    /// Every lane of every connector is a front-panel port of the chip, and no two lanes share one.
    #[test]
    fn boards_map_lanes_to_distinct_front_panel_ports() {
        for board in BOARDS {
            let Ports::FrontPanel(ports) = board.target.ports else {
                panic!("{} has a front panel", board.name);
            };
            let first = board.first_ports.iter().copied();
            let mut all: Vec<u16> = first
                .flat_map(|first| (0..u16::from(ports.lanes)).map(move |lane| first + lane))
                .collect();
            for port in &all {
                assert_eq!(ports.check(PortNumber(*port)), Ok(()), "{}", board.name);
            }
            let lanes = all.len();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), lanes, "{}", board.name);
        }
    }
}
