//! Builds a switch's front panel from its port map and ports in YAML.

use std::fmt::Display;

use super::Checker;
use crate::fabric::file::SwitchFile;
use crate::fabric::front_panel::{FrontPanel, PanelPort, PortMap, PortSettings};
use crate::fabric::link::LinkEnd;
use crate::fabric::panel_file::{PortFile, PortMapFile};
use crate::fabric::{SwitchId, SwitchPort};
use crate::target::{BOARDS, Fec, FrontPanelPorts, PortNumber, Ports, Speed, Target};
use crate::yaml::LoadError;

impl Checker<'_> {
    /// A switch's front panel with the ports in the file; none if the target has none.
    pub(super) fn panel(
        &self,
        field: &str,
        target: &'static Target,
        file: &SwitchFile,
    ) -> Result<Option<FrontPanel>, LoadError> {
        let Ports::FrontPanel(kind) = target.ports else {
            return self.no_panel(field, target, file).map(|()| None);
        };
        let reader = Reader {
            checker: self,
            field,
            target,
            kind,
        };
        let map = reader.port_map(file.port_map.as_ref())?;
        let speed = match &file.speed {
            None => kind.usual_speed,
            Some(text) => reader.speed(text, "speed")?,
        };
        let usual = PortSettings {
            speed,
            fec: match &file.fec {
                None => Fec::usual(speed),
                Some(text) => reader.fec(text, "fec")?,
            },
            autoneg: file.autoneg,
        };
        let mut panel = FrontPanel::new(kind, map, usual).map_err(|problem| {
            let given = [("fec", file.fec.is_some()), ("speed", file.speed.is_some())];
            let given = given.into_iter().find(|(_, is_given)| *is_given);
            let at = given.map_or("name", |(name, _)| name);
            let place = self.text.place(&format!("{field}.{at}"));
            LoadError::at(&place, &format!("{field}.fec"), problem)
        })?;
        for (index, port) in file.ports.iter().flatten().enumerate() {
            reader.ports(&mut panel, index, port)?;
        }
        Ok(Some(panel))
    }

    /// Checks that the file has no front-panel settings.
    fn no_panel(
        &self,
        field: &str,
        target: &'static Target,
        file: &SwitchFile,
    ) -> Result<(), LoadError> {
        let given = [
            ("server", file.server.is_some()),
            ("port_map", file.port_map.is_some()),
            ("speed", file.speed.is_some()),
            ("fec", file.fec.is_some()),
            ("autoneg", file.autoneg.is_some()),
            ("ports", file.ports.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => {
                let problem = format!(
                    "target {} has no front panel; leave the field out, or set another target",
                    target.name
                );
                Err(self.fail(&format!("{field}.{name}"), problem))
            }
        }
    }

    /// The number of a port that a link names. Adds the port to the front panel if it is not in use
    /// yet.
    pub(super) fn port_number(
        &mut self,
        switch: SwitchId,
        label: &str,
    ) -> Result<PortNumber, String> {
        let switch = &mut self.switches[switch.0];
        let (target, name) = (switch.target, &switch.name);
        let Some(panel) = &mut switch.panel else {
            return flat_port(target, name, label);
        };
        let at = PanelPort::parse(label).ok_or_else(|| {
            format!(
                "unknown port {label:?} of {name}; ports of target {} are CONNECTOR/CHANNEL, such as {name}/1/0",
                target.name
            )
        })?;
        match panel.number_of(at) {
            Some(number) => Ok(number),
            None => panel.add(at, panel.usual()),
        }
    }

    /// The speed of the ports at a link's ends; none if neither is on a front panel.
    pub(super) fn speed(&self, ends: [LinkEnd; 2]) -> Result<Option<Speed>, String> {
        let setting = |end: LinkEnd| {
            let LinkEnd::Port(SwitchPort { switch, port }) = end else {
                return None;
            };
            let switch = &self.switches[switch.0];
            let found = switch.panel.as_ref()?.port(port)?;
            Some((
                format!("{}/{}", switch.name, found.at),
                found.settings.speed,
            ))
        };
        match ends.map(setting) {
            [Some((one, speed)), Some((other, other_speed))] if speed != other_speed => {
                Err(format!(
                    "{one} has speed {speed}, but {other} has {other_speed}; set both to the same speed"
                ))
            }
            [one, other] => Ok(one.or(other).map(|(_, speed)| speed)),
        }
    }
}

/// The number of a port that is named by its number.
fn flat_port(target: &'static Target, switch: &str, label: &str) -> Result<PortNumber, String> {
    let numbers = target.ports.numbers();
    let number = label.parse().ok().filter(|port| numbers.contains(port));
    number.map(PortNumber).ok_or_else(|| {
        format!(
            "unknown port {label:?} of {switch}; target {} has {} to {}",
            target.name,
            numbers.start(),
            numbers.end()
        )
    })
}

/// Reads one switch's front-panel settings.
struct Reader<'a, 'b> {
    checker: &'a Checker<'b>,
    field: &'a str,
    target: &'static Target,
    kind: FrontPanelPorts,
}

impl Reader<'_, '_> {
    fn fail(&self, field: &str, problem: impl Display) -> LoadError {
        let field = format!("{}.{field}", self.field);
        self.checker.fail(&field, problem)
    }

    fn port_map(&self, file: Option<&PortMapFile>) -> Result<PortMap, LoadError> {
        let known = || BOARDS.iter().filter(|board| board.target == self.target);
        let board = match file {
            // Every target with a front panel has a board.
            None => known().next().map_or(&BOARDS[0], |board| board),
            Some(PortMapFile::Board(name)) => {
                let board = known().find(|board| board.name == name);
                board.ok_or_else(|| {
                    let known: Vec<&str> = known().map(|board| board.name).collect();
                    let problem = format!(
                        "unknown board {name:?} for target {}; known boards: {}; for another board, list the first device port of each connector, such as {{ 1: 132, 2: 140 }}",
                        self.target.name,
                        known.join(", ")
                    );
                    self.fail("port_map", problem)
                })?
            }
            Some(PortMapFile::Connectors(ports)) => {
                let map = PortMap::new(ports.iter().copied(), &self.kind);
                return map.map_err(|problem| self.fail("port_map", problem));
            }
        };
        Ok(PortMap::of_board(board))
    }

    fn speed(&self, text: &str, field: &str) -> Result<Speed, LoadError> {
        let speed = text.parse().ok();
        let speed = speed.filter(|speed| self.kind.lanes_at(*speed).is_some());
        speed.ok_or_else(|| {
            let problem = format!(
                "invalid speed {text:?}; ports of target {} have {}",
                self.target.name,
                self.kind.known_speeds()
            );
            self.fail(field, problem)
        })
    }

    fn fec(&self, text: &str, field: &str) -> Result<Fec, LoadError> {
        text.parse().map_err(|()| {
            let problem = format!(
                "invalid forward error correction {text:?}; use none, fc (Firecode) or rs (Reed-Solomon)"
            );
            self.fail(field, problem)
        })
    }

    /// Adds one port, or all channels of a broken-out connector.
    fn ports(
        &self,
        panel: &mut FrontPanel,
        index: usize,
        file: &PortFile,
    ) -> Result<(), LoadError> {
        let field = |name: &str| format!("ports[{index}].{name}");
        let first = file.port.parse().map(|connector| PanelPort {
            connector,
            channel: 0,
        });
        let first = (first.ok()).or_else(|| PanelPort::parse(&file.port));
        let first = first.ok_or_else(|| {
            let problem = format!(
                "invalid front-panel port {:?}; use CONNECTOR/CHANNEL, such as 1/0, or CONNECTOR for its first port",
                file.port
            );
            self.fail(&field("port"), problem)
        })?;
        let usual = panel.usual();
        let (channels, lanes, speed) = match (&file.breakout, &file.speed) {
            (Some(_), Some(_)) => {
                let problem = "`breakout` sets the channels' speed; leave `speed` out";
                return Err(self.fail(&field("breakout"), problem));
            }
            (Some(text), None) => self.breakout(text, first, &field("breakout"))?,
            (None, Some(text)) => (1, 0, self.speed(text, &field("speed"))?),
            (None, None) => (1, 0, usual.speed),
        };
        let settings = PortSettings {
            speed,
            fec: match &file.fec {
                Some(text) => self.fec(text, &field("fec"))?,
                None if usual.fec.suits(speed) => usual.fec,
                None => Fec::usual(speed),
            },
            autoneg: file.autoneg.or(usual.autoneg),
        };
        for channel in 0..channels {
            let at = PanelPort {
                channel: first.channel + channel * lanes,
                ..first
            };
            let added = panel.add(at, settings);
            added.map_err(|problem| self.fail(&field("port"), problem))?;
        }
        Ok(())
    }

    /// The channels of a connector, the lanes of each, and their speed.
    fn breakout(
        &self,
        text: &str,
        first: PanelPort,
        field: &str,
    ) -> Result<(u8, u8, Speed), LoadError> {
        let lanes = self.kind.lanes;
        let parsed = text.split_once('x').and_then(|(channels, speed)| {
            let (channels, speed) = (channels.parse::<u8>().ok()?, speed.parse().ok()?);
            let whole = channels > 0 && lanes.is_multiple_of(channels) && first.channel == 0;
            let each = whole.then(|| lanes / channels)?;
            Some((channels, each, speed, self.kind.lanes_at(speed)?))
        });
        let problem = match parsed {
            Some((channels, each, speed, needed)) if needed <= each => {
                return Ok((channels, each, speed));
            }
            Some((channels, _, speed, needed)) => format!(
                "{channels}x{speed} needs more than the connector's {lanes} lanes: a port of {speed} takes {needed} lanes of {} each; use {}x{speed}",
                speed.of_lanes(needed),
                lanes / needed
            ),
            None => format!(
                "invalid breakout {text:?} of a connector with {lanes} lanes; use CHANNELSxSPEED, such as {lanes}x25G"
            ),
        };
        Err(self.fail(field, problem))
    }
}
