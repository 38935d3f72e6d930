//! The interface through which a switch presents itself to controllers as another target than v1model.
//!
//! The switch owns forwarding and P4Runtime. A [`Target`] owns what differs: which ports exist, which requests are
//! rejected, and which settings are kept.

use std::fmt;

use tonic::{Code, Status};
use ultima_p4runtime::v1::entity::Entity;
use ultima_p4runtime::v1::update::Type as UpdateType;

use ultima_engine::{Limits, Replica};

/// The rules of a target that the switch emulates.
pub trait Target: fmt::Debug + Send + Sync {
    /// Returns the limits of a switch that has room for everything the target has.
    fn limits(&self, limits: Limits) -> Limits;

    /// Checks the number of a port that the switch is to have.
    ///
    /// # Errors
    /// The target has no such port.
    fn check_port(&self, port: u16) -> Result<(), Refusal>;

    /// Checks a read request.
    ///
    /// # Errors
    /// The target does not serve such reads.
    fn check_read(&self, entity: &Entity) -> Result<(), Refusal>;

    /// Checks an update and removes the settings that the target does not keep.
    ///
    /// # Errors
    /// The target rejects the update.
    fn admit(&self, kind: UpdateType, entity: &mut Entity) -> Result<(), Refusal>;

    /// Checks that the target has room for a multicast group beside `others`. Groups are ids with replicas.
    ///
    /// # Errors
    /// The target has no room.
    fn check_room(
        &self,
        others: &mut dyn Iterator<Item = (u32, &[Replica])>,
        group: (u32, &[Replica]),
    ) -> Result<(), Refusal>;

    /// Checks a device configuration for the target and returns the BMv2 JSON to run in its place.
    ///
    /// # Errors
    /// `device_config` is no program for the target.
    fn pipeline(&self, device_config: &[u8]) -> Result<Vec<u8>, Refusal>;
}

/// Why a request, or one update of a batch, is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The status code of the response.
    pub code: Code,
    /// The problem, and the right value.
    pub message: String,
}

impl Refusal {
    /// Returns a refusal with this status code.
    pub fn new(code: Code, message: impl Into<String>) -> Refusal {
        let message = message.into();
        Refusal { code, message }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::InvalidArgument, message)
    }

    pub(crate) fn unimplemented(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::Unimplemented, message)
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Status {
        Status::new(refusal.code, refusal.message)
    }
}
