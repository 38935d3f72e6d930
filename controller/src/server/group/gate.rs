//! The entrance to a group's control API: only the leader serves it.

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
use ultima_api::client::LEADER;
use ultima_api::v1::control_server::SERVICE_NAME;

use super::member::Member;

/// Passes calls to the controller while it leads; as a standby it answers with the leader's
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
fn refusal(leader: Option<&str>) -> Status {
    let mut status = Status::unavailable(match leader {
        Some(leader) => {
            format!("this controller is a standby; ask the leader at {leader}")
        }
        None => {
            "this controller is a standby and knows no leader; try again, or ask another controller"
                .into()
        }
    });
    let leader = MetadataValue::try_from(leader.unwrap_or_default());
    // An address of a connected peer is valid metadata.
    let leader = leader.unwrap_or_else(|_| MetadataValue::from_static(""));
    status.metadata_mut().insert(LEADER, leader);
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
            Err(leader) => ready(Ok(refusal(leader.as_deref()).into_http())).boxed(),
        }
    }
}
