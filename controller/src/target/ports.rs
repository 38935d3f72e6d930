//! How a target's ports are numbered, and which of them links may use.

use std::ops::RangeInclusive;

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
            Ports::FrontPanel(ports) => 0..=(ports.pipes << PIPE_SHIFT) - 1,
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
///
/// A device port's number has nine bits: the pipe in the upper two, its place in the pipe in the lower seven
/// (open-p4studio, `bf_types.h`: `DEV_PORT_TO_PIPE`, `DEV_PORT_TO_LOCAL_PORT`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontPanelPorts {
    /// Pipes of the largest chip of the family.
    pub pipes: u16,
    /// The lowest place in each pipe that leads to the front panel.
    pub first: u16,
    /// The highest.
    pub last: u16,
    /// Lanes of a connector, and so the most channels that it can be broken out to.
    pub lanes: u8,
    /// What its ports can be set to, with the lanes that each takes.
    pub speeds: &'static [(Speed, u8)],
    /// What a port has unless the fabric says otherwise.
    pub usual_speed: Speed,
}

/// Why no link can be at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortFault {
    /// It has more than nine bits, or is in a pipe that the chip does not have.
    #[error("device port {port} is in pipe {pipe}, and the chip has {pipes}: 0 to {}", pipes - 1)]
    NoPipe {
        /// The number.
        port: u16,
        /// Its pipe.
        pipe: u16,
        /// How many there are.
        pipes: u16,
    },
    /// It is the CPU's, or packets that leave by it come in again, or there is none.
    #[error(
        "device port {port} is port {local} of pipe {pipe}, where CPU and recirculation are; those of the front panel are {first} to {last} of each pipe"
    )]
    Internal {
        /// The number.
        port: u16,
        /// Its pipe.
        pipe: u16,
        /// Its place there.
        local: u16,
        /// The lowest place that links may use.
        first: u16,
        /// The highest.
        last: u16,
    },
}

/// The pipe of a device port.
const PIPE_SHIFT: u16 = 7;
const LOCAL_MASK: u16 = (1 << PIPE_SHIFT) - 1;

impl FrontPanelPorts {
    /// Whether a link can be at a device port.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, PortNumber(port): PortNumber) -> Result<(), PortFault> {
        let (pipe, local) = (port >> PIPE_SHIFT, port & LOCAL_MASK);
        if pipe >= self.pipes {
            return Err(PortFault::NoPipe {
                port,
                pipe,
                pipes: self.pipes,
            });
        }
        if !self.places().contains(&local) {
            return Err(PortFault::Internal {
                port,
                pipe,
                local,
                first: self.first,
                last: self.last,
            });
        }
        Ok(())
    }

    /// The lanes that a port of this speed takes; none where there are no such ports.
    pub fn lanes_at(&self, speed: Speed) -> Option<u8> {
        let mut speeds = self.speeds.iter();
        speeds
            .find(|(known, _)| *known == speed)
            .map(|(_, lanes)| *lanes)
    }

    /// The speeds that ports can be set to, as a list.
    pub fn known_speeds(&self) -> String {
        let speeds: Vec<String> = self.speeds.iter().map(|(it, _)| it.to_string()).collect();
        speeds.join(", ")
    }

    fn places(&self) -> RangeInclusive<u16> {
        self.first..=self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{BOARDS, TARGETS, TOFINO, TOFINO2};

    fn of(target: &super::super::Target) -> FrontPanelPorts {
        match target.ports {
            Ports::FrontPanel(ports) => ports,
            Ports::Flat { .. } => panic!("{} has a front panel", target.name),
        }
    }

    #[test]
    fn cpu_and_recirculation_ports_are_refused_by_pipe_and_place() {
        let tofino = of(&TOFINO);
        assert_eq!(tofino.check(PortNumber(0)), Ok(()));
        assert_eq!(tofino.check(PortNumber(3 << 7 | 63)), Ok(()));
        // The CPU's MAC in pipe 0, recirculation in pipe 1; no fifth pipe.
        for (port, text) in [
            (
                64,
                "device port 64 is port 64 of pipe 0, where CPU and recirculation are; those of the front panel are 0 to 63 of each pipe",
            ),
            (
                196,
                "device port 196 is port 68 of pipe 1, where CPU and recirculation are; those of the front panel are 0 to 63 of each pipe",
            ),
            (
                512,
                "device port 512 is in pipe 4, and the chip has 4: 0 to 3",
            ),
        ] {
            assert_eq!(
                tofino.check(PortNumber(port)).unwrap_err().to_string(),
                text
            );
        }
        let tofino2 = of(&TOFINO2);
        assert_eq!(tofino2.check(PortNumber(8)), Ok(()));
        assert_eq!(tofino2.check(PortNumber(128 | 71)), Ok(()));
        for port in [0, 7, 128, 72, 127] {
            assert!(tofino2.check(PortNumber(port)).is_err(), "{port}");
        }
    }

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
            let ports = of(board.target);
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
