//! The entrance to a group's control API: only the primary serves it.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::metadata::MetadataValue;
use tonic::server::NamedService;

use super::member::Member;
use crate::api::control_server::SERVICE_NAME;
use crate::client::PRIMARY;

/// Passes calls to the controller while it is primary; as a standby it answers with the primary's
/// address.
#[derive(Clone)]
pub struct Gate {
    member: Arc<Member>,
}

impl Gate {
    pub fn new(member: Arc<Member>) -> Self {
        Gate { member }
    }
}

impl NamedService for Gate {
    const NAME: &'static str = SERVICE_NAME;
}

/// The answer of a standby.
fn refusal(primary: Option<&str>) -> Status {
    let mut status = Status::unavailable(match primary {
        Some(primary) => {
            format!("this controller is a standby; ask the primary at {primary}")
        }
        None => {
            "this controller is a standby and knows no primary; try again, or ask another controller"
                .into()
        }
    });
    let primary = MetadataValue::try_from(primary.unwrap_or_default());
    // An address of a connected peer is valid metadata.
    let primary = primary.unwrap_or_else(|_| MetadataValue::from_static(""));
    status.metadata_mut().insert(PRIMARY, primary);
    status
}

impl Service<http::Request<Body>> for Gate {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self.member.service() {
            Ok(mut service) => service.call(request),
            Err(primary) => ready(Ok(refusal(primary.as_deref()).into_http())).boxed(),
        }
    }
}
