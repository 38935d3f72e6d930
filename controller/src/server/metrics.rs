//! The controller's gauges for Prometheus.

use ultima_planner::fabric::SwitchId;
use ultima_planner::job::{Rank, Refusal};
use ultima_planner::ledger::Fill;

use super::controller::Controller;
use super::registry::record::{Record, Stage};
use super::seats::Seat;
use crate::metrics::{Gauges, MemberGauges, RoleGauges, SwitchGauges};

/// All metrics as OpenMetrics text, with the role of one of several controllers.
pub fn metrics_text(controller: &Controller, role: Option<RoleGauges>) -> String {
    let (lost, out_of_use) = {
        let condition = controller.condition();
        (
            condition.down().down().len(),
            condition.health().down().len(),
        )
    };
    let fills = fills(controller).unwrap_or_else(|error| {
        // Not expected: the program was checked at the start.
        tracing::warn!(%error, "cannot compute how full the switches' tables are");
        Vec::new()
    });
    let (jobs, waiting_jobs, changes_under_way, members) = {
        let registry = controller.registry();
        let waiting = registry.iter().filter(|record| record.stays.is_some());
        let current = registry.iter().filter(|it| it.stage == Stage::Current);
        let members = current.map(members_of).collect();
        let jobs = registry.iter().count();
        let changing = registry.changing().len();
        (jobs, waiting.count(), changing, members)
    };
    let switches = controller.switches.iter().map(|switch| {
        let client = switch.client().ok();
        let here = fills.iter().filter(|(id, _)| *id == switch.id);
        SwitchGauges {
            switch: switch.name().to_owned(),
            is_connected: client.is_some(),
            is_dirty: switch.is_dirty(),
            digest_lists_dropped: client.map_or(0, |it| it.digest_lists_dropped()),
            fills: here.map(|(_, fill)| *fill).collect(),
        }
    });
    let gauges = Gauges {
        jobs,
        waiting_jobs,
        lost,
        out_of_use,
        changes_under_way,
        switches: switches.collect(),
        members,
    };
    controller.metrics.text(gauges, role)
}

/// The use of each switch's tables and arrays.
///
/// # Errors
/// The program lacks a table or a counter.
pub fn fills(controller: &Controller) -> Result<Vec<(SwitchId, Fill)>, Refusal> {
    let registry = controller.registry();
    let mut fills = Vec::new();
    for id in controller.fabric().switch_ids() {
        let here =
            (registry.ledger()).fills(controller.fabric(), controller.program().names(), id)?;
        fills.extend(here.into_iter().map(|fill| (id, fill)));
    }
    Ok(fills)
}

/// The number of a job's members in each state.
fn members_of(record: &Record) -> MemberGauges {
    let [mut free, mut joined, mut left] = [0; 3];
    for seat in record.seats.states() {
        match seat {
            Seat::Free | Seat::Vacated | Seat::Joining => free += 1,
            Seat::Joined => joined += 1,
            Seat::Left => left += 1,
        }
    }
    let is_joined = |rank: &&Rank| record.seats.state(**rank) == Some(Seat::Joined);
    let suspected = record.suspicion.since().keys().filter(is_joined).count();
    MemberGauges {
        job: record.job.name.clone(),
        states: [
            ("free", free),
            ("joined", joined - suspected),
            ("suspected", suspected),
            ("left", left),
        ],
    }
}
