//! Virtual queues as meter cells.

use ultima_p4::names::{queue, share};
use ultima_p4runtime::names::Names;
use ultima_p4runtime::v1::{self, Update};

use super::entity::Kind;
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
}

impl Kind for MeterCell {
    /// A cell without a configuration has the meter's default (§9.4), also on BMv2.
    fn entity(&self, names: &Names) -> Result<v1::Entity, SchemaError> {
        let mut cell = names.meter(self.meter)?.cell(self.index.into())?;
        cell.config = self.queue.map(VirtualQueue::meter);
        Ok(cell.into())
    }

    fn creation(&self, names: &Names) -> Result<Update, SchemaError> {
        Ok(Update::modify(self.entity(names)?))
    }

    /// Leaves the cell without a queue.
    fn removal(&self, names: &Names) -> Result<Option<Update>, SchemaError> {
        let cleared = MeterCell {
            queue: None,
            ..*self
        };
        cleared.creation(names).map(Some)
    }
}
