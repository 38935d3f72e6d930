//! The report of an agent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use ultima_api::v1 as api;
use ultima_host::{
    Cause, Causes, ClosedBy, Durations, FromRank, History, LinkCounters, Losses, RecyclingCounters,
    Rejection, Span, TrimmedByHops, underweight,
};

use super::operations::{Done, Operation};
use super::verdict;
use ultima_api::document;
use ultima_console::output::table;
use ultima_console::units::counted;

/// The report.
#[derive(Serialize)]
pub struct Report {
    job: String,
    host: String,
    size: usize,
    deadline_ms: f64,
    ranks: Vec<Rank>,
    /// The result of a check, if a rank received nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<document::Check>,
}

#[derive(Serialize)]
struct Rank {
    rank: u16,
    operations: Vec<Row>,
    summary: Summary,
}

#[derive(Serialize)]
struct Row {
    step: u32,
    /// The membership epoch.
    epoch: u16,
    /// The number of ranks.
    ranks: u16,
    ms: f64,
    /// Time until this rank's shard closed; in a grid, until it was averaged over all groups.
    shard_ms: f64,
    /// In a grid: duration of the scatter, the average across groups, and the gather.
    #[serde(skip_serializing_if = "Option::is_none")]
    phases_ms: Option<Vec<f64>>,
    closed_by: &'static str,
    /// True if the result contains every contribution of every rank.
    whole: bool,
    lost_contributions: ByCause,
    lost_aggregates: ByCause,
    incomplete_aggregates: u32,
    /// Ranks that were silent in this operation and at least the two before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    suspected: Vec<u16>,
    /// Missing packets by sender.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_from: Vec<MissingFrom>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    trimmed: Vec<Cut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    switch: Option<Switch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<f64>,
    sha256: String,
}

/// Missing packets of one sender.
#[derive(Serialize)]
struct MissingFrom {
    rank: u16,
    contributions: u32,
    aggregates: u32,
}

/// Slots of which only the headers arrived.
#[derive(Serialize)]
struct Cut {
    /// Number of switches on the path.
    hops: u8,
    trimmed: u64,
    late: u64,
    /// The longest time of a packet in one queue.
    longest_queue_ms: f64,
}

/// Counters of this host's switch for an operation, at the port to this host.
#[derive(Serialize)]
struct Switch {
    port: u16,
    /// False if the switch no longer has counters for the operation; then the next three are 0.
    known: bool,
    sent: u32,
    trimmed: u32,
    late: u32,
    /// Packets of this rank that were lost before the switch, in all operations so far.
    upstream_lost: u32,
}

#[derive(Serialize)]
struct Summary {
    operations: usize,
    whole: usize,
    wrong: usize,
    ms: Spread,
    /// Time until the own shard closed.
    shard_ms: Spread,
    /// Time from there to the end.
    gather_ms: Spread,
    /// Number of operations by the reason of their end.
    closed_by: BTreeMap<&'static str, u64>,
    lost_contributions: ByCause,
    lost_aggregates: ByCause,
    /// The final weight of each rank's data in this rank's shard, by rank: 1/N each if no rank is late. Empty in a grid, where a rank does
    /// not know other rows.
    weights: Vec<f32>,
    /// Why the rank stopped early, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<String>,
    /// Ranks that were silent at the end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    suspected: Vec<u16>,
    /// Slots that were sent again, with `--recycle`.
    #[serde(skip_serializing_if = "Option::is_none")]
    recycling: Option<RecyclingCounters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_error: Option<f64>,
    packets_sent: u64,
    packets_received: u64,
    packets_trimmed: u64,
    /// Rejected packets by reason, where there are any.
    rejected: BTreeMap<&'static str, u64>,
    send_errors: u64,
    too_long: u64,
    /// The kernel's last reason not to send a packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_send_error: Option<String>,
    /// Failures, for which the agent's exit code is 1.
    problems: Vec<String>,
}

/// Missing slots by cause.
#[derive(Serialize)]
struct ByCause {
    trimmed: u64,
    late: u64,
    overtaken: u64,
    silent: u64,
    overdue: u64,
}

#[derive(Serialize)]
struct Spread {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Report {
    /// The report of ranks that are `done`.
    pub fn new(
        (job, host): (&str, &str),
        (size, deadline): (usize, Duration),
        done: &[Done],
        verify: bool,
        check: Option<&api::CheckJobResponse>,
    ) -> Self {
        Self {
            job: job.to_owned(),
            host: host.to_owned(),
            size,
            deadline_ms: ms(deadline),
            ranks: done.iter().map(|done| rank(done, verify)).collect(),
            check: check.map(document::Check::from),
        }
    }

    /// A table of the operations, and a summary for each rank.
    pub fn text(&self) -> String {
        let header = [
            "RANK",
            "STEP",
            "EPOCH",
            "RANKS",
            "MS",
            "ENDED-BY",
            "LOST-CONTRIBUTIONS",
            "LOST-AGGREGATES",
            "ERROR",
        ];
        let rows = self.ranks.iter().flat_map(|rank| {
            rank.operations.iter().map(|row| {
                [
                    rank.rank.to_string(),
                    row.step.to_string(),
                    row.epoch.to_string(),
                    row.ranks.to_string(),
                    format!("{:.2}", row.ms),
                    row.closed_by.to_owned(),
                    row.lost_contributions.text(),
                    row.lost_aggregates.text(),
                    error_text(row.error),
                ]
            })
        });
        let mut text = table(header, rows) + "\n";
        for Rank { rank, summary, .. } in &self.ranks {
            let Spread {
                p50,
                p99,
                p999,
                max,
            } = summary.ms;
            text += &format!(
                "rank {rank} on {}: {} of {} values, {} whole, {} wrong; p50 {p50:.2} ms, p99 {p99:.2} ms, \
                 p99.9 {p999:.2} ms, max {max:.2} ms; lost {} contributions and {} aggregates; largest error {}\n",
                self.host,
                counted(summary.operations, "operation"),
                self.size,
                summary.whole,
                summary.wrong,
                summary.lost_contributions.total(),
                summary.lost_aggregates.total(),
                error_text(summary.largest_error),
            );
            for silent in &summary.suspected {
                text += &format!("rank {rank}: rank {silent} was silent in the last operations\n");
            }
            if let Some(recycling) = &summary.recycling {
                let RecyclingCounters {
                    uncounted,
                    unresolved,
                    repaired,
                    lapsed,
                    ..
                } = recycling;
                text += &format!(
                    "rank {rank}: contributions of {uncounted} slots were sent again in later operations; of {unresolved} missing \
                     results {repaired} arrived later and {lapsed} never\n"
                );
            }
            for (late, weight) in underweight(&summary.weights) {
                text += &format!(
                    "rank {rank}: rank {late} is late or lost in most operations; its data have weight {weight:.3} instead of \
                     {:.3} in this rank's shard\n",
                    1.0 / summary.weights.len() as f64
                );
            }
        }
        text
    }
}

fn rank(done: &Done, verify: bool) -> Rank {
    Rank {
        rank: done.position.rank,
        operations: (done.operations.iter()).map(row).collect(),
        summary: summary(done, verify),
    }
}

fn row(operation: &Operation) -> Row {
    let position = operation.position();
    let phases = || operation.phases();
    let lost = operation.lost();
    let missing = operation.missing_from().into_iter();
    let phases_ms = || phases().map(|phase| ms(phase.duration)).collect();
    Row {
        step: operation.step,
        epoch: operation.epoch,
        ranks: position.ranks,
        ms: ms(operation.duration()),
        shard_ms: ms(operation.shard_duration()),
        phases_ms: position.grid.map(|_| phases_ms()),
        closed_by: operation.closed_by().name(),
        whole: operation.is_whole(),
        lost_contributions: lost.scatter.into(),
        lost_aggregates: lost.gather.into(),
        incomplete_aggregates: phases().map(|phase| phase.incomplete_aggregates).sum(),
        suspected: operation.suspected(),
        missing_from: missing.map(MissingFrom::from).collect(),
        trimmed: phases()
            .flat_map(|phase| &phase.trimmed_by_hops)
            .map(Cut::from)
            .collect(),
        switch: operation.switch.as_ref().map(Switch::from),
        error: operation.error,
        sha256: operation.sha256.clone(),
    }
}

fn summary(done: &Done, verify: bool) -> Summary {
    let operations = &done.operations;
    let history = &done.history;
    let spread = |span| Spread::from(&history.all(span));
    let errors = operations.iter().filter_map(|o| o.error);
    let reports = &done.reports;
    let phases = reports
        .iter()
        .flat_map(|report| [report.totals.phases.scatter, report.totals.phases.gather]);
    let mut lost = Losses::default();
    for report in reports {
        lost += report.totals.lost;
    }
    let by_link = |count: fn(&LinkCounters) -> u64| reports.iter().map(|r| count(&r.link)).sum();
    Summary {
        operations: operations.len(),
        whole: operations.iter().filter(|o| o.is_whole()).count(),
        wrong: operations.iter().filter(|o| o.is_wrong()).count(),
        ms: spread(Span::Operation),
        shard_ms: spread(Span::Shard),
        gather_ms: spread(Span::Gather),
        closed_by: by_end(history),
        lost_contributions: lost.scatter.into(),
        lost_aggregates: lost.gather.into(),
        weights: match (done.position.grid, operations.last()) {
            (None, Some(last)) => last.folded().weights,
            _ => Vec::new(),
        },
        suspected: operations
            .last()
            .map_or_else(Vec::new, |last| last.suspected()),
        stopped: done.stopped.clone(),
        recycling: done.recycles.then(|| {
            let mut recycling = RecyclingCounters::default();
            for report in reports {
                recycling += report.totals.recycling;
            }
            recycling
        }),
        largest_error: errors.max_by(f64::total_cmp),
        packets_sent: phases.clone().map(|p| p.sent).sum(),
        packets_received: phases
            .clone()
            .map(|p| p.in_time + p.late + p.duplicates + p.refused)
            .sum(),
        packets_trimmed: phases.map(|p| p.trimmed).sum(),
        rejected: Rejection::ALL
            .into_iter()
            .map(|reason| {
                let counts = reports.iter().map(|r| r.totals.rejected.of(reason));
                (reason.name(), counts.sum())
            })
            .filter(|(_, count)| *count > 0)
            .collect(),
        send_errors: by_link(|link| link.send_errors),
        too_long: by_link(|link| link.too_long),
        last_send_error: verdict::last_send_error(reports.iter().map(|report| report.link))
            .map(|error| error.to_string()),
        problems: verdict::problems(std::slice::from_ref(done), verify),
    }
}

fn by_end(history: &History) -> BTreeMap<&'static str, u64> {
    let count = |by| history.of(Span::Operation, by).count();
    let ends = ClosedBy::ALL.into_iter().map(|by| (by.name(), count(by)));
    ends.collect()
}

fn ms(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

fn error_text(error: Option<f64>) -> String {
    error.map_or_else(|| "-".to_owned(), |error| format!("{error:.2e}"))
}

impl From<&Durations> for Spread {
    fn from(durations: &Durations) -> Self {
        let at = |share| ms(durations.quantile(share));
        Self {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: ms(durations.max()),
        }
    }
}

impl From<(u16, FromRank)> for MissingFrom {
    fn from((rank, missing): (u16, FromRank)) -> Self {
        let FromRank {
            contributions,
            aggregates,
        } = missing;
        Self {
            rank,
            contributions,
            aggregates,
        }
    }
}

impl From<&TrimmedByHops> for Cut {
    fn from(trimmed: &TrimmedByHops) -> Self {
        Self {
            hops: trimmed.hops,
            trimmed: trimmed.trimmed,
            late: trimmed.late,
            longest_queue_ms: ms(trimmed.longest_queue),
        }
    }
}

impl From<&ultima_wire::Report> for Switch {
    fn from(report: &ultima_wire::Report) -> Self {
        Self {
            port: report.port,
            known: report.known,
            sent: report.sent,
            trimmed: report.trimmed,
            late: report.late,
            upstream_lost: report.upstream_lost,
        }
    }
}

impl From<Causes> for ByCause {
    fn from(causes: Causes) -> Self {
        Self {
            trimmed: causes.of(Cause::Trimmed),
            late: causes.of(Cause::Late),
            overtaken: causes.of(Cause::Overtaken),
            silent: causes.of(Cause::Silent),
            overdue: causes.of(Cause::Overdue),
        }
    }
}

impl ByCause {
    fn by_name(&self) -> [(&'static str, u64); 5] {
        [
            (Cause::Trimmed.name(), self.trimmed),
            (Cause::Late.name(), self.late),
            (Cause::Overtaken.name(), self.overtaken),
            (Cause::Silent.name(), self.silent),
            (Cause::Overdue.name(), self.overdue),
        ]
    }

    fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, slots)| slots).sum()
    }

    fn text(&self) -> String {
        let causes = self.by_name().into_iter().filter(|(_, slots)| *slots > 0);
        let causes: Vec<String> = causes
            .map(|(cause, slots)| format!("{slots} {cause}"))
            .collect();
        match causes.is_empty() {
            true => "0".to_owned(),
            false => causes.join(", "),
        }
    }
}
