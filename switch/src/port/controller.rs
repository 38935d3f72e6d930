//! The CPU port: frames that leave through it become packet-ins. Packet-outs do not pass here; the gRPC server gives them to
//! the datapath.

use super::PortIo;
use crate::notify::Notifier;
use crate::tm::{Departure, Medium};

pub(crate) const ATTACHMENT: &str = "controller";

pub(crate) struct ControllerPort(pub(crate) Notifier);

impl Medium for ControllerPort {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        // Never "no more for now": controllers that are slow must not hold frames back, for the
        // queue would then bring them what is long past.
        reports.extend(frames.iter().map(|frame| match self.0.packet_in(frame) {
            true => Departure::Left,
            false => Departure::NoPeer,
        }));
    }
}

impl PortIo for ControllerPort {}
