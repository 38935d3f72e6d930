//! What a controller counts and measures, as Prometheus and OpenMetrics read it.

mod group;

use std::fmt;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use group::GroupStanding;

use crate::ledger::Fill;

/// Stands before every name.
const PREFIX: &str = "ultima_controller";
/// Upper ends of the histograms' buckets in seconds: 0.1 ms to 10 s, three in a decade.
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

/// What happened since the controller started. Clones count together.
#[derive(Clone, Debug)]
pub struct Metrics {
    writes: Histograms<OfSwitch>,
    updates: Counters,
    failed_writes: Counters,
    differences: Counters,
    failed_audits: Counters,
    told_losses: Counters,
    creations: Histograms<OfResult>,
    moves: Histogram,
    moved_jobs: Counter,
    changes: Family<OfResult, Counter>,
    evictions: Family<By, Counter>,
}

/// Who wanted a member's place to be taken away.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EvictedBy {
    /// Somebody asked for it.
    Request,
    /// The job's `evict_after_s`.
    Policy,
}

/// What is counted of writes to one switch.
#[derive(Clone, Debug)]
pub struct WriteMetrics {
    durations: Histogram,
    updates: Counter,
    failed: Counter,
}

impl WriteMetrics {
    /// A WriteRequest of so many updates was answered, or not.
    pub(crate) fn written(&self, begun: Instant, updates: usize, answered: bool) {
        self.durations.observe(begun.elapsed().as_secs_f64());
        self.updates.inc_by(updates as u64);
        if !answered {
            self.failed.inc();
        }
    }
}

impl Default for WriteMetrics {
    fn default() -> Self {
        WriteMetrics {
            durations: histogram(),
            updates: Counter::default(),
            failed: Counter::default(),
        }
    }
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
            told_losses: Family::default(),
            creations: Family::new_with_constructor(histogram),
            moves: histogram(),
            moved_jobs: Counter::default(),
            changes: Family::default(),
            evictions: Family::default(),
        }
    }
}

impl Metrics {
    /// What is counted of writes to a switch.
    pub fn writes_to(&self, switch: &str) -> WriteMetrics {
        let of = of(switch);
        WriteMetrics {
            durations: self.writes.get_or_create(&of).clone(),
            updates: self.updates.get_or_create(&of).clone(),
            failed: self.failed_writes.get_or_create(&of).clone(),
        }
    }

    /// So many differences were found on a switch.
    pub(crate) fn differed(&self, switch: &str, differences: usize) {
        let found = self.differences.get_or_create(&of(switch));
        found.inc_by(differences as u64);
    }

    /// A switch could not be looked at, or not be put right.
    pub(crate) fn failed_to_audit(&self, switch: &str) {
        self.failed_audits.get_or_create(&of(switch)).inc();
    }

    /// A change of a job's members came to its decision, or was called off.
    pub(crate) fn changed(&self, is_decided: bool) {
        let result = match is_decided {
            true => "decided",
            false => "called_off",
        };
        self.changes.get_or_create(&OfResult { result }).inc();
    }

    /// An epoch was installed in which so many members have no place any more.
    pub(crate) fn evicted(&self, by: EvictedBy, members: usize) {
        let by = match by {
            EvictedBy::Request => "request",
            EvictedBy::Policy => "policy",
        };
        let evictions = self.evictions.get_or_create(&By { by });
        evictions.inc_by(members as u64);
    }

    /// Counts operations of whose losses a switch tells.
    pub(crate) fn told_losses(&self, switch: &str) -> Counter {
        self.told_losses.get_or_create(&of(switch)).clone()
    }

    /// A job was created, or refused.
    pub(crate) fn created(&self, begun: Instant, is_there: bool) {
        let result = match is_there {
            true => "created",
            false => "refused",
        };
        let durations = self.creations.get_or_create(&OfResult { result });
        durations.observe(begun.elapsed().as_secs_f64());
    }

    /// Trees and routes have moved, and so many jobs with them.
    pub(crate) fn moved(&self, took: Duration, jobs: usize) {
        self.moves.observe(took.as_secs_f64());
        self.moved_jobs.inc_by(jobs as u64);
    }

    /// All of it, and how things stand, as OpenMetrics text; of one of several controllers also how that stands.
    pub(crate) fn text(&self, standing: Standing, group: Option<GroupStanding>) -> String {
        let mut registry = Registry::with_prefix(PREFIX);
        let seconds = Unit::Seconds;
        registry.register_with_unit(
            "write_duration",
            "Time from a WriteRequest to its answer",
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
            "WriteRequests of which something failed",
            self.failed_writes.clone(),
        );
        registry.register(
            "differences",
            "Entities that were not as they should be when a switch was looked at",
            self.differences.clone(),
        );
        registry.register(
            "failed_audits",
            "Times that a switch could not be looked at, or not be put right",
            self.failed_audits.clone(),
        );
        registry.register(
            "told_losses",
            "Lossy operations that a switch has told of",
            self.told_losses.clone(),
        );
        registry.register_with_unit(
            "job_creation_duration",
            "Time from the request for a job to its answer",
            seconds.clone(),
            self.creations.clone(),
        );
        registry.register_with_unit(
            "move_duration",
            "Time to move trees and routes after parts of the fabric failed, came back or were drained",
            seconds,
            self.moves.clone(),
        );
        registry.register("moved_jobs", "Jobs that moved", self.moved_jobs.clone());
        registry.register(
            "changes_of_members",
            "Changes of jobs' members that were decided, or called off",
            self.changes.clone(),
        );
        registry.register(
            "evictions",
            "Members whose place an installed epoch takes away, as somebody asked for it or the job's policy says so",
            self.evictions.clone(),
        );
        registry.register_collector(Box::new(standing));
        if let Some(group) = group {
            registry.register_collector(Box::new(group));
        }
        encoded(&registry)
    }
}

fn encoded(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)
        .expect("a string takes what is written");
    text
}

/// How things stand when they are asked for.
#[derive(Debug)]
pub(crate) struct Standing {
    pub jobs: usize,
    /// Jobs that would move if they had room.
    pub waiting_jobs: usize,
    /// Parts of the fabric that are down.
    pub lost: usize,
    /// Parts that are down or drained.
    pub out_of_use: usize,
    /// Epochs that are coming, or of which the one before is not off all switches yet.
    pub changes_under_way: usize,
    pub switches: Vec<SwitchStanding>,
    pub members: Vec<MembersStanding>,
}

/// How a job's members stand, in the epoch that it is in.
#[derive(Debug)]
pub(crate) struct MembersStanding {
    pub job: String,
    /// By the state's name how many.
    pub states: [(&'static str, usize); 4],
}

#[derive(Debug)]
pub(crate) struct SwitchStanding {
    pub switch: String,
    pub is_connected: bool,
    pub is_in_doubt: bool,
    pub digest_lists_dropped: u64,
    pub fills: Vec<Fill>,
}

impl Standing {
    /// One value for each switch.
    fn of_switches(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
        value: impl Fn(&SwitchStanding) -> u64,
    ) -> fmt::Result {
        let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for it in &self.switches {
            let value = i64::try_from(value(it)).unwrap_or(i64::MAX);
            to.encode_family(&[("switch", it.switch.as_str())])?
                .encode_gauge(&value)?;
        }
        Ok(())
    }

    /// One for each switch and thing that there is a limit of.
    fn of_fills(
        &self,
        to: &mut DescriptorEncoder<'_>,
        (name, help): (&str, &str),
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

impl Collector for Standing {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        let to = &mut to;
        for (name, help, value) in [
            ("jobs", "Jobs that there are", self.jobs),
            (
                "waiting_jobs",
                "Jobs that still use what is down or drained for want of room elsewhere",
                self.waiting_jobs,
            ),
            ("parts_down", "Parts of the fabric that are down", self.lost),
            (
                "parts_out_of_use",
                "Parts of the fabric that are down or drained",
                self.out_of_use,
            ),
            (
                "changes_under_way",
                "Changes of jobs' members that are not over",
                self.changes_under_way,
            ),
        ] {
            let mut to = to.encode_descriptor(name, help, None, MetricType::Gauge)?;
            to.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        let connected = (
            "switch_connected",
            "Whether the controller is the switch's primary",
        );
        self.of_switches(to, connected, |it| it.is_connected.into())?;
        let in_doubt = (
            "switch_in_doubt",
            "Whether the switch is to be looked at, because a write has not come to a known end",
        );
        self.of_switches(to, in_doubt, |it| it.is_in_doubt.into())?;
        let dropped = (
            "digest_lists_dropped",
            "Lists of lossy operations that came faster than they were taken, since the switch was last connected",
        );
        self.of_switches(to, dropped, |it| it.digest_lists_dropped)?;
        let used = (
            "used",
            "What jobs and fabric take of what a switch has a limit of",
        );
        self.of_fills(to, used, |fill| fill.used)?;
        let limit = ("limit", "That limit");
        self.of_fills(to, limit, |fill| fill.limit)?;
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
    use super::*;
    use crate::api::GetStandingResponse;

    #[test]
    fn what_was_counted_is_told_by_name() {
        let metrics = Metrics::default();
        let begun = Instant::now();
        metrics.writes_to("s1").written(begun, 7, true);
        metrics.writes_to("s1").written(begun, 1, false);
        metrics.differed("s2", 3);
        metrics.created(begun, true);
        metrics.moved(Duration::from_millis(30), 2);
        metrics.failed_to_audit("s2");
        metrics.changed(true);
        metrics.evicted(EvictedBy::Policy, 2);
        let states = [("free", 1), ("joined", 3), ("suspected", 2), ("left", 0)];
        let fill = Fill {
            of: "multicast groups",
            used: 5,
            limit: 4096,
        };
        let standing = Standing {
            jobs: 4,
            waiting_jobs: 0,
            lost: 1,
            out_of_use: 2,
            changes_under_way: 1,
            members: vec![MembersStanding {
                job: "train".into(),
                states,
            }],
            switches: vec![SwitchStanding {
                switch: "s1".into(),
                is_connected: true,
                is_in_doubt: false,
                digest_lists_dropped: 0,
                fills: vec![fill],
            }],
        };
        let text = metrics.text(standing, Some(GetStandingResponse::default().into()));
        for line in [
            r#"ultima_controller_written_updates_total{switch="s1"} 8"#,
            r#"ultima_controller_failed_writes_total{switch="s1"} 1"#,
            r#"ultima_controller_write_duration_seconds_count{switch="s1"} 2"#,
            r#"ultima_controller_differences_total{switch="s2"} 3"#,
            r#"ultima_controller_job_creation_duration_seconds_count{result="created"} 1"#,
            r#"ultima_controller_move_duration_seconds_bucket{le="0.05"} 1"#,
            "ultima_controller_moved_jobs_total 2",
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
