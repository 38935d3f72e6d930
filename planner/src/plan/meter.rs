//! Virtual queues as meter cells.

use std::fmt;

use ultima_p4::names::{queue, share};
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::MeterEntry;

use super::{SchemaError, VirtualQueue};
use crate::job::ShareIndex;
use crate::target::PortNumber;

/// All meters.
pub(super) const NAMES: [&str; 2] = [queue::METER, share::METER];

/// A meter's cell and its virtual queue; without one it passes everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MeterCell {
    meter: &'static str,
    index: u16,
    queue: Option<VirtualQueue>,
}

impl MeterCell {
    /// The cell of a port.
    pub fn of_port(port: PortNumber, queue: VirtualQueue) -> Self {
        MeterCell {
            meter: queue::METER,
            index: port.0,
            queue: Some(queue),
        }
    }

    /// The cell of a job's share of a port.
    pub fn of_share(share: ShareIndex, queue: Option<VirtualQueue>) -> Self {
        MeterCell {
            meter: share::METER,
            index: share.0,
            queue,
        }
    }

    /// The same cell without a queue, as it is left behind.
    pub(super) fn cleared(self) -> Self {
        MeterCell {
            queue: None,
            ..self
        }
    }

    /// The cell's P4Runtime entry. A cell without a configuration has the meter's default (§9.4),
    /// also on BMv2.
    pub(super) fn entry(self, names: &Names) -> Result<MeterEntry, SchemaError> {
        let mut cell = names.meter(self.meter)?.cell(self.index.into())?;
        cell.config = self.queue.map(VirtualQueue::meter);
        Ok(cell)
    }
}

impl fmt::Display for MeterCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.meter, self.index)?;
        match self.queue {
            Some(queue) => write!(f, " ({queue})"),
            None => Ok(()),
        }
    }
}
