//! The entrance to the control API of a controller that shares its store with no other: until it has started, it refuses calls.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use ultima_api::v1::control_server::{ControlServer, SERVICE_NAME};
use ultima_api::v1::{GetStandingResponse, Role};

use super::controller::Controller;
use super::gate::unavailable;
use super::leadership_service::standing_of;
use super::metrics::metrics_text;
use super::service::ControlService;
use crate::metrics::RoleGauges;

/// The answer to calls before the controller has started.
const STARTING: &str = "the controller is starting: it connects to its switches";

/// Passes calls to the controller once it has started.
#[derive(Clone, Default)]
pub struct Entrance(Arc<OnceLock<Arc<Controller>>>);

impl Entrance {
    /// Passes calls to this controller from now on.
    pub fn open(&self, controller: &Arc<Controller>) {
        self.0.get_or_init(|| Arc::clone(controller));
    }

    /// The controller's standing.
    pub fn standing(&self) -> GetStandingResponse {
        match self.0.get() {
            Some(controller) => standing_of(controller),
            None => GetStandingResponse {
                role: Role::Starting.into(),
                problem: STARTING.into(),
                ..Default::default()
            },
        }
    }

    /// The controller's metrics as OpenMetrics text.
    pub fn metrics_text(&self) -> String {
        match self.0.get() {
            Some(controller) => metrics_text(controller, None),
            None => RoleGauges::from(self.standing()).text(),
        }
    }
}

impl NamedService for Entrance {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for Entrance {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self.0.get() {
            Some(controller) => {
                ControlServer::new(ControlService::new(Arc::clone(controller))).call(request)
            }
            None => ready(Ok(unavailable(STARTING, "").into_http())).boxed(),
        }
    }
}
