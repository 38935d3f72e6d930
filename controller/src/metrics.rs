//! The controller's counters and measurements, in Prometheus and OpenMetrics text.

mod role;

use std::fmt;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use role::RoleGauges;
use ultima_planner::ledger::Fill;

/// The prefix of every metric's name.
const PREFIX: &str = "ultima_controller";
/// Upper bounds of the histogram buckets in seconds: 0.1 ms to 10 s, three per decade.
const BUCKETS: [f64; 16] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSwitch {
    switch: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfResult {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    by: &'static str,
}

type Counters = Family<OfSwitch, Counter>;
type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// Counters and histograms since the controller started. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    writes: Histograms<OfSwitch>,
    updates: Counters,
    failed_writes: Counters,
    differences: Counters,
    failed_audits: Counters,
    reported_losses: Counters,
    creations: Histograms<OfResult>,
    reroutes: Histogram,
    rerouted_jobs: Counter,
    changes: Family<OfResult, Counter>,
    evictions: Family<By, Counter>,
}

/// The reason for an eviction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EvictedBy {
    /// An operator's request.
    Request,
    /// The job's `evict_after_s`.
    Policy,
}

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

fn of(switch: &str) -> OfSwitch {
    OfSwitch {
        switch: switch.to_owned(),
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            writes: Family::new_with_constructor(histogram),
            updates: Family::default(),
            failed_writes: Family::default(),
            differences: Family::default(),
            failed_audits: Family::default(),
            reported_losses: Family::default(),
            creations: Family::new_with_constructor(histogram),
            reroutes: histogram(),
            rerouted_jobs: Counter::default(),
            changes: Family::default(),
            evictions: Family::default(),
        }
    }
}

impl Metrics {
    /// Exports the metrics of writes to a switch from now on, at first as zeros.
    pub(crate) fn export_writes(&self, switch: &str) {
        let of = of(switch);
        drop(self.writes.get_or_create(&of));
        drop(self.updates.get_or_create(&of));
        drop(self.failed_writes.get_or_create(&of));
    }

    /// Counts a WriteRequest to a switch, its updates, and a failure if it was not `answered`.
    pub(crate) fn written(&self, switch: &str, begun: Instant, updates: usize, answered: bool) {
        let of = of(switch);
        let duration = begun.elapsed().as_secs_f64();
        self.writes.get_or_create(&of).observe(duration);
        self.updates.get_or_create(&of).inc_by(updates as u64);
        let failed = u64::from(!answered);
        self.failed_writes.get_or_create(&of).inc_by(failed);
    }

    /// Counts the differences found on a switch.
    pub(crate) fn differed(&self, switch: &str, differences: usize) {
        let found = self.differences.get_or_create(&of(switch));
        found.inc_by(differences as u64);
    }

    /// Counts a failure to compare or repair a switch.
    pub(crate) fn failed_to_audit(&self, switch: &str) {
        self.failed_audits.get_or_create(&of(switch)).inc();
    }

    /// Counts a change of a job's members that was decided or cancelled.
    pub(crate) fn changed(&self, is_decided: bool) {
        let result = match is_decided {
            true => "decided",
            false => "cancelled",
        };
        self.changes.get_or_create(&OfResult { result }).inc();
    }

    /// Counts the members that an installed epoch leaves out.
    pub(crate) fn evicted(&self, by: EvictedBy, members: usize) {
        let by = match by {
            EvictedBy::Request => "request",
            EvictedBy::Policy => "policy",
        };
        let evictions = self.evictions.get_or_create(&By { by });
        evictions.inc_by(members as u64);
    }

    /// The counter of a switch's loss reports.
    pub(crate) fn reported_losses(&self, switch: &str) -> Counter {
        self.reported_losses.get_or_create(&of(switch)).clone()
    }

    /// Records a request to create a job, and its result.
    pub(crate) fn created(&self, begun: Instant, is_there: bool) {
        let result = match is_there {
            true => "created",
            false => "refused",
        };
        let durations = self.creations.get_or_create(&OfResult { result });
        durations.observe(begun.elapsed().as_secs_f64());
    }

    /// Records a rerouting and the number of jobs that changed their tree.
    pub(crate) fn rerouted(&self, took: Duration, jobs: usize) {
        self.reroutes.observe(took.as_secs_f64());
        self.rerouted_jobs.inc_by(jobs as u64);
    }

    /// Returns all metrics and the current state as OpenMetrics text. With one of several
    /// controllers, includes its role.
    pub(crate) fn text(&self, gauges: Gauges, role: Option<RoleGauges>) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        let seconds = Unit::Seconds;
        registry.register_with_unit(
            "write_duration",
            "Time from a WriteRequest to its response",
            seconds.clone(),
            self.writes.clone(),
        );
        registry.register(
            "written_updates",
            "Updates in WriteRequests",
            self.updates.clone(),
        );
        registry.register(
            "failed_writes",
            "WriteRequests that failed, wholly or in part",
            self.failed_writes.clone(),
        );
        registry.register(
            "differences",
            "Differences from the desired entries that audits found",
            self.differences.clone(),
        );
        registry.register(
            "failed_audits",
            "Audits that could not read or repair a switch",
            self.failed_audits.clone(),
        );
        registry.register(
            "reported_losses",
            "Lossy operations that a switch reported",
            self.reported_losses.clone(),
        );
        registry.register_with_unit(
            "job_creation_duration",
            "Time from a request to create jobs until they are committed or refused",
            seconds.clone(),
            self.creations.clone(),
        );
        registry.register_with_unit(
            "reroute_duration",
            "Time to reroute after elements of the fabric failed, recovered or were drained",
            seconds,
            self.reroutes.clone(),
        );
        registry.register(
            "rerouted_jobs",
            "Jobs that were rerouted",
            self.rerouted_jobs.clone(),
        );
        registry.register(
            "changes_of_members",
            "Changes of jobs' members that were decided or cancelled",
            self.changes.clone(),
        );
        registry.register(
            "evictions",
            "Members that an installed epoch left out, by an operator's request or the job's policy",
            self.evictions.clone(),
        );
        registry.register_collector(Box::new(gauges));
        if let Some(role) = role {
            registry.register_collector(Box::new(role));
        }
        encoded(&registry)
    }
}

fn encoded(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)
        .expect("writing to a string cannot fail");
    text
}

/// The controller's current state.
#[derive(Debug)]
pub(crate) struct Gauges {
    pub jobs: usize,
    /// Jobs that wait for room to be rerouted.
    pub waiting_jobs: usize,
    /// Elements of the fabric that are down.
    pub lost: usize,
    /// Elements that are down or drained.
    pub out_of_use: usize,
    /// Changes of members that are pending, or whose previous epoch is still on a switch.
    pub changes_under_way: usize,
    pub switches: Vec<SwitchGauges>,
    pub members: Vec<MemberGauges>,
}

/// The states of a job's members in its current epoch.
#[derive(Debug)]
pub(crate) struct MemberGauges {
    pub job: String,
    /// The number of members in each state.
    pub states: [(&'static str, usize); 4],
}

#[derive(Debug)]
pub(crate) struct SwitchGauges {
    pub switch: String,
    pub is_connected: bool,
    pub is_dirty: bool,
    pub digest_lists_dropped: u64,
    pub fills: Vec<Fill>,
}

impl Gauges {
    /// Encodes one value for each switch.
    fn of_switches(
        &self,
        to: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&SwitchGauges) -> u64,
    ) -> fmt::Result {
        let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for it in &self.switches {
            let value = i64::try_from(value(it)).unwrap_or(i64::MAX);
            to.encode_family(&[("switch", it.switch.as_str())])?
                .encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Encodes one value for each switch and limited resource.
    fn of_fills(
        &self,
        to: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: impl Fn(&Fill) -> u64,
    ) -> fmt::Result {
        let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for it in &self.switches {
            for fill in &it.fills {
                let labels = [("switch", it.switch.as_str()), ("of", fill.of)];
                let value = i64::try_from(value(fill)).unwrap_or(i64::MAX);
                to.encode_family(&labels)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

impl Collector for Gauges {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let to = &mut to;
        for (name, help, value) in [
            ("jobs", "Jobs", self.jobs),
            (
                "waiting_jobs",
                "Jobs that still use a down or drained element because no other path has room",
                self.waiting_jobs,
            ),
            (
                "elements_down",
                "Elements of the fabric that are down",
                self.lost,
            ),
            (
                "elements_out_of_use",
                "Elements of the fabric that are down or drained",
                self.out_of_use,
            ),
            (
                "changes_under_way",
                "Changes of jobs' members in progress",
                self.changes_under_way,
            ),
        ] {
            let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            to.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        let help = "1 if the controller is the switch's primary";
        self.of_switches(to, "switch_connected", help, |it| it.is_connected.into())?;
        let help = "1 if the switch needs a resync because the result of a write is unknown";
        self.of_switches(to, "switch_dirty", help, |it| it.is_dirty.into())?;
        let help =
            "Digest lists dropped because they arrived too fast, since the switch last connected";
        self.of_switches(to, "digest_lists_dropped", help, |it| {
            it.digest_lists_dropped
        })?;
        let help = "Used amount of a limited resource of a switch";
        self.of_fills(to, "used", help, |fill| fill.used)?;
        self.of_fills(to, "limit", "Limit of that resource", |fill| fill.limit)?;
        let help = "Members of each job, by state";
        let mut to = to.encode_descriptor("members", help, None, MetricType::Gauge)?;
        for it in &self.members {
            for (state, members) in it.states {
                let labels = [("job", it.job.as_str()), ("state", state)];
                to.encode_family(&labels)?
                    .encode_gauge(&i64::try_from(members).unwrap_or(i64::MAX))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ultima_api::v1::GetStandingResponse;

    use super::*;

    #[test]
    fn metrics_are_exported_by_name() {
        let metrics = Metrics::default();
        let begun = Instant::now();
        metrics.written("s1", begun, 7, true);
        metrics.written("s1", begun, 1, false);
        metrics.differed("s2", 3);
        metrics.created(begun, true);
        metrics.rerouted(Duration::from_millis(30), 2);
        metrics.failed_to_audit("s2");
        metrics.changed(true);
        metrics.evicted(EvictedBy::Policy, 2);
        let states = [("free", 1), ("joined", 3), ("suspected", 2), ("left", 0)];
        let fill = Fill {
            of: "multicast groups",
            used: 5,
            limit: 4096,
        };
        let gauges = Gauges {
            jobs: 4,
            waiting_jobs: 0,
            lost: 1,
            out_of_use: 2,
            changes_under_way: 1,
            members: vec![MemberGauges {
                job: "train".into(),
                states,
            }],
            switches: vec![SwitchGauges {
                switch: "s1".into(),
                is_connected: true,
                is_dirty: false,
                digest_lists_dropped: 0,
                fills: vec![fill],
            }],
        };
        let text = metrics.text(gauges, Some(GetStandingResponse::default().into()));
        for line in [
            r#"ultima_controller_written_updates_total{switch="s1"} 8"#,
            r#"ultima_controller_failed_writes_total{switch="s1"} 1"#,
            r#"ultima_controller_write_duration_seconds_count{switch="s1"} 2"#,
            r#"ultima_controller_differences_total{switch="s2"} 3"#,
            r#"ultima_controller_job_creation_duration_seconds_count{result="created"} 1"#,
            r#"ultima_controller_reroute_duration_seconds_bucket{le="0.05"} 1"#,
            "ultima_controller_rerouted_jobs_total 2",
            "ultima_controller_jobs 4",
            r#"ultima_controller_switch_connected{switch="s1"} 1"#,
            r#"ultima_controller_used{switch="s1",of="multicast groups"} 5"#,
            r#"ultima_controller_limit{switch="s1",of="multicast groups"} 4096"#,
            r#"ultima_controller_failed_audits_total{switch="s2"} 1"#,
            r#"ultima_controller_changes_of_members_total{result="decided"} 1"#,
            r#"ultima_controller_evictions_total{by="policy"} 2"#,
            "ultima_controller_changes_under_way 1",
            r#"ultima_controller_members{job="train",state="suspected"} 2"#,
            "ultima_controller_leads 0",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
    }
}
