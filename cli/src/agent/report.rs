//! What an agent prints.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use ultima_controller::api;
use ultima_host::{
    Cause, Causes, ClosedBy, CutOnTheWay, Durations, FromRank, History, LinkCounters, Losses,
    RecyclingCounters, Span, underweight,
};

use super::rank::{Done, Operation};
use crate::document;
use ultima_console::output::table;

/// What this process did, as it is printed.
#[derive(Serialize)]
pub struct Report {
    job: String,
    host: String,
    size: usize,
    deadline_ms: f64,
    ranks: Vec<Rank>,
    /// What a check found, where the first operation heard nothing.
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
    /// How many ranks it averaged over.
    ranks: u16,
    ms: f64,
    /// Until this rank's own shard had closed; on a grid, until it was averaged over all groups.
    shard_ms: f64,
    /// On a grid: what scattering, averaging across groups and gathering took.
    #[serde(skip_serializing_if = "Option::is_none")]
    phases_ms: Option<Vec<f64>>,
    closed_by: &'static str,
    /// Whether every contribution of every rank is in the result.
    whole: bool,
    lost_contributions: ByCause,
    lost_aggregates: ByCause,
    incomplete_aggregates: u32,
    /// Who was silent in this and the two operations before or longer, and not waited for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    suspected: Vec<u16>,
    /// Whose packets did not come in time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing_from: Vec<MissingFrom>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cut: Vec<Cut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    switch: Option<Switch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<f64>,
    sha256: String,
}

/// What of one rank did not come in time.
#[derive(Serialize)]
struct MissingFrom {
    rank: u16,
    contributions: u32,
    aggregates: u32,
}

/// Slots of which switches sent the headers on.
#[derive(Serialize)]
struct Cut {
    /// Switches that the headers passed.
    hops: u8,
    trimmed: u64,
    late: u64,
    /// The longest that any of them spent in one queue.
    longest_queue_ms: f64,
}

/// What the switch beside this host counted of an operation, at the port toward here.
#[derive(Serialize)]
struct Switch {
    port: u16,
    /// Whether it still counted the operation; if not, the next three are 0.
    known: bool,
    sent: u32,
    trimmed: u32,
    late: u32,
    /// Packets of this rank, of all operations so far, that did not reach the switch.
    upstream_lost: u32,
}

#[derive(Serialize)]
struct Summary {
    operations: usize,
    whole: usize,
    wrong: usize,
    ms: Spread,
    /// Until the own shards had closed.
    shard_ms: Spread,
    /// From there to the ends.
    gather_ms: Spread,
    /// Operations by what ended them.
    closed_by: BTreeMap<&'static str, u64>,
    lost_contributions: ByCause,
    lost_aggregates: ByCause,
    /// What each rank's data weighed at last, by rank, in this one's shard: 1/N each where nothing is late. Empty on a grid,
    /// where no rank knows of other rows.
    weights: Vec<f32>,
    /// Why it stopped although there was more to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    stopped: Option<String>,
    /// Who was not waited for at last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    suspected: Vec<u16>,
    /// What later operations made good, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    recycling: Option<RecyclingCounters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_error: Option<f64>,
    packets_sent: u64,
    packets_received: u64,
    packets_cut: u64,
    rejected: u64,
    send_errors: u64,
    too_long: u64,
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
    /// Everything about `done`.
    pub fn new(
        (job, host): (&str, &str),
        (size, deadline): (usize, Duration),
        done: &[Done],
        check: Option<&api::CheckJobResponse>,
    ) -> Self {
        Self {
            job: job.to_owned(),
            host: host.to_owned(),
            size,
            deadline_ms: ms(deadline),
            ranks: done.iter().map(rank).collect(),
            check: check.map(document::Check::from),
        }
    }

    /// A row for each operation, a line for each rank.
    pub fn text(&self) -> String {
        let header = [
            "RANK",
            "STEP",
            "EPOCH",
            "RANKS",
            "MS",
            "CLOSED BY",
            "CONTRIBUTIONS LOST",
            "AGGREGATES LOST",
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
                "rank {rank} on {}: {} operations of {} values, {} whole, {} wrong; p50 {p50:.2} ms, p99 {p99:.2} ms, \
                 p99.9 {p999:.2} ms, max {max:.2} ms; lost {} contributions and {} aggregates; largest error {}\n",
                self.host,
                summary.operations,
                self.size,
                summary.whole,
                summary.wrong,
                summary.lost_contributions.total(),
                summary.lost_aggregates.total(),
                error_text(summary.largest_error),
            );
            for silent in &summary.suspected {
                text += &format!(
                    "rank {rank}: rank {silent} was silent in the last operations, and not waited for\n"
                );
            }
            if let Some(recycling) = &summary.recycling {
                let RecyclingCounters {
                    uncounted,
                    doubtful,
                    repaired,
                    lapsed,
                    ..
                } = recycling;
                text += &format!(
                    "rank {rank}: of {uncounted} slots its contributions went into later operations; of {doubtful} it lacked \
                     the aggregate, {repaired} came later, {lapsed} never\n"
                );
            }
            for (late, weight) in underweight(&summary.weights) {
                text += &format!(
                    "rank {rank}: rank {late} is late or lost at most operations; in this rank's shard its data weigh \
                     {weight:.3} instead of {:.3}\n",
                    1.0 / summary.weights.len() as f64
                );
            }
        }
        text
    }
}

fn rank(done: &Done) -> Rank {
    Rank {
        rank: done.place.rank,
        operations: (done.operations.iter()).map(row).collect(),
        summary: summary(done),
    }
}

fn row(operation: &Operation) -> Row {
    let place = &operation.place;
    let phases = &operation.phases;
    let lost = operation.lost();
    let missing = operation.missing_from().into_iter();
    let phases_ms = || phases.iter().map(|phase| ms(phase.duration)).collect();
    Row {
        step: operation.step,
        epoch: operation.epoch,
        ranks: place.ranks,
        ms: ms(operation.duration()),
        shard_ms: ms(operation.shard_duration()),
        phases_ms: place.grid.map(|_| phases_ms()),
        closed_by: operation.closed_by().name(),
        whole: operation.is_whole(),
        lost_contributions: lost.scatter.into(),
        lost_aggregates: lost.gather.into(),
        incomplete_aggregates: phases.iter().map(|phase| phase.incomplete_aggregates).sum(),
        suspected: operation.suspected(),
        missing_from: missing.map(MissingFrom::from).collect(),
        cut: phases
            .iter()
            .flat_map(|phase| &phase.cut)
            .map(Cut::from)
            .collect(),
        switch: operation.switch.as_ref().map(Switch::from),
        error: operation.error,
        sha256: operation.sha256.clone(),
    }
}

fn summary(done: &Done) -> Summary {
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
        weights: match operations.last().map(|last| &last.phases[..]) {
            Some([only]) => only.weights.clone(),
            _ => Vec::new(),
        },
        suspected: operations
            .last()
            .map_or_else(Vec::new, Operation::suspected),
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
        packets_cut: phases.map(|p| p.cut).sum(),
        rejected: reports.iter().map(|r| r.totals.rejected.total()).sum(),
        send_errors: by_link(|link| link.send_errors),
        too_long: by_link(|link| link.too_long),
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

impl From<&CutOnTheWay> for Cut {
    fn from(cut: &CutOnTheWay) -> Self {
        Self {
            hops: cut.hops,
            trimmed: cut.trimmed,
            late: cut.late,
            longest_queue_ms: ms(cut.longest_queue),
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
