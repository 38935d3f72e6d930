//! How a target's ports are numbered, and which of them links may use.

use std::ops::RangeInclusive;

use ultima_p4runtime::tofino::{Chip, PortFault};

use super::{PortNumber, Speed};

/// The ports of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Numbered as the fabric names them.
    Flat {
        /// The lowest that links may use.
        first: u16,
        /// The highest.
        last: u16,
    },
    /// A front panel, which the fabric names, in front of a chip with pipes, which numbers its own: see [`FrontPanelPorts`].
    FrontPanel(FrontPanelPorts),
}

impl Ports {
    /// The numbers that ports may have.
    pub fn numbers(&self) -> RangeInclusive<u16> {
        match *self {
            Ports::Flat { first, last } => first..=last,
            Ports::FrontPanel(ports) => 0..=ports.chip.ports_end() - 1,
        }
    }

    /// What a fabric's file calls a port.
    pub fn example(&self) -> &'static str {
        match self {
            Ports::Flat { .. } => "1",
            Ports::FrontPanel(_) => "1/0",
        }
    }
}

/// The ports of a chip with several pipes, as a front panel leads to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontPanelPorts {
    /// The chip, which says what its device ports are.
    pub chip: &'static Chip,
    /// Lanes of a connector, and so the most channels that it can be broken out to.
    pub lanes: u8,
    /// What its ports can be set to, with the lanes that each takes.
    pub speeds: &'static [(Speed, u8)],
    /// What a port has unless the fabric says otherwise.
    pub usual_speed: Speed,
}

impl FrontPanelPorts {
    /// Whether a link can be at a device port.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, port: PortNumber) -> Result<(), PortFault> {
        self.chip.check_front_panel(port.0)
    }

    /// The lanes that a port of this speed takes; none where there are no such ports.
    pub fn lanes_at(&self, speed: Speed) -> Option<u8> {
        let mut speeds = self.speeds.iter();
        let found = speeds.find(|(known, _)| *known == speed);
        found.map(|(_, lanes)| *lanes)
    }

    /// The speeds that ports can be set to, as a list.
    pub fn known_speeds(&self) -> String {
        let speeds: Vec<String> = self.speeds.iter().map(|(it, _)| it.to_string()).collect();
        speeds.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{BOARDS, TARGETS};

    #[test]
    fn the_loss_session_is_no_front_panel_port_anywhere() {
        for target in TARGETS {
            let port = target.loss_session;
            match target.ports {
                Ports::Flat { first, last } => assert!(!(first..=last).contains(&port.0)),
                Ports::FrontPanel(ports) => assert!(ports.check(port).is_err()),
            }
        }
    }

    /// Every lane of every connector of every board is a front-panel port of its chip, and no two are one.
    #[test]
    fn boards_lead_to_ports_that_links_may_use() {
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
