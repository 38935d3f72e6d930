//! The control API: what jobs lose, once or again and again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::controller::Controller;
use super::error::JobRequestError;
use super::losses::Told;
use super::streams;
use super::telemetry::JobTelemetry;
use crate::api;
use crate::job::JobId;

/// How many may watch at once: all of them have all switches read.
pub(super) const WATCHES: usize = 64;
/// The time from one message to the next where none is said.
const INTERVAL: Duration = Duration::from_secs(1);
/// The shortest and the longest, in ms.
const INTERVALS: std::ops::RangeInclusive<u32> = 100..=60_000;

/// What a watch is told.
pub(super) type Watched = Result<api::WatchTelemetryResponse, Status>;

/// One who watches.
struct Watch {
    controller: Arc<Controller>,
    /// The job; none for all.
    name: Option<String>,
    every: Duration,
    /// How many losses were told of each job by the message before.
    told: HashMap<JobId, u64>,
    _place: OwnedSemaphorePermit,
}

impl Controller {
    /// What switches have counted of a job, and all that they told of it.
    pub(super) async fn told_telemetry(
        &self,
        name: &str,
    ) -> Result<api::GetTelemetryResponse, JobRequestError> {
        let telemetry = self.telemetry(name).await?;
        Ok(self.message(telemetry, 0))
    }

    /// Starts to tell somebody of a job, or of all.
    pub(super) fn watch_telemetry(
        self: &Arc<Self>,
        request: api::WatchTelemetryRequest,
    ) -> Result<ReceiverStream<Watched>, Status> {
        let api::WatchTelemetryRequest { job, interval_ms } = request;
        let every = match interval_ms {
            0 => INTERVAL,
            ms if INTERVALS.contains(&ms) => Duration::from_millis(ms.into()),
            ms => {
                let (least, most) = (INTERVALS.start(), INTERVALS.end());
                return Err(Status::invalid_argument(format!(
                    "interval_ms: {ms}: expected {least} to {most}, or 0 for a second"
                )));
            }
        };
        if !job.is_empty() {
            // That there is none is said at once.
            self.job(&job)?;
        }
        let place = Arc::clone(&self.telemetry_watches).try_acquire_owned();
        let place = place.map_err(|_| {
            Status::resource_exhausted(format!(
                "{WATCHES} watch telemetry already; stop one of them"
            ))
        })?;
        let watch = Watch {
            controller: Arc::clone(self),
            name: Some(job).filter(|name| !name.is_empty()),
            every,
            told: HashMap::new(),
            _place: place,
        };
        let (answers, stream) = mpsc::channel(1);
        let stopped = self.stopped();
        tokio::spawn(async move {
            streams::tell(&answers, stopped, watch.go_on(&answers)).await;
        });
        Ok(ReceiverStream::new(stream))
    }

    /// As a message, without so many of the losses that were told first.
    fn message(&self, telemetry: JobTelemetry, known: u64) -> api::GetTelemetryResponse {
        let JobTelemetry {
            switches, losses, ..
        } = telemetry;
        let known = known.saturating_sub(losses.forgotten());
        let new = losses
            .iter()
            .skip(usize::try_from(known).unwrap_or(usize::MAX));
        api::GetTelemetryResponse {
            switches,
            losses: new.map(|told| self.loss(told)).collect(),
            losses_forgotten: losses.forgotten(),
        }
    }

    fn loss(&self, Told { switch, at, loss }: &Told) -> api::OperationLoss {
        let since = at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        api::OperationLoss {
            switch: self.fabric().switch(*switch).name.clone(),
            port: loss.port.0.into(),
            epoch: loss.epoch.0.into(),
            step: loss.step,
            bucket: loss.bucket.into(),
            source: loss.source.0.into(),
            trimmed: loss.trimmed,
            late: loss.late,
            upstream_lost: loss.upstream_lost,
            told_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Watch {
    /// Tells it until nobody listens any more, or the job is gone.
    async fn go_on(mut self, answers: &mpsc::Sender<Watched>) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = self.look().await;
            let is_last = answer.is_err();
            if answers.send(answer).await.is_err() || is_last {
                return;
            }
        }
    }

    async fn look(&mut self) -> Watched {
        let names = match &self.name {
            Some(name) => vec![name.clone()],
            None => {
                let jobs = self.controller.jobs();
                jobs.into_iter().map(|it| it.job.name.clone()).collect()
            }
        };
        let mut jobs = Vec::new();
        let mut told = HashMap::new();
        for job in names {
            let telemetry = match self.controller.telemetry(&job).await {
                Ok(telemetry) => telemetry,
                // Deleted since it was listed.
                Err(JobRequestError::NoJob { .. }) if self.name.is_none() => continue,
                Err(error) => return Err(error.into()),
            };
            let known = self.told.get(&telemetry.id).copied().unwrap_or_default();
            told.insert(telemetry.id, telemetry.losses.told());
            let telemetry = Some(self.controller.message(telemetry, known));
            jobs.push(api::JobTelemetry { job, telemetry });
        }
        self.told = told;
        Ok(api::WatchTelemetryResponse { jobs })
    }
}
