//! How ports are opened, when the switch starts and while it runs.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::PortConfig;
use crate::datapath::NewPort;
use crate::notify::Notifier;
use crate::pcap::Capture;
use crate::port;
use crate::port::controller::{self, ControllerPort};
use crate::switch::SwitchError;
use crate::tm::WireConfig;

/// What a switch's ports have in common.
pub(crate) struct PortOpener {
    seed: u64,
    pcap_dir: Option<PathBuf>,
    replay_after: Duration,
}

impl PortOpener {
    /// Makes the folder for captures, if there are to be any.
    pub(crate) fn new(
        seed: u64,
        pcap_dir: Option<PathBuf>,
        replay_after: Duration,
    ) -> Result<Self, SwitchError> {
        if let Some(dir) = &pcap_dir {
            std::fs::create_dir_all(dir).map_err(|source| SwitchError::Capture {
                dir: dir.clone(),
                source,
            })?;
        }
        Ok(PortOpener {
            seed,
            pcap_dir,
            replay_after,
        })
    }

    /// Opens a port's attachment and captures.
    pub(crate) fn open(&self, config: PortConfig) -> Result<NewPort, SwitchError> {
        let PortConfig {
            number,
            attach,
            wire,
        } = config;
        let attachment = attach.to_string();
        let io = port::open(attach, self.replay_after).map_err(|source| SwitchError::Attach {
            port: number,
            attachment: attachment.clone(),
            source,
        })?;
        let capture = self.capture(number)?;
        // Ports differ, and so do switches whose seeds are neighbours.
        let seed = self
            .seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(u64::from(number));
        Ok(NewPort {
            number,
            attachment,
            io,
            wire,
            seed,
            capture,
        })
    }

    /// Opens the port to the controllers.
    pub(crate) fn open_cpu_port(
        &self,
        number: u16,
        notifier: Notifier,
    ) -> Result<NewPort, SwitchError> {
        Ok(NewPort {
            number,
            attachment: controller::ATTACHMENT.to_owned(),
            io: Box::new(ControllerPort(notifier)),
            wire: WireConfig::default(),
            seed: 0,
            capture: self.capture(number)?,
        })
    }

    fn capture(&self, number: u16) -> Result<Option<Capture>, SwitchError> {
        let create = |dir: &PathBuf| {
            Capture::create(dir, number).map_err(|source| SwitchError::Capture {
                dir: dir.clone(),
                source,
            })
        };
        self.pcap_dir.as_ref().map(create).transpose()
    }
}
