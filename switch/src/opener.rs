//! Opens ports, at the start of the switch and while it runs.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::config::{Attach, CaptureNames, PortConfig};
use crate::datapath::NewPort;
use crate::error::SwitchError;
use crate::notify::Notifier;
use crate::pcap::Capture;
use crate::port;
use crate::port::controller::{self, ControllerPort};
use crate::tm::WireConfig;

/// Opens ports with the settings that a switch's ports share.
pub(crate) struct PortOpener {
    pub(crate) seed: u64,
    pub(crate) pcap_dir: Option<PathBuf>,
    /// The naming of captures: by interface or by port number.
    pub(crate) pcap_names: CaptureNames,
    pub(crate) priority_queues: u8,
    /// True if frames may leave through AF_XDP.
    pub(crate) send_rings: bool,
    /// Queues and wire of ports that are added later, where the request does not set them.
    pub(crate) added_wire: WireConfig,
    pub(crate) captured: Mutex<BTreeSet<String>>,
}

impl PortOpener {
    /// Creates the folder for captures, if one is configured.
    pub(crate) fn create_folder(&self) -> Result<(), SwitchError> {
        let create = |dir| std::fs::create_dir_all(dir).map_err(|source| cannot(dir, source));
        self.pcap_dir.as_deref().map_or(Ok(()), create)
    }

    /// Opens a port's attachment, without its captures; [`PortOpener::begin`] opens them.
    pub(crate) fn open(&self, config: PortConfig) -> Result<NewPort, SwitchError> {
        let PortConfig {
            number,
            attach,
            wire,
        } = config;
        let attachment = attach.to_string();
        let name = match (self.pcap_names, &attach) {
            (CaptureNames::Interface, Attach::Interface(name)) => name.clone(),
            _ => number.to_string(),
        };
        let io = port::open(attach, self.send_rings);
        let io = io.map_err(|source| SwitchError::Attach {
            port: number,
            attachment: attachment.clone(),
            source,
        })?;
        // Ports get different seeds, also on switches with consecutive seeds.
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
            priority_queues: self.priority_queues,
            capture: None,
            capture_name: Some(name),
        })
    }

    /// Opens the CPU port. It has no interface, so captures that are named by interface leave it out, as on BMv2.
    pub(crate) fn open_cpu_port(&self, number: u16, notifier: Notifier) -> NewPort {
        let by_number = self.pcap_names == CaptureNames::Number;
        NewPort {
            number,
            attachment: controller::ATTACHMENT.to_owned(),
            io: Box::new(ControllerPort(notifier)),
            wire: WireConfig::default(),
            seed: 0,
            priority_queues: self.priority_queues,
            capture: None,
            capture_name: by_number.then(|| number.to_string()),
        }
    }

    /// Opens the captures of an accepted port. A port that is added again appends to its captures; those of an earlier run are
    /// replaced.
    pub(crate) fn begin(&self, port: &mut NewPort) -> Result<(), SwitchError> {
        if let (Some(name), Some(dir)) = (&port.capture_name, &self.pcap_dir) {
            let mut captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
            let capture = Capture::open(dir, name, captured.contains(name));
            port.capture = Some(capture.map_err(|source| cannot(dir, source))?);
            captured.insert(name.clone());
        }
        Ok(())
    }
}

fn cannot(dir: &Path, source: io::Error) -> SwitchError {
    SwitchError::Capture {
        dir: dir.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify;

    /// Switches that share a folder for captures, as p4lang/tutorials' do, may have the same CPU port.
    #[test]
    fn a_cpu_port_has_captures_only_by_number() {
        let dir = tempfile::tempdir().expect("a folder");
        let open = |names| {
            let opener = PortOpener {
                seed: 0,
                pcap_dir: Some(dir.path().to_owned()),
                pcap_names: names,
                priority_queues: 8,
                send_rings: true,
                added_wire: WireConfig::default(),
                captured: Mutex::default(),
            };
            let (notifier, _notifications) = notify::queues(Default::default());
            let mut port = opener.open_cpu_port(510, notifier);
            opener.begin(&mut port).map(|()| port)
        };
        let first = open(CaptureNames::Number).expect("the first one");
        assert!(first.capture.is_some());
        assert!(open(CaptureNames::Number).is_err(), "the file is in use");
        let second = open(CaptureNames::Interface).expect("without a file");
        assert!(second.capture.is_none());
    }
}
