//! The limits of a call to a switch, and whether the switch has answered it.

use std::error::Error as _;
use std::time::Duration;

use tonic::Status;

/// Timeout of a call, after which the switch counts as silent.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Updates in one WriteRequest, which stays far below the 4 MiB limit of gRPC servers.
pub const BATCH: usize = 1000;

/// True if the switch sent the status. A status with a source was made here, because the transport
/// failed.
pub fn is_from_there(status: &Status) -> bool {
    status.source().is_none()
}
