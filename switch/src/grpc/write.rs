//! The call `Write`: batches of updates (P4Runtime §12).
//!
//! gRPC's threads translate a request. The forwarding thread only applies it.

use std::pin::Pin;
use std::sync::Arc;

use prost::Message;
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};
use ultima_p4runtime::v1::write_request::Atomicity;
use ultima_p4runtime::v1::{Update, WriteResponse};
use ultima_p4runtime::write::EncodedWriteRequest;

use super::{Service, check_count, no_pipeline};
use crate::translate::{apply_all, batch_status, translate};

impl Service {
    pub(super) async fn write(
        &self,
        request: EncodedWriteRequest,
    ) -> Result<WriteResponse, Status> {
        check_count(request.updates.len(), "updates")?;
        check_atomicity(request.atomicity)?;
        let sender = (request.device_id, request.role, request.election_id);
        let schema = self.schema.read().await;
        self.controllers().check_primary(&sender)?;
        let translated = schema.clone().ok_or_else(no_pipeline)?;
        let target = self.loader.target.as_deref();
        let mut edits = Vec::with_capacity(request.updates.len());
        for update in request.updates {
            // The gRPC specification assigns INTERNAL to messages that cannot be parsed.
            let update = Update::decode(update);
            let update = update.map_err(|error| Status::internal(error.to_string()))?;
            edits.push(translate(&translated, target, update));
        }
        let applied = self.send_as_primary(&sender, move |datapath| {
            let pipeline = datapath.target().ok_or_else(no_pipeline)?;
            apply_all(pipeline, &translated, edits)
        })?;
        batch_status(&applied.wait().await??)?;
        Ok(WriteResponse {})
    }
}

pub(super) struct Write(pub(super) Arc<Service>);

impl UnaryService<EncodedWriteRequest> for Write {
    type Response = WriteResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<WriteResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<EncodedWriteRequest>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { service.write(request.into_inner()).await.map(Response::new) })
    }
}

/// Checks the atomicity of a batch (§12.3). Servers need not support more than CONTINUE_ON_ERROR.
fn check_atomicity(atomicity: i32) -> Result<(), Status> {
    match Atomicity::try_from(atomicity) {
        Ok(Atomicity::ContinueOnError) => Ok(()),
        Ok(other) => Err(Status::unimplemented(format!(
            "atomicity {}: expected CONTINUE_ON_ERROR",
            other.as_str_name()
        ))),
        Err(_) => Err(Status::invalid_argument(format!(
            "atomicity {atomicity} is unknown"
        ))),
    }
}
