//! The control API's requests for forecasts.

use std::sync::Arc;

use tonic::{Code, Response, Status};
use ultima_api::v1 as api;
use ultima_planner::fabric::{self, Fabric};

use super::controller::Controller;
use super::error::ServeError;
use super::messages::specs;
use super::plan::{PlanError, plan_fabric, plan_jobs};
use super::service::ControlService;
use super::status::of_fabric;

impl ControlService {
    pub(super) async fn plan_of_jobs(
        &self,
        request: api::PlanJobsRequest,
    ) -> Result<Response<api::PlanResponse>, Status> {
        let api::PlanJobsRequest {
            delete,
            update,
            resize,
            create,
        } = request;
        let create = specs(create).map_err(|refused| *refused.error)?;
        self.forecast(move |it| Ok(plan_jobs(it, &delete, &update, &resize, &create)?))
            .await
    }

    pub(super) async fn plan_of_fabric(
        &self,
        request: api::PlanFabricRequest,
    ) -> Result<Response<api::PlanResponse>, Status> {
        let stored = self.controller.stored().await;
        let stored = stored.map_err(|error| Status::internal(error.to_string()))?;
        self.forecast(move |it| {
            let fabric = fabric::sketch(&request.yaml, "yaml");
            let fabric = fabric.map_err(|error| Status::invalid_argument(error.to_string()))?;
            plan_fabric(it, &fabric, &stored).map_err(|error| of_fabric(&fabric, &error))
        })
        .await
    }

    /// Plans on a thread for blocking work: there may be many entities.
    async fn forecast(
        &self,
        plan: impl FnOnce(&Controller) -> Result<api::PlanResponse, Status> + Send + 'static,
    ) -> Result<Response<api::PlanResponse>, Status> {
        let controller = Arc::clone(&self.controller);
        let planned = tokio::task::spawn_blocking(move || plan(&controller)).await;
        let planned = planned.map_err(|error| Status::internal(error.to_string()))?;
        planned.map(Response::new)
    }
}

impl PlanError {
    /// The gRPC code of this error.
    pub(super) fn code(&self) -> Code {
        match self {
            PlanError::Job(_) => Code::NotFound,
            PlanError::Start(ServeError::Limit(_)) => Code::ResourceExhausted,
            PlanError::Start(_) => Code::Internal,
        }
    }

    /// The part of the fabric file that is at fault, by its path: the switch without room. None if the file is not at fault.
    pub(super) fn field(&self, fabric: &Fabric) -> Option<String> {
        let PlanError::Start(ServeError::Limit(refusal)) = self else {
            return None;
        };
        let switch = fabric.switch_named(refusal.switch.as_ref()?)?;
        Some(format!("switches[{}]", switch.0))
    }
}

impl From<PlanError> for Status {
    fn from(error: PlanError) -> Self {
        Status::new(error.code(), error.to_string())
    }
}
