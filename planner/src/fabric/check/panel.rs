//! Builds a switch's front panel from its port map and ports in YAML.

use serde_yaml::Spanned;

use super::Checker;
use crate::fabric::error::{FabricError, FabricProblem};
use crate::fabric::file::SwitchFile;
use crate::fabric::front_panel::{FrontPanel, PanelPort, PortMap, PortSettings};
use crate::fabric::link::LinkEnd;
use crate::fabric::panel_file::{PortFile, PortMapFile};
use crate::fabric::{SwitchId, SwitchPort};
use crate::target::{BOARDS, Fec, FrontPanelPorts, PortNumber, Ports, Speed, Target};

impl Checker<'_> {
    /// A switch's front panel with the ports in the file; none if the target has none.
    pub(super) fn panel(
        &self,
        field: &str,
        target: &'static Target,
        file: &SwitchFile,
    ) -> Result<Option<FrontPanel>, FabricError> {
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
            autoneg: file.autoneg.as_ref().map(|autoneg| autoneg.value),
        };
        let mut panel = FrontPanel::new(kind, map, usual).map_err(|problem| {
            let at = file.fec.as_ref().or(file.speed.as_ref());
            self.fail(
                at.unwrap_or(&file.name),
                format!("{field}.fec"),
                problem.into(),
            )
        })?;
        for (index, port) in file.ports.iter().flat_map(|it| &it.value).enumerate() {
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
    ) -> Result<(), FabricError> {
        let given = [
            ("server", file.server.as_ref().map(|it| it.referenced)),
            ("port_map", file.port_map.as_ref().map(|it| it.referenced)),
            ("speed", file.speed.as_ref().map(|it| it.referenced)),
            ("fec", file.fec.as_ref().map(|it| it.referenced)),
            ("autoneg", file.autoneg.as_ref().map(|it| it.referenced)),
            ("ports", file.ports.as_ref().map(|it| it.referenced)),
        ];
        match given.into_iter().find_map(|(name, at)| Some((name, at?))) {
            None => Ok(()),
            Some((name, at)) => {
                let at = Spanned::new((), at, at);
                let problem = FabricProblem::NoPanel(target.name);
                Err(self.fail(&at, format!("{field}.{name}"), problem))
            }
        }
    }

    /// The number of a port that a link names. Adds the port to the front panel if it is not in use
    /// yet.
    pub(super) fn port_number(
        &mut self,
        switch: SwitchId,
        label: &str,
    ) -> Result<PortNumber, FabricProblem> {
        let switch = &mut self.switches[switch.0];
        let target = switch.target;
        let Some(panel) = &mut switch.panel else {
            return flat_port(target, &switch.name, label);
        };
        let at = PanelPort::parse(label).ok_or_else(|| FabricProblem::PanelPort {
            port: label.to_owned(),
            switch: switch.name.clone(),
            target: target.name,
        })?;
        match panel.number_of(at) {
            Some(number) => Ok(number),
            None => Ok(panel.add(at, panel.usual())?),
        }
    }

    /// The speed of the ports at a link's ends; none if neither is on a front panel.
    pub(super) fn speed(&self, ends: [LinkEnd; 2]) -> Result<Option<Speed>, FabricProblem> {
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
                Err(FabricProblem::TwoSpeeds {
                    ends: [one, other],
                    speeds: [speed, other_speed],
                })
            }
            [one, other] => Ok(one.or(other).map(|(_, speed)| speed)),
        }
    }
}

/// The number of a port that is named by its number.
fn flat_port(
    target: &'static Target,
    switch: &str,
    label: &str,
) -> Result<PortNumber, FabricProblem> {
    let numbers = target.ports.numbers();
    let number = label.parse().ok().filter(|port| numbers.contains(port));
    number.map(PortNumber).ok_or_else(|| FabricProblem::Port {
        port: label.to_owned(),
        switch: switch.to_owned(),
        target: target.name,
        first: *numbers.start(),
        last: *numbers.end(),
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
    fn fail<T>(&self, at: &Spanned<T>, field: &str, problem: FabricProblem) -> FabricError {
        let field = format!("{}.{field}", self.field);
        self.checker.fail(at, field, problem)
    }

    fn port_map(&self, file: Option<&Spanned<PortMapFile>>) -> Result<PortMap, FabricError> {
        let known = || BOARDS.iter().filter(|board| board.target == self.target);
        let board = match file.map(|file| (file, &file.value)) {
            // Every target with a front panel has a board.
            None => known().next().map_or(&BOARDS[0], |board| board),
            Some((at, PortMapFile::Board(name))) => {
                let board = known().find(|board| board.name == name);
                board.ok_or_else(|| {
                    let known: Vec<&str> = known().map(|board| board.name).collect();
                    let problem = FabricProblem::Board {
                        name: name.clone(),
                        target: self.target.name,
                        known: known.join(", "),
                    };
                    self.fail(at, "port_map", problem)
                })?
            }
            Some((at, PortMapFile::Connectors(ports))) => {
                let map = PortMap::new(ports.iter().copied(), &self.kind);
                return map.map_err(|problem| self.fail(at, "port_map", problem.into()));
            }
        };
        Ok(PortMap::of_board(board))
    }

    fn speed(&self, text: &Spanned<String>, field: &str) -> Result<Speed, FabricError> {
        let speed = text.value.parse().ok();
        let speed = speed.filter(|speed| self.kind.lanes_at(*speed).is_some());
        speed.ok_or_else(|| {
            let problem = FabricProblem::Speed {
                text: text.value.clone(),
                target: self.target.name,
                known: self.kind.known_speeds(),
            };
            self.fail(text, field, problem)
        })
    }

    fn fec(&self, text: &Spanned<String>, field: &str) -> Result<Fec, FabricError> {
        text.value.parse().map_err(|()| {
            let problem = FabricProblem::Fec(text.value.clone());
            self.fail(text, field, problem)
        })
    }

    /// Adds one port, or all channels of a broken-out connector.
    fn ports(
        &self,
        panel: &mut FrontPanel,
        index: usize,
        file: &PortFile,
    ) -> Result<(), FabricError> {
        let field = |name: &str| format!("ports[{index}].{name}");
        let first = file.port.value.parse().map(|connector| PanelPort {
            connector,
            channel: 0,
        });
        let first = (first.ok()).or_else(|| PanelPort::parse(&file.port.value));
        let first = first.ok_or_else(|| {
            let problem = FabricProblem::Connector(file.port.value.clone());
            self.fail(&file.port, &field("port"), problem)
        })?;
        let usual = panel.usual();
        let (channels, lanes, speed) = match (&file.breakout, &file.speed) {
            (Some(at), Some(_)) => {
                let problem = FabricProblem::BreakoutWithSpeed;
                return Err(self.fail(at, &field("breakout"), problem));
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
            autoneg: match &file.autoneg {
                Some(autoneg) => Some(autoneg.value),
                None => usual.autoneg,
            },
        };
        for channel in 0..channels {
            let at = PanelPort {
                channel: first.channel + channel * lanes,
                ..first
            };
            let added = panel.add(at, settings);
            added.map_err(|problem| self.fail(&file.port, &field("port"), problem.into()))?;
        }
        Ok(())
    }

    /// The channels of a connector, the lanes of each, and their speed.
    fn breakout(
        &self,
        text: &Spanned<String>,
        first: PanelPort,
        field: &str,
    ) -> Result<(u8, u8, Speed), FabricError> {
        let lanes = self.kind.lanes;
        let parsed = text.value.split_once('x').and_then(|(channels, speed)| {
            let (channels, speed) = (channels.parse::<u8>().ok()?, speed.parse().ok()?);
            let whole = channels > 0 && lanes.is_multiple_of(channels) && first.channel == 0;
            let each = whole.then(|| lanes / channels)?;
            Some((channels, each, speed, self.kind.lanes_at(speed)?))
        });
        let problem = match parsed {
            Some((channels, each, speed, needed)) if needed <= each => {
                return Ok((channels, each, speed));
            }
            Some((channels, _, speed, needed)) => FabricProblem::BreakoutLanes {
                channels,
                speed,
                needed,
                lanes,
            },
            None => FabricProblem::Breakout {
                text: text.value.clone(),
                lanes,
            },
        };
        Err(self.fail(text, field, problem))
    }
}
