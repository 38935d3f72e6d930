//! The gRPC service `Leadership`: which controller leads.

use tonic::{Request, Response, Status};
use ultima_api::v1::leadership_server::Leadership;
use ultima_api::v1::{self as api, Role};

use super::controller::Controller;

/// Returns a controller's standing.
type Standing = dyn Fn() -> api::GetStandingResponse + Send + Sync;

/// Answers with the controller's role.
pub struct LeadershipService(Box<Standing>);

impl LeadershipService {
    pub fn new(standing: impl Fn() -> api::GetStandingResponse + Send + Sync + 'static) -> Self {
        LeadershipService(Box::new(standing))
    }
}

/// The standing of a controller that leads, or is stopping.
pub fn standing_of(controller: &Controller) -> api::GetStandingResponse {
    let journal = &controller.journal;
    let role = match journal.leads() {
        true => Role::Leader,
        false => Role::Standby,
    };
    let switches = &controller.switches;
    let problems: Vec<String> = (switches.iter())
        .filter_map(|it| it.client().err())
        .collect();
    let led = switches.len() - problems.len();
    api::GetStandingResponse {
        role: role.into(),
        switches: switches.len() as u32,
        switches_led: led as u32,
        revision: journal.lead().revision(),
        problem: problems.into_iter().next().unwrap_or_default(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl Leadership for LeadershipService {
    async fn get_standing(
        &self,
        _: Request<api::GetStandingRequest>,
    ) -> Result<Response<api::GetStandingResponse>, Status> {
        Ok(Response::new((self.0)()))
    }
}
