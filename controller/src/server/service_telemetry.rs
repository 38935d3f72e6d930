//! The control API's requests for telemetry, once or periodically.

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
use ultima_api::v1 as api;
use ultima_planner::fabric::SwitchPort;
use ultima_planner::job::JobId;

use super::controller::Controller;
use super::counters::READS;
use super::error::JobRequestError;
use super::losses::Report;
use super::streams;
use super::telemetry::{JobTelemetry, telemetry};

/// The default interval between two messages of a watch.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// The allowed intervals.
pub const WATCH_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
/// Counters older than this are read again, even for slow watches.
const OLDEST: Duration = Duration::from_millis(500);
/// Size in bytes at which a message is closed.
const LONGEST: usize = 1 << 20;

/// A message of a watch.
pub(super) type Watched = Result<api::WatchTelemetryResponse, Status>;

/// A client that watches.
struct Watch {
    controller: Arc<Controller>,
    /// The job; none for all jobs.
    name: Option<String>,
    every: Duration,
    /// The number of losses that the previous message had reported, by job.
    reported: HashMap<JobId, u64>,
    _place: OwnedSemaphorePermit,
}

/// A job's counters, and all reported losses.
pub async fn get_telemetry_message(
    controller: &Controller,
    name: &str,
) -> Result<api::GetTelemetryResponse, JobRequestError> {
    let telemetry = telemetry(controller, name, Duration::ZERO, |_| 0).await?;
    Ok(message(controller, telemetry))
}

/// Starts a watch of one job or of all.
pub fn watch_telemetry(
    controller: &Arc<Controller>,
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
        // An unknown job is refused at once.
        controller.job(&job)?;
    }
    let place = controller.telemetry_watches.take()?;
    let watch = Watch {
        controller: Arc::clone(controller),
        name: Some(job).filter(|name| !name.is_empty()),
        every,
        reported: HashMap::new(),
        _place: place,
    };
    let (answers, stream) = mpsc::channel(1);
    let stopped = controller.stopped();
    tokio::spawn(async move {
        streams::run(&answers, stopped, watch.run(&answers)).await;
    });
    Ok(ReceiverStream::new(stream))
}

fn message(controller: &Controller, telemetry: JobTelemetry) -> api::GetTelemetryResponse {
    let JobTelemetry {
        switches, losses, ..
    } = &telemetry;
    api::GetTelemetryResponse {
        switches: switches.to_vec(),
        losses: losses
            .iter()
            .map(|reported| loss(controller, reported))
            .collect(),
        losses_forgotten: telemetry.forgotten,
    }
}

fn loss(controller: &Controller, Report { switch, at, loss }: &Report) -> api::OperationLoss {
    let since = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let at = SwitchPort {
        switch: *switch,
        port: loss.port,
    };
    api::OperationLoss {
        switch: controller.fabric().switch(*switch).name.clone(),
        port_name: controller.fabric().port_name(at),
        port: loss.port.0.into(),
        epoch: loss.epoch.0.into(),
        step: loss.step,
        bucket: loss.bucket.into(),
        source: loss.source.0.into(),
        trimmed: loss.trimmed,
        late: loss.late,
        upstream_lost: loss.upstream_lost,
        reported_at_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
    }
}

impl Watch {
    /// Sends messages until the client stops reading or the job is gone.
    async fn run(mut self, answers: &mpsc::Sender<Watched>) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            match self.send_sample(answers).await {
                Ok(()) => {}
                Err(End::Unread) => return,
                Err(End::Said(status)) => {
                    // The last message.
                    let _ = answers.send(Err(status)).await;
                    return;
                }
            }
        }
    }

    /// Sends one sample of all watched jobs, reading some at a time.
    async fn send_sample(&mut self, answers: &mpsc::Sender<Watched>) -> Result<(), End> {
        let names = match &self.name {
            Some(name) => vec![name.clone()],
            None => self.controller.registry().names(),
        };
        let age = (self.every / 2).min(OLDEST);
        let known = Arc::new(std::mem::take(&mut self.reported));
        let looks = names.into_iter().map(|name| {
            let (controller, known) = (Arc::clone(&self.controller), Arc::clone(&known));
            // On tasks of their own: other clients share these reads, and this watch may wait for
            // its client.
            tokio::spawn(async move {
                let known = |id| known.get(&id).copied().unwrap_or_default();
                let telemetry = telemetry(&controller, &name, age, known).await;
                (name, telemetry)
            })
        });
        let mut looks = stream::iter(looks).buffered(READS);
        let mut parts = SampleMessages::default();
        while let Some(looked) = looks.next().await {
            let (job, telemetry) =
                looked.map_err(|error| End::Said(Status::internal(error.to_string())))?;
            let telemetry = match telemetry {
                Ok(telemetry) => telemetry,
                // The job was deleted after it was listed.
                Err(JobRequestError::NoJob { .. }) if self.name.is_none() => continue,
                Err(error) => return Err(End::Said(error.into())),
            };
            self.reported.insert(telemetry.id, telemetry.reported);
            let telemetry = Some(message(&self.controller, telemetry));
            if let Some(part) = parts.add(api::JobTelemetry { job, telemetry }) {
                answers.send(Ok(part)).await.map_err(|_| End::Unread)?;
            }
        }
        let last = answers.send(Ok(parts.last())).await;
        last.map_err(|_| End::Unread)
    }
}

/// The reason why a watch ends.
enum End {
    /// The client stopped reading.
    Unread,
    /// This status is the last answer.
    Said(Status),
}

/// The jobs of one sample, split into messages of bounded size: a job's losses may be large.
#[derive(Default)]
struct SampleMessages {
    jobs: Vec<api::JobTelemetry>,
    bytes: usize,
}

impl SampleMessages {
    /// Adds a job. Returns the earlier jobs if these fill a message.
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

    /// 40 jobs with as many losses as are kept, and one without.
    #[test]
    fn a_large_sample_is_split_into_messages() {
        let job = |number: u32| {
            let loss = api::OperationLoss {
                switch: "leaf1".into(),
                step: u32::MAX,
                reported_at_ms: 1 << 40,
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
        let mut parts = SampleMessages::default();
        let mut messages: Vec<_> = jobs.iter().filter_map(|it| parts.add(it.clone())).collect();
        messages.push(parts.last());
        assert!(messages.len() > 3, "{}", messages.len());
        for (at, message) in messages.iter().enumerate() {
            // Each job is one field, with a length prefix.
            assert!(message.encoded_len() <= LONGEST + 8 * message.jobs.len());
            assert_eq!(message.more, at + 1 < messages.len());
        }
        let all = messages.into_iter().flat_map(|message| message.jobs);
        assert!(all.eq(jobs));
    }

    #[test]
    fn an_empty_sample_is_one_message() {
        let parts = SampleMessages::default();
        assert_eq!(parts.last(), api::WatchTelemetryResponse::default());
    }
}
