//! Counters and durations of a process's ranks, as OpenMetrics text for Prometheus.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};
use ultima_host::{
    Cause, Causes, ClosedBy, Durations, History, Observer, PhaseCounters, Rejection, Report, Span,
};

/// Prefix of all names.
const PREFIX: &str = "ultima";
/// Upper ends of the histograms' buckets, in units of 10 µs: 10 µs to 50 s, three per decade. The core has
/// finer ones; these are for scrapes.
const BUCKETS: [u64; 20] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000,
    200_000, 500_000, 1_000_000, 5_000_000,
];
/// Their unit.
const BUCKET_UNIT: Duration = Duration::from_micros(10);

/// The metrics of a process's ranks.
#[derive(Default)]
pub struct Metrics {
    ranks: Mutex<Vec<Watched>>,
}

struct Watched {
    job: String,
    rank: u16,
    observer: Observer,
    /// The last report, which stays valid after the collective has ended.
    report: Report,
}

/// The state of a rank at a scrape.
#[derive(Debug)]
struct Seen {
    job: String,
    rank: String,
    report: Report,
    history: History,
}

impl Metrics {
    /// Adds a rank.
    pub fn watch(&self, job: &str, rank: u16, observer: Observer) -> WatchedRank {
        let mut watched = self.lock();
        watched.push(Watched {
            job: job.to_owned(),
            rank,
            observer,
            report: Report::default(),
        });
        WatchedRank(watched.len() - 1)
    }

    /// Replaces a rank's number and collective in another epoch. Its counters start at zero.
    pub fn watch_on(&self, watched: WatchedRank, rank: u16, observer: Observer) {
        if let Some(watched) = self.lock().get_mut(watched.0) {
            (watched.rank, watched.observer) = (rank, observer);
            watched.report = Report::default();
        }
    }

    /// All metrics as OpenMetrics text. Waits for the answers of the ranks' data threads.
    pub fn text(&self) -> String {
        let seen = self.lock().iter_mut().map(Watched::look).collect();
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(Snapshot(seen)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)
            .expect("writing to a string cannot fail");
        text
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Watched>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index of a rank in [`Metrics`].
#[derive(Clone, Copy, Debug)]
pub struct WatchedRank(usize);

impl Watched {
    fn look(&mut self) -> Seen {
        if let Ok(report) = self.observer.report() {
            self.report = report;
        }
        Seen {
            job: self.job.clone(),
            rank: self.rank.to_string(),
            report: self.report,
            history: self.observer.history(),
        }
    }
}

/// The data of one scrape.
#[derive(Debug)]
struct Snapshot(Vec<Seen>);

/// Additional labels of one series, and its value.
type Series = (Vec<(&'static str, &'static str)>, u64);

impl Collector for Snapshot {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let to = &mut to;
        for (span, name, help) in [
            (
                Span::Operation,
                "operation_duration",
                "Duration of AllReduces by what ended them",
            ),
            (
                Span::Shard,
                "shard_duration",
                "Time from an AllReduce's start to the close of the rank's own shard, by what closed the worst of its slots",
            ),
            (
                Span::Gather,
                "gather_duration",
                "Time from the close of the own shard to the AllReduce's end, by what ended it",
            ),
        ] {
            self.durations(to, name, help, span)?;
        }
        self.counters(
            to,
            "owed_packets",
            "Contributions and aggregates owed by other ranks",
            |seen| vec![(vec![], seen.history.owed())],
        )?;
        self.counters(
            to,
            "lost_packets",
            "Contributions and aggregates that did not arrive in time",
            |seen| {
                let lost = seen.history.lost();
                [("scatter", lost.scatter), ("gather", lost.gather)]
                    .into_iter()
                    .flat_map(|(phase, causes)| by_cause(phase, causes))
                    .collect()
            },
        )?;
        self.counters(to, "sent_packets", "Sent packets by kind", |seen| {
            let totals = &seen.report.totals;
            let kinds = [
                ("scatter", totals.phases.scatter.sent),
                ("gather", totals.phases.gather.sent),
                ("feedback", totals.feedback_sent),
                ("control", totals.control_sent),
                (
                    "repair",
                    totals.recycling.repairs_sent + totals.exact.repairs_sent,
                ),
            ];
            kinds.map(|(kind, n)| (vec![("kind", kind)], n)).to_vec()
        })?;
        self.counters(
            to,
            "unsent_packets",
            "Packets that were unsent when a bound passed",
            |seen| {
                let phases = seen.report.totals.phases;
                let kinds = [
                    ("scatter", phases.scatter.never_sent),
                    ("gather", phases.gather.never_sent),
                ];
                kinds.map(|(kind, n)| (vec![("kind", kind)], n)).to_vec()
            },
        )?;
        self.counters(to, "received_packets", "Received packets by fate", |seen| {
            let phases = seen.report.totals.phases;
            [("scatter", phases.scatter), ("gather", phases.gather)]
                .into_iter()
                .flat_map(|(kind, phase)| by_fate(kind, phase))
                .collect()
        })?;
        self.counters(to, "rejected_datagrams", "Rejected datagrams", |seen| {
            let rejected = seen.report.totals.rejected;
            let all = Rejection::ALL.into_iter();
            all.map(|reason| (vec![("reason", reason.name())], rejected.of(reason)))
                .collect()
        })?;
        self.counters(
            to,
            "recycled_slots",
            "Slots by state of recycling",
            |seen| {
                let recycling = seen.report.totals.recycling;
                let states = [
                    ("uncounted", recycling.uncounted),
                    ("unresolved", recycling.unresolved),
                    ("repaired", recycling.repaired),
                    ("lapsed", recycling.lapsed),
                ];
                states
                    .map(|(state, n)| (vec![("state", state)], n))
                    .to_vec()
            },
        )?;
        self.counters(
            to,
            "exact_operations",
            "Finished exact operations",
            |seen| {
                let exact = seen.report.totals.exact;
                let results = [
                    ("complete", exact.complete),
                    ("incomplete", exact.incomplete),
                ];
                results
                    .map(|(result, n)| (vec![("result", result)], n))
                    .to_vec()
            },
        )?;
        self.counters(
            to,
            "send_errors",
            "Datagrams that the kernel rejected",
            |seen| vec![(vec![], seen.report.link.send_errors)],
        )?;
        self.counters(
            to,
            "too_long_datagrams",
            "Datagrams longer than the MTU",
            |seen| vec![(vec![], seen.report.link.too_long)],
        )?;
        self.gauges(
            to,
            "newest_step",
            "The newest step in packets of other ranks",
            |seen| seen.report.newest_step,
        )?;
        self.suspected(to)
    }
}

impl Snapshot {
    /// One series for each rank and result of `of`.
    fn counters(
        &self,
        to: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        of: impl Fn(&Seen) -> Vec<Series>,
    ) -> fmt::Result {
        let mut to = to.encode_descriptor(name, help, None, MetricType::Counter)?;
        for seen in &self.0 {
            for (labels, value) in of(seen) {
                let labels = seen.labels(&labels);
                let none: Option<&Exemplar<Vec<(&str, &str)>, u64>> = None;
                to.encode_family(&labels)?.encode_counter(&value, none)?;
            }
        }
        Ok(())
    }

    /// One series for each rank that has a value.
    fn gauges(
        &self,
        to: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        of: impl Fn(&Seen) -> Option<u32>,
    ) -> fmt::Result {
        let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for seen in &self.0 {
            if let Some(value) = of(seen) {
                let labels = seen.labels(&[]);
                to.encode_family(&labels)?.encode_gauge(&i64::from(value))?;
            }
        }
        Ok(())
    }

    /// One series for each rank that was ever suspected.
    fn suspected(&self, to: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "1 if the rank `peer` was silent for so long that this one does not wait for it";
        let mut to = to.encode_descriptor("suspected", help, None, MetricType::Gauge)?;
        for seen in &self.0 {
            for (peer, suspected) in seen.history.suspected() {
                let peer = peer.to_string();
                let labels = seen.labels(&[("peer", &peer)]);
                to.encode_family(&labels)?
                    .encode_gauge(&i64::from(suspected))?;
            }
        }
        Ok(())
    }

    fn durations(
        &self,
        to: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        span: Span,
    ) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        let mut to = to.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        for seen in &self.0 {
            for by in ClosedBy::ALL {
                let labels = seen.labels(&[("closed_by", by.name())]);
                let durations = seen.history.of(span, by);
                histogram(to.encode_family(&labels)?, durations)?;
            }
        }
        Ok(())
    }
}

impl Seen {
    fn labels<'a>(&'a self, further: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let whose = [("job", self.job.as_str()), ("rank", self.rank.as_str())];
        whose.into_iter().chain(further.iter().copied()).collect()
    }
}

fn histogram(mut to: MetricEncoder<'_>, durations: &Durations) -> fmt::Result {
    let mut before = 0;
    let mut buckets: Vec<(f64, u64)> = Vec::with_capacity(BUCKETS.len() + 1);
    for bound in BUCKETS {
        let bound = BUCKET_UNIT * bound as u32;
        let until = durations.count_to(bound);
        buckets.push((bound.as_secs_f64(), until - before));
        before = until;
    }
    buckets.push((f64::INFINITY, durations.count() - before));
    let (sum, count) = (durations.sum().as_secs_f64(), durations.count());
    to.encode_histogram::<Vec<(&str, &str)>>(sum, count, &buckets, None)
}

fn by_cause(phase: &'static str, causes: Causes) -> impl Iterator<Item = Series> {
    Cause::ALL.into_iter().map(move |cause| {
        let labels = vec![("phase", phase), ("cause", cause.name())];
        (labels, causes.of(cause))
    })
}

fn by_fate(kind: &'static str, phase: PhaseCounters) -> impl Iterator<Item = Series> {
    let fates = [
        ("in-time", phase.in_time),
        ("late", phase.late),
        ("duplicate", phase.duplicates),
        ("trimmed", phase.trimmed),
        ("refused", phase.refused),
    ];
    let series = move |(fate, n)| (vec![("kind", kind), ("fate", fate)], n);
    fates.into_iter().map(series)
}
