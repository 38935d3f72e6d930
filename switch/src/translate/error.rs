//! Errors of single updates and requests in a batch, and the batch's status (P4Runtime §10, §12.3).

use tonic::{Code, Status};
use ultima_p4runtime::batch;

use crate::target::Refusal;
use ultima_engine::ControlError;

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Self {
        Refusal::new(Code::from_i32(error.kind() as i32), error.to_string())
    }
}

/// Returns the status of a batch: OK if all entities succeeded, otherwise UNKNOWN with an outcome for each entity.
pub(crate) fn batch_status(results: &[Result<(), Refusal>]) -> Result<(), Status> {
    if results.iter().all(Result::is_ok) {
        return Ok(());
    }
    let outcome = |result: &Result<(), Refusal>| match result {
        Ok(()) => batch::success(),
        Err(error) => batch::failure(error.code, error.message.clone()),
    };
    Err(batch::status(
        &results.iter().map(outcome).collect::<Vec<_>>(),
    ))
}
