//! The control API's requests for forecasts.

use std::sync::Arc;

use tonic::{Code, Response, Status};
use ultima_api::v1 as api;
use ultima_planner::fabric::{self, Fabric};
use ultima_planner::job::PolicyChange;
use ultima_planner::ledger::Fill;

use super::controller::Controller;
use super::error::{JobRequestError, ServeError};
use super::messages::{differences, job_of, specs};
use super::plan::{Forecast, PlanError, Resize, SwitchForecast, plan_fabric, plan_jobs};
use super::service::ControlService;
use super::status::of_fabric;

impl ControlService {
    pub(super) async fn plan_of_jobs(
        &self,
        request: api::PlanJobsRequest,
    ) -> Result<Response<api::PlanResponse>, Status> {
        let create = specs(request.create).map_err(|refused| *refused.error)?;
        let resize = |it: api::ResizeJobRequest| Resize {
            name: it.job,
            number: (it.job_id > 0).then_some(it.job_id),
            members: it.members,
        };
        let resize: Vec<Resize> = request.resize.into_iter().map(resize).collect();
        let update = request.update.iter().map(|it| (it.job.clone(), it.into()));
        let update: Vec<(String, PolicyChange)> = update.collect();
        let forecast =
            self.forecast(move |it| Ok(plan_jobs(it, &request.delete, &update, &resize, &create)?));
        let forecast = forecast.await?;
        Ok(Response::new(
            self.plan(self.controller.fabric(), &forecast),
        ))
    }

    pub(super) async fn plan_of_fabric(
        &self,
        request: api::PlanFabricRequest,
    ) -> Result<Response<api::PlanResponse>, Status> {
        let stored = self.controller.stored().await;
        let stored = stored.map_err(|error| Status::internal(error.to_string()))?;
        let forecast = self.forecast(move |it| {
            let fabric = fabric::sketch(&request.yaml, "yaml");
            let fabric = fabric.map_err(|error| Status::invalid_argument(error.to_string()))?;
            let fabric = Arc::new(fabric);
            let forecast = plan_fabric(it, &fabric, &stored);
            let forecast = forecast.map_err(|error| of_fabric(&fabric, &error))?;
            Ok((fabric, forecast))
        });
        let (fabric, forecast) = forecast.await?;
        Ok(Response::new(self.plan(&fabric, &forecast)))
    }

    /// Plans on a thread for blocking work: there may be many entities.
    async fn forecast<T: Send + 'static>(
        &self,
        plan: impl FnOnce(&Controller) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let controller = Arc::clone(&self.controller);
        let planned = tokio::task::spawn_blocking(move || plan(&controller)).await;
        planned.map_err(|error| Status::internal(error.to_string()))?
    }

    /// Why the controller is not connected to one of its switches.
    fn problem(&self, switch: &str) -> Option<String> {
        let id = self.controller.fabric().switch_named(switch)?;
        self.controller.client(id).err()
    }

    fn plan(&self, fabric: &Fabric, forecast: &Forecast) -> api::PlanResponse {
        let jobs = forecast.jobs.iter().map(|(name, job)| api::PlannedJob {
            name: name.clone(),
            job: job.as_ref().ok().map(|state| job_of(fabric, state)),
            refusal: job
                .as_ref()
                .err()
                .map(ToString::to_string)
                .unwrap_or_default(),
            refused_field: job.as_ref().err().and_then(JobRequestError::field),
            refused_code: job.as_ref().err().map_or(0, |error| error.code().into()),
        });
        let names = self.controller.program().names();
        let switch = |it: &SwitchForecast| api::PlannedSwitch {
            switch: it.switch.clone(),
            is_there: it.is_there,
            remaining: it.stays,
            differences: differences(&it.diff, names),
            fills: it.fills.iter().map(fill).collect(),
            problem: self.problem(&it.switch).unwrap_or_default(),
        };
        api::PlanResponse {
            jobs: jobs.collect(),
            switches: forecast.switches.iter().map(switch).collect(),
        }
    }
}

fn fill((before, fill): &(u64, Fill)) -> api::Fill {
    api::Fill {
        of: fill.of.to_owned(),
        before: *before,
        after: fill.used,
        limit: fill.limit,
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
