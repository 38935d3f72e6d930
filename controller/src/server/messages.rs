//! Translation between the controller's types and the control API's messages.

use std::time::{SystemTime, UNIX_EPOCH};

use ultima_api::MacAddr;
use ultima_api::v1 as api;
use ultima_p4runtime::names::Names;
use ultima_planner::check::Check;
use ultima_planner::fabric::{Element, Fabric, Health, HostId, TrunkId};
use ultima_planner::job::{
    DEFAULT_SEALED, Gather, Job, JobPolicy, JobSpec, Member, PolicyChange, Rank, Refusal,
};
use ultima_planner::reconcile::{Described, Diff, Difference};
use ultima_planner::tree::JobTree;
use ultima_wire::Key;
use ultima_wire::frame::group_mac;

use super::condition::Condition;
use super::controller::{Controller, JobState, SwitchState};
use super::error::JobRequestError;
use super::jobs::JobsRefused;
use super::registry::record::Record;
use super::registry::{Registry, Stranded};
use super::seats::Seat;
use crate::store::MemberRecord;

/// The answer to the member that takes `rank`.
pub fn seat(controller: &Controller, state: &JobState, rank: Rank) -> api::JoinResponse {
    seat_of(controller, &state.job, rank, any_seat(controller, state))
}

/// The same, from the part that all members of the job share.
pub fn seat_of(
    controller: &Controller,
    job: &Job,
    rank: Rank,
    any: api::JoinResponse,
) -> api::JoinResponse {
    let host = job.members[usize::from(rank.0)].host;
    api::JoinResponse {
        rank: rank.0.into(),
        limits: Some(api::Limits {
            pace: controller.rank_rate().unwrap_or(0),
            ..limits(controller.fabric(), host)
        }),
        ..any
    }
}

/// The part of the answer that all members of a job share.
pub fn any_seat(controller: &Controller, state: &JobState) -> api::JoinResponse {
    let job = &state.job;
    let group_mac = job.group().map(|_| MacAddr(group_mac(job.group_address())));
    api::JoinResponse {
        rank: 0,
        limits: None,
        job_id: job.id.0.into(),
        epoch: job.epoch.0.into(),
        seed: job.seed,
        gather: api::Gather::from(job.gather()).into(),
        group_address: group_address(job),
        group_mac: group_mac.map_or_else(String::new, |mac| mac.to_string()),
        members: members(controller.fabric(), state),
        reorder: controller.reorder(job),
        key: job.key.map_or_else(Vec::new, |Key(key)| key.to_vec()),
        token: 0,
    }
}

/// The limits for a rank of this host. Slots are equally long on all ranks, in all rows and columns
/// of a grid, and during a reroute, so the MTU is that of the narrowest link of the fabric.
fn limits(fabric: &Fabric, host: HostId) -> api::Limits {
    let wire = fabric.wire_into(fabric.host(host).attached);
    api::Limits {
        rate: wire.and_then(|wire| wire.rate).unwrap_or(0),
        mtu: fabric.least_mtu().into(),
        pace: 0,
    }
}

/// A job's members, in rank order.
fn members(fabric: &Fabric, state: &JobState) -> Vec<api::Member> {
    let JobState {
        job,
        seats,
        cut_off,
        suspected,
        gave_up,
        port_problems,
        ..
    } = state;
    let member = |((rank, member), seat): ((Rank, &Member), &Seat)| {
        let host = fabric.host(member.host);
        let is_suspected = *seat == Seat::Joined && suspected.binary_search(&rank).is_ok();
        let member_state = match is_suspected {
            true => api::MemberState::Suspected,
            false => api::MemberState::from(*seat),
        };
        api::Member {
            rank: rank.0.into(),
            host: host.name.clone(),
            mac: host.mac.to_string(),
            ip: host.ip.to_string(),
            udp_port: member.udp_port.into(),
            switch: fabric.switch(host.attached.switch).name.clone(),
            switch_port: host.attached.port.0.into(),
            state: member_state.into(),
            source_index: job.sources[usize::from(rank.0)].0.into(),
            cut_off: cut_off.binary_search(&rank).is_ok()
                || (port_problems.iter()).any(|it| it.rank == rank && !it.is_drained),
            switch_port_name: fabric.port_name(host.attached),
            gave_up: gave_up.contains(&rank),
        }
    };
    job.ranks().zip(seats).map(member).collect()
}

/// A job as a message.
pub(super) fn job_of(fabric: &Fabric, state: &JobState) -> api::Job {
    let JobState { job, switches, .. } = state;
    api::Job {
        name: job.name.clone(),
        id: job.id.0.into(),
        epoch: job.epoch.0.into(),
        seed: job.seed,
        gather: api::Gather::from(job.gather()).into(),
        counter_index: job.counter.0.into(),
        group_id: job.group().map_or(0, |group| group.0.into()),
        group_address: group_address(job),
        members: members(fabric, state),
        switches: switches
            .iter()
            .map(|id| fabric.switch(*id).name.clone())
            .collect(),
        loss_threshold: job.policy.loss_threshold,
        weight: job.policy.weight.get().into(),
        remaining: state.stays.clone().unwrap_or_default(),
        evict_after_s: job.policy.eviction.seconds(),
        sealed: job.key.is_some(),
        created_at: job.created_at,
        uid: job.uid,
        first_operation: state.first_operation,
        unchanged: state.unchanged.clone().unwrap_or_default(),
        next: state.next.as_ref().map(|next| api::NextEpoch {
            epoch: next.job.epoch.0.into(),
            id: next.job.id.0.into(),
            members: members(fabric, next),
        }),
        tree: (job.tree().into_iter().flat_map(JobTree::trunks))
            .map(|trunk| link_of(fabric, trunk))
            .collect(),
        unfit: String::new(),
        ready: state.status.as_ref().is_some_and(|it| it.is_ready),
        ready_switches: (state.status.as_ref())
            .map(|it| (switches.len() - it.conditions.len()) as u32),
        conditions: conditions(fabric, state),
        shares: (job.shares.iter())
            .map(|(at, index)| api::Share {
                switch: fabric.switch(at.switch).name.clone(),
                port: at.port.0.into(),
                index: index.0.into(),
                port_name: fabric.port_name(*at),
            })
            .collect(),
    }
}

/// Switches that do not have all entries of a job, hosts that the others do not reach or that are drained, and a failed reroute.
pub(super) fn conditions(fabric: &Fabric, state: &JobState) -> Vec<api::JobCondition> {
    let condition = |kind: api::JobConditionKind, element: &str, reason, since: SystemTime| {
        let since = since.duration_since(UNIX_EPOCH);
        api::JobCondition {
            kind: kind.into(),
            element: element.to_owned(),
            reason,
            since: since.map_or(0, |since| since.as_secs()),
        }
    };
    let switches = state.status.iter().flat_map(|it| &it.conditions);
    let switches = switches.map(|it| {
        let kind = match it.is_degraded {
            true => api::JobConditionKind::Degraded,
            false => api::JobConditionKind::Pending,
        };
        let switch = &fabric.switch(it.switch).name;
        condition(kind, switch, it.reason.clone(), it.since)
    });
    let since = state.degraded_since.unwrap_or(UNIX_EPOCH);
    let degraded = |element, reason| {
        let kind = api::JobConditionKind::Degraded;
        condition(kind, element, reason, since)
    };
    let cut_off = state.cut_off.iter().map(|rank| {
        let host = fabric.host(state.job.members[usize::from(rank.0)].host);
        let reason = format!("rank {rank} has no path to all others");
        degraded(&host.name, reason)
    });
    let ports = state.port_problems.iter().map(|problem| {
        let rank = problem.rank;
        let host = fabric.host(state.job.members[usize::from(rank.0)].host);
        let name = fabric.name_of(problem.element);
        let reason = match (problem.is_drained, problem.element) {
            (false, _) => format!("rank {rank} receives nothing: port {name} is down"),
            (true, Element::Port(_)) => format!("rank {rank} uses port {name}, which is drained"),
            (true, _) => format!("rank {rank} uses switch {name}, which is drained"),
        };
        let kind = match problem.is_drained {
            true => api::JobConditionKind::Drained,
            false => api::JobConditionKind::Degraded,
        };
        condition(kind, &host.name, reason, problem.since)
    });
    let stays = state.stays.iter();
    let stays = stays.map(|problem| degraded("fabric", format!("not rerouted: {problem}")));
    let hosts = cut_off.chain(ports);
    switches.chain(hosts).chain(stays).collect()
}

/// All jobs as messages, by id: those of the fabric, as `state_of` returns them, and those that do not
/// fit it.
pub(super) fn all_jobs(
    fabric: &Fabric,
    registry: &Registry,
    state_of: impl Fn(&Record) -> JobState,
) -> Vec<api::Job> {
    let installed = registry.iter().map(state_of);
    let installed = installed.map(|state| job_of(fabric, &state));
    let stranded = registry.stranded().values().filter_map(stranded_job);
    let mut jobs: Vec<api::Job> = installed.chain(stranded).collect();
    jobs.sort_by_key(|job| job.id);
    jobs
}

/// One job as a message, as `state_of` returns it.
///
/// # Errors
/// No job has that name.
pub(super) fn job_named(
    fabric: &Fabric,
    registry: &Registry,
    name: &str,
    state_of: impl Fn(&Record) -> JobState,
) -> Result<api::Job, JobRequestError> {
    let stranded = registry.stranded().get(name).and_then(stranded_job);
    match stranded {
        Some(job) => Ok(job),
        None => Ok(job_of(fabric, &state_of(registry.named(name)?))),
    }
}

/// A stored job that does not fit the fabric, as a message.
fn stranded_job(stranded: &Stranded) -> Option<api::Job> {
    let job = stranded.records.first()?;
    let member = |(rank, member): (usize, &MemberRecord)| api::Member {
        rank: rank as u32,
        host: member.host.clone(),
        udp_port: member.udp_port.into(),
        state: api::MemberState::from(Seat::from(member.seat)).into(),
        ..api::Member::default()
    };
    Some(api::Job {
        name: job.name.clone(),
        id: job.id.into(),
        epoch: job.epoch.into(),
        seed: job.seed,
        gather: match job.multicast {
            Some(_) => api::Gather::Multicast,
            None => api::Gather::Unicast,
        }
        .into(),
        members: job.members.iter().enumerate().map(member).collect(),
        loss_threshold: job.loss_threshold,
        weight: job.weight.into(),
        evict_after_s: job.evict_after_s,
        sealed: job.key.is_some(),
        created_at: job.created_at,
        uid: job.request,
        unfit: stranded.reason.clone(),
        ..api::Job::default()
    })
}

/// The specifications of several jobs.
pub(super) fn specs(requests: Vec<api::CreateJobRequest>) -> Result<Vec<JobSpec>, JobsRefused> {
    let requests = requests.into_iter().enumerate();
    let specs = requests.map(|(at, request)| {
        spec(request).map_err(|error| JobsRefused {
            at: Some(at),
            error: Box::new(error),
        })
    });
    specs.collect()
}

/// A job's specification.
pub(super) fn spec(request: api::CreateJobRequest) -> Result<JobSpec, JobRequestError> {
    let api::CreateJobRequest {
        name,
        members,
        gather,
        seed,
        loss_threshold,
        weight,
        evict_after_s,
        sealed,
        idempotency_key,
        wait_ms: _,
    } = request;
    let refused = |refusal: Refusal| JobRequestError::Refused {
        name: name.clone(),
        refusal: Box::new(refusal),
    };
    let gather = match api::Gather::try_from(gather) {
        Ok(api::Gather::Unspecified | api::Gather::Multicast) => Gather::Multicast,
        Ok(api::Gather::Unicast) => Gather::Unicast,
        Err(_) => {
            let problem =
                format!("unknown gather mode {gather}; use GATHER_MULTICAST or GATHER_UNICAST");
            return Err(refused(Refusal::invalid("gather", problem)));
        }
    };
    let policy = JobPolicy::default().with(PolicyChange {
        loss_threshold,
        weight,
        evict_after_s: Some(evict_after_s),
    });
    let policy = policy.map_err(refused)?;
    Ok(JobSpec {
        members,
        gather,
        seed,
        policy,
        sealed: sealed.unwrap_or(DEFAULT_SEALED),
        created_at: (SystemTime::now().duration_since(UNIX_EPOCH))
            .map_or(0, |since| since.as_secs()),
        request: idempotency_key,
        uid: 0,
        client: String::new(),
        name,
    })
}

/// The drift, in the program's names.
pub(super) fn differences(diff: &Diff, names: &Names) -> Vec<api::Difference> {
    let difference = |it: &Difference| {
        let Described {
            entity,
            held,
            wanted,
        } = it.describe(names);
        api::Difference {
            entity,
            held,
            wanted,
        }
    };
    diff.differences().iter().map(difference).collect()
}

/// A trunk's two ends, in the order of its name.
pub(super) fn link_of(fabric: &Fabric, trunk: TrunkId) -> api::TreeLink {
    let [from, to] = fabric.sorted_ends(trunk);
    api::TreeLink {
        from: fabric.switch(from.switch).name.clone(),
        from_port: from.port.0.into(),
        to: fabric.switch(to.switch).name.clone(),
        to_port: to.port.0.into(),
        from_name: fabric.port_name(from),
        to_name: fabric.port_name(to),
    }
}

/// A switch and its state, as a message.
pub(super) fn switch_of(fabric: &Fabric, state: SwitchState) -> api::Switch {
    let SwitchState {
        id,
        problem,
        is_unknown,
        health,
        dirty,
        jobs,
    } = state;
    let elements = health.into_iter().map(|it| api::ElementState {
        element: it.name,
        state: it.state,
    });
    let elements: Vec<api::ElementState> = elements.collect();
    let switch = fabric.switch(id);
    api::Switch {
        name: switch.name.clone(),
        target: switch.target.name.to_owned(),
        grpc: switch.grpc.clone(),
        device_id: switch.device_id,
        connected: problem.is_none(),
        problem: problem.unwrap_or_default(),
        jobs,
        health: states_of(&elements, &switch.name),
        dirty,
        unknown: is_unknown,
        elements,
    }
}

/// The states of a switch's elements, on one line.
fn states_of(elements: &[api::ElementState], switch: &str) -> String {
    let states = elements.iter().map(|it| match it.element == switch {
        true => it.state.clone(),
        false => format!("{} {}", it.element, it.state),
    });
    states.collect::<Vec<_>>().join(", ")
}

/// The group's address; empty if the job has no group.
fn group_address(job: &Job) -> String {
    job.group()
        .map_or_else(String::new, |_| job.group_address().to_string())
}

impl From<Seat> for api::MemberState {
    fn from(seat: Seat) -> Self {
        match seat {
            Seat::Free | Seat::Vacated => api::MemberState::Free,
            Seat::Joining | Seat::Joined => api::MemberState::Joined,
            Seat::Left => api::MemberState::Left,
        }
    }
}

/// The fabric's hosts and links, as a message.
pub fn fabric_of(fabric: &Fabric, condition: &Condition) -> api::GetFabricResponse {
    let (health, drained) = (condition.health(), condition.drained());
    let hosts = fabric.hosts().iter().map(|host| api::FabricHost {
        name: host.name.clone(),
        mac: host.mac.to_string(),
        ip: host.ip.to_string(),
        ranks: host.ranks.into(),
        switch: fabric.switch(host.attached.switch).name.clone(),
        port: host.attached.port.0.into(),
        port_name: fabric.port_name(host.attached),
        port_down: condition.host_down_since(host.attached).is_some(),
    });
    let links = (0..fabric.trunks().len()).map(TrunkId).map(|trunk| {
        let ends = fabric.trunk(trunk).ends;
        let is_up = |health: &Health| {
            let carries = ends.iter().all(|end| health.carries(end.switch));
            carries && health.trunk_is_up(fabric, trunk)
        };
        api::FabricLink {
            ends: Some(link_of(fabric, trunk)),
            up: is_up(&health),
            drained: !is_up(&drained),
        }
    });
    api::GetFabricResponse {
        hosts: hosts.collect(),
        links: links.collect(),
    }
}

/// The result of a check, as a message.
pub(super) fn check_of(check: Check) -> api::CheckJobResponse {
    let findings = check.findings.into_iter().map(|finding| {
        let diagnosis = finding.diagnosis;
        api::Finding {
            hop: diagnosis.hop.into(),
            port_name: diagnosis.place.port_name().unwrap_or_default(),
            switch: diagnosis.place.switch.unwrap_or_default(),
            port: diagnosis.place.port.map_or(0, |port| port.number.into()),
            what: diagnosis.what,
            advice: diagnosis.advice,
            paths: finding.paths.into_iter().map(Into::into).collect(),
        }
    });
    let paths = check.paths.into_iter().map(|tested| api::TestedPath {
        path: Some(tested.path.into()),
        sent: tested.sent,
        short_came: tested.short_received,
        full_came: tested.full_received,
        hops: tested.hops,
    });
    api::CheckJobResponse {
        findings: findings.collect(),
        paths: paths.collect(),
        attending: check.members.iter().map(|rank| rank.0.into()).collect(),
    }
}
