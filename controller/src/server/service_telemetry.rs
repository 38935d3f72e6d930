//! The control API: what jobs lose, once or again and again.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::stream::{self, StreamExt as _};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::controller::Controller;
use super::error::JobRequestError;
use super::losses::Told;
use super::streams;
use super::telemetry::{JobTelemetry, READS};
use crate::api;
use crate::fabric::SwitchPort;
use crate::job::JobId;

/// How many may watch at once.
pub(super) const WATCHES: usize = 64;
/// The time from one look to the next where none is said.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest and the longest.
pub const WATCH_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
/// Counts that are older than this are read anew, however seldom somebody looks.
const OLDEST: Duration = Duration::from_millis(500);
/// Bytes of a message to which no further job is added.
const LONGEST: usize = 1 << 20;

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
        let telemetry = self.telemetry(name, Duration::ZERO, |_| 0).await?;
        Ok(self.message(telemetry))
    }

    /// Starts to tell somebody of a job, or of all.
    pub(super) fn watch_telemetry(
        self: &Arc<Self>,
        request: api::WatchTelemetryRequest,
    ) -> Result<ReceiverStream<Watched>, Status> {
        let api::WatchTelemetryRequest { job, interval_ms } = request;
        let every = match Duration::from_millis(interval_ms.into()) {
            Duration::ZERO => WATCH_INTERVAL,
            every if WATCH_INTERVALS.contains(&every) => every,
            _ => {
                let [least, most] =
                    [WATCH_INTERVALS.start(), WATCH_INTERVALS.end()].map(Duration::as_millis);
                return Err(Status::invalid_argument(format!(
                    "interval_ms: {interval_ms}: expected {least} to {most}, or 0 for a second"
                )));
            }
        };
        if !job.is_empty() {
            // That there is none is said at once.
            self.job(&job)?;
        }
        let place = self.telemetry_watches.take()?;
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

    fn message(&self, telemetry: JobTelemetry) -> api::GetTelemetryResponse {
        let JobTelemetry {
            switches, losses, ..
        } = &telemetry;
        api::GetTelemetryResponse {
            switches: switches.to_vec(),
            losses: losses.iter().map(|told| self.loss(told)).collect(),
            losses_forgotten: telemetry.forgotten,
        }
    }

    fn loss(&self, Told { switch, at, loss }: &Told) -> api::OperationLoss {
        let since = at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let at = SwitchPort {
            switch: *switch,
            port: loss.port,
        };
        api::OperationLoss {
            switch: self.fabric().switch(*switch).name.clone(),
            port_name: self.fabric().port_name(at),
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
            match self.look(answers).await {
                Ok(()) => {}
                Err(End::Unread) => return,
                Err(End::Said(status)) => {
                    // The last word.
                    let _ = answers.send(Err(status)).await;
                    return;
                }
            }
        }
    }

    /// Looks once at all that is watched, some jobs at a time.
    async fn look(&mut self, answers: &mpsc::Sender<Watched>) -> Result<(), End> {
        let names = match &self.name {
            Some(name) => vec![name.clone()],
            None => self.controller.names_of_jobs(),
        };
        let age = (self.every / 2).min(OLDEST);
        let known = Arc::new(std::mem::take(&mut self.told));
        let looks = names.into_iter().map(|name| {
            let (controller, known) = (Arc::clone(&self.controller), Arc::clone(&known));
            // On tasks of their own: others wait for what these hold, and this one may wait for its reader.
            tokio::spawn(async move {
                let known = |id| known.get(&id).copied().unwrap_or_default();
                let telemetry = controller.telemetry(&name, age, known).await;
                (name, telemetry)
            })
        });
        let mut looks = stream::iter(looks).buffered(READS);
        let mut parts = Parts::default();
        while let Some(looked) = looks.next().await {
            let (job, telemetry) =
                looked.map_err(|error| End::Said(Status::internal(error.to_string())))?;
            let telemetry = match telemetry {
                Ok(telemetry) => telemetry,
                // Deleted since it was listed.
                Err(JobRequestError::NoJob { .. }) if self.name.is_none() => continue,
                Err(error) => return Err(End::Said(error.into())),
            };
            self.told.insert(telemetry.id, telemetry.told);
            let telemetry = Some(self.controller.message(telemetry));
            if let Some(part) = parts.add(api::JobTelemetry { job, telemetry }) {
                answers.send(Ok(part)).await.map_err(|_| End::Unread)?;
            }
        }
        let last = answers.send(Ok(parts.last())).await;
        last.map_err(|_| End::Unread)
    }
}

/// Why a watch ends.
enum End {
    /// Nobody reads it.
    Unread,
    /// What there is to say.
    Said(Status),
}

/// The jobs of one look, in messages that are not too long: what jobs have lost is not bounded by much.
#[derive(Default)]
struct Parts {
    jobs: Vec<api::JobTelemetry>,
    bytes: usize,
}

impl Parts {
    /// The jobs before this one, where they are enough for a message.
    fn add(&mut self, job: api::JobTelemetry) -> Option<api::WatchTelemetryResponse> {
        let bytes = job.encoded_len();
        let full = self.bytes > 0 && self.bytes + bytes > LONGEST;
        let part = full.then(|| api::WatchTelemetryResponse {
            jobs: std::mem::take(&mut self.jobs),
            more: true,
        });
        self.bytes = bytes + if full { 0 } else { self.bytes };
        self.jobs.push(job);
        part
    }

    fn last(self) -> api::WatchTelemetryResponse {
        api::WatchTelemetryResponse {
            jobs: self.jobs,
            more: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 40 jobs that have lost as much as is kept of each, and one that has lost nothing.
    #[test]
    fn many_losses_come_in_several_messages() {
        let job = |number: u32| {
            let loss = api::OperationLoss {
                switch: "leaf1".into(),
                step: u32::MAX,
                told_at_ms: 1 << 40,
                ..api::OperationLoss::default()
            };
            let telemetry = api::GetTelemetryResponse {
                losses: vec![loss; if number == 40 { 0 } else { 4096 }],
                ..api::GetTelemetryResponse::default()
            };
            api::JobTelemetry {
                job: format!("job{number}"),
                telemetry: Some(telemetry),
            }
        };
        let jobs: Vec<api::JobTelemetry> = (0..=40).map(job).collect();
        let mut parts = Parts::default();
        let mut messages: Vec<_> = jobs.iter().filter_map(|it| parts.add(it.clone())).collect();
        messages.push(parts.last());
        assert!(messages.len() > 3, "{}", messages.len());
        for (at, message) in messages.iter().enumerate() {
            // Each job is in a field of its own, with its length.
            assert!(message.encoded_len() <= LONGEST + 8 * message.jobs.len());
            assert_eq!(message.more, at + 1 < messages.len());
        }
        let all = messages.into_iter().flat_map(|message| message.jobs);
        assert!(all.eq(jobs));
    }

    #[test]
    fn a_look_at_nothing_is_a_message() {
        let parts = Parts::default();
        assert_eq!(parts.last(), api::WatchTelemetryResponse::default());
    }
}
