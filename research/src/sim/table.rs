//! The table of all runs (CSV).

use anyhow::Result;
use serde::Serialize;
use ultima_sim::{Experiment, Report};

use super::file::Grid;
use ultima_console::policies;

/// One run: its settings and its results. Sizes are in bytes.
#[derive(Serialize)]
struct Row<'a> {
    experiment: &'a str,
    simulated: bool,
    algorithm: &'a str,
    ranks: u16,
    groups: Option<u16>,
    bytes: u64,
    slot: usize,
    tail: f64,
    loss: Option<String>,
    operations: u32,
    seed: u64,
    topology: String,
    rate_bps: u64,
    delay_us: f64,
    jitter: Option<String>,
    host_us: f64,
    compute_ms: f64,
    compute_tail: f64,
    straggler_share: Option<f64>,
    straggler_delay_ms: Option<f64>,
    queue: u64,
    trim: u64,
    mark: u64,
    cross: f64,
    burst_us: f64,
    background: Option<f64>,
    background_flow: Option<u64>,
    background_load: Option<f64>,
    background_ring_ratio: Option<f64>,
    slow: Option<String>,
    rate_control: &'a str,
    incast: String,
    receive_buffer: Option<u64>,
    gather_start: &'a str,
    loss_detection: &'a str,
    timeouts: &'a str,
    t_s_ms: Option<f64>,
    t_b_ms: Option<f64>,
    min_rto_ms: Option<f64>,
    pool_slots: Option<u64>,
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
    on_time_p50_ms: Option<f64>,
    on_time_p99_ms: Option<f64>,
    arrived_share: f64,
    arrived_share_of_not_lost: f64,
    goodput_share_of_bound: f64,
    bound_ms: f64,
    p99_queue_us: f64,
    longest_queue_us: f64,
    packets_sent: u64,
    copies_delivered: u64,
    copies_queue_dropped: u64,
    copies_link_lost: u64,
    copies_trimmed: u64,
    copies_late: u64,
    owed_lost: u64,
    events: u64,
    most_packets: usize,
}

impl<'a> Row<'a> {
    fn new(name: &'a str, experiment: &Experiment, report: &Report) -> Self {
        let network = &experiment.network;
        let accounts = &report.network;
        let completion = &report.completion_ms;
        let background = report.background;
        let calibration = background.and_then(|b| b.calibration);
        Self {
            experiment: name,
            simulated: report.simulated,
            algorithm: report.algorithm.name(),
            ranks: report.ranks,
            groups: report.groups,
            bytes: report.bytes,
            slot: report.slot,
            tail: report.tail,
            loss: report.loss.clone(),
            operations: report.operations,
            seed: report.seed,
            topology: network.topology.to_string(),
            rate_bps: network.rate,
            delay_us: network.delay.as_secs() * 1e6,
            jitter: report.jitter.clone(),
            host_us: experiment.host.as_secs_f64() * 1e6,
            compute_ms: report.compute_ms,
            compute_tail: report.compute_tail,
            straggler_share: report.stragglers.map(|s| s.share),
            straggler_delay_ms: report.stragglers.map(|s| s.delay_ms),
            queue: network.queue,
            trim: network.trim,
            mark: network.mark,
            cross: network.cross,
            burst_us: network.burst.as_secs() * 1e6,
            background: background.map(|b| b.ratio),
            background_flow: background.map(|b| b.flow),
            background_load: calibration.map(|c| c.load),
            background_ring_ratio: calibration.map(|c| c.ring_ratio),
            slow: network
                .slow
                .map(|slow| format!("{}:{}", slow.hosts, slow.factor)),
            rate_control: experiment.policies.rate.name(),
            incast: policies::incast_text(experiment.policies.incast),
            receive_buffer: experiment.receive_buffer,
            gather_start: experiment.policies.gather_start.name(),
            loss_detection: experiment.policies.loss_detection.name(),
            timeouts: experiment.policies.timeouts.name(),
            t_s_ms: report.t_s_ms,
            t_b_ms: report.t_b_ms,
            min_rto_ms: report.min_rto_ms,
            pool_slots: report.pool_slots,
            mean_ms: completion.mean,
            p50_ms: completion.p50,
            p99_ms: completion.p99,
            max_ms: completion.max,
            on_time_p50_ms: report.on_time_ms.map(|times| times.p50),
            on_time_p99_ms: report.on_time_ms.map(|times| times.p99),
            arrived_share: report.arrived_share,
            arrived_share_of_not_lost: report.arrived_share_of_not_lost,
            goodput_share_of_bound: report.goodput_share_of_bound,
            bound_ms: report.bound_ms,
            p99_queue_us: report.p99_queue_us,
            longest_queue_us: report.longest_queue_us,
            packets_sent: accounts.sent,
            copies_delivered: accounts.delivered,
            copies_queue_dropped: accounts.queue_dropped,
            copies_link_lost: accounts.link_lost,
            copies_trimmed: accounts.trimmed,
            copies_late: accounts.late,
            owed_lost: accounts.owed_lost,
            events: report.events,
            most_packets: report.most_packets,
        }
    }
}

/// A header and a row for each run.
pub fn csv(results: &[(&Grid, Vec<Report>)]) -> Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for (grid, reports) in results {
        for (run, report) in grid.runs.iter().zip(reports) {
            writer.serialize(Row::new(&grid.name, &run.experiment, report))?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}
