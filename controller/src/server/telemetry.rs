//! Telemetry of jobs: counters that are read from switches, and losses that switches report.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use futures_util::future::try_join_all;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::mpsc;
use ultima_api::v1 as api;
use ultima_p4::names::loss;
use ultima_p4runtime::names::Digest;
use ultima_p4runtime::v1::DigestList;
use ultima_planner::fabric::{SwitchId, SwitchPort};
use ultima_planner::job::{Job, JobId, Member};
use ultima_planner::plan::{CounterCell, SchemaError, SwitchPlan};
use ultima_planner::telemetry::OperationLoss;

use super::controller::{Controller, JobState, state_alone};
use super::counters::{self, Cells, Counted};
use super::error::JobRequestError;
use super::lock::lock;
use super::losses::{Losses, Report};
use super::registry::Registry;
use super::switch::ManagedSwitch;
use super::tail_drops::TailDrops;

/// A job's counters and losses.
pub struct JobTelemetry {
    /// The job's id, because another job may get its name.
    pub(super) id: JobId,
    /// Its switches' counters.
    pub switches: Arc<[api::SwitchTelemetry]>,
    /// The reported losses after the first `known` ones.
    pub losses: Vec<Report>,
    /// The number of reported losses.
    pub reported: u64,
    /// The number of reported losses that are no longer kept, the oldest.
    pub forgotten: u64,
}

/// Stores a switch's loss reports for as long as its connection lasts.
pub fn listen(controller: &Controller, switch: &ManagedSwitch) {
    let digest = controller.program().names().digest(loss::DIGEST);
    let lists = switch.client().ok().and_then(|client| client.digests());
    if let (Ok(digest), Some(lists)) = (digest, lists) {
        let registry = Arc::clone(&controller.registry);
        let reported = controller.metrics.reported_losses(switch.name());
        tokio::spawn(collect(
            registry,
            switch.id,
            reported,
            digest.clone(),
            lists,
        ));
    }
}

/// The job's counters, by switch.
///
/// # Errors
/// No job has that name.
pub async fn counters(
    controller: &Controller,
    name: &str,
) -> Result<Vec<api::SwitchCounters>, JobRequestError> {
    let JobState { job, switches, .. } = controller.job(name)?;
    let of_switches = try_join_all(switches.iter().map(|id| async {
        let name = &controller.fabric.switch(*id).name;
        let read = read(controller, *id, CounterCell::of_job(job.counter)).await?;
        Ok::<_, SchemaError>(match read {
            Ok(counted) => counted.of_job(name, job.counter),
            Err(problem) => counters::away(name, problem),
        })
    }));
    Ok(of_switches.await?)
}

/// The job's counters by switch, port and source, at most `age` old, and the reported losses
/// after the first `known` ones.
///
/// # Errors
/// No job has that name.
pub async fn telemetry(
    controller: &Controller,
    name: &str,
    age: Duration,
    known: impl Fn(JobId) -> u64,
) -> Result<JobTelemetry, JobRequestError> {
    let (JobState { job, switches, .. }, plan, sample, drops) = {
        let registry = controller.registry();
        let record = registry.named(name)?;
        let (plan, sample) = (Arc::clone(&record.plan), Arc::clone(&record.sample));
        let drops = Arc::clone(&record.tail_drops);
        (state_alone(record), plan, sample, drops)
    };
    let take = async {
        // The semaphore is never closed.
        let _place = controller.telemetry_reads.acquire().await;
        let of_switch = |id: &SwitchId| telemetry_of(controller, *id, &job, plan.get(id), &drops);
        try_join_all(switches.iter().map(of_switch)).await
    };
    let switches = sample.get(age, take).await?;
    let registry = controller.registry();
    // By id: another job may have the name by now.
    let losses = registry.get(job.id).map(|record| &record.losses);
    let new = losses.map(|losses| losses.since(known(job.id)).copied().collect());
    Ok(JobTelemetry {
        id: job.id,
        switches,
        losses: new.unwrap_or_default(),
        reported: losses.map_or(0, Losses::reported),
        forgotten: losses.map_or(0, Losses::forgotten),
    })
}

async fn telemetry_of(
    controller: &Controller,
    id: SwitchId,
    job: &Job,
    plan: Option<&SwitchPlan>,
    drops: &TailDrops,
) -> Result<api::SwitchTelemetry, SchemaError> {
    let shares = || job.shares.iter().filter(|(at, _)| at.switch == id);
    let sources = || {
        let here = |((_, member), _): &((_, &Member), _)| {
            controller.fabric.host(member.host).attached.switch == id
        };
        job.ranks().zip(&job.sources).filter(here)
    };
    let cells = CounterCell::of_job(job.counter)
        .chain(shares().flat_map(|(_, share)| CounterCell::of_share(*share)))
        .chain(sources().flat_map(|(_, source)| CounterCell::of_source(*source)));
    let name = &controller.fabric.switch(id).name;
    let start = drops.begin_read();
    let counted = match read(controller, id, cells).await? {
        Ok(counted) => counted,
        Err(problem) => {
            return Ok(api::SwitchTelemetry {
                counters: Some(counters::away(name, problem)),
                ..api::SwitchTelemetry::default()
            });
        }
    };

    let client = controller.client(id);
    let counters = counted.of_job(name, job.counter);
    let replicas = plan.map_or(0, |plan| plan.replicas() as u64);
    Ok(api::SwitchTelemetry {
        tail_dropped: drops.drops_at(start, id, &counters, replicas),
        counters: Some(counters),
        ports: shares()
            .map(|(at, share)| api::PortCounters {
                port: at.port.0.into(),
                port_name: controller.fabric.port_name(*at),
                peer: peer_of(controller, *at),
                ..counted.of_share(*share)
            })
            .collect(),
        sources: sources()
            .map(|((rank, _), source)| counted.of_source(rank.0.into(), *source))
            .collect(),
        digest_lists_dropped: client.map_or(0, |client| client.digest_lists_dropped()),
    })
}

/// The host or switch at the other end of a port, by name.
fn peer_of(controller: &Controller, port: SwitchPort) -> String {
    let host = controller
        .fabric
        .hosts()
        .iter()
        .find(|host| host.attached == port);
    match (host, controller.fabric.across(port)) {
        (Some(host), _) => host.name.clone(),
        (None, Some(far)) => controller.fabric.switch(far.switch).name.clone(),
        (None, None) => String::new(),
    }
}

/// Reads counter cells from a switch, or returns why that failed.
pub async fn read(
    controller: &Controller,
    id: SwitchId,
    cells: impl Iterator<Item = CounterCell>,
) -> Result<Result<Counted, String>, SchemaError> {
    let cells = Cells::new(controller.program().names(), cells)?;
    Ok(match controller.client(id) {
        Ok(client) => (cells.read(&client).await).map_err(|error| error.to_string()),
        Err(problem) => Err(problem),
    })
}

/// Stores the loss reports of a switch until its digest lists end.
async fn collect(
    registry: Arc<Mutex<Registry>>,
    switch: SwitchId,
    reported: Counter,
    digest: Digest,
    mut lists: mpsc::Receiver<DigestList>,
) {
    while let Some(list) = lists.recv().await {
        if list.digest_id != digest.id {
            continue;
        }
        let at = SystemTime::now();
        for message in &list.data {
            match OperationLoss::read(&digest, message) {
                Ok(loss) => {
                    reported.inc();
                    if !lock(&registry).add_loss(Report { switch, at, loss }) {
                        tracing::debug!(
                            switch = switch.0,
                            job = loss.job.0,
                            "loss report for an unknown job"
                        );
                    }
                }
                Err(error) => {
                    tracing::warn!(switch = switch.0, %error, "cannot decode a loss report")
                }
            }
        }
    }
}
