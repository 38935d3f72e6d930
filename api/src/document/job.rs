//! Jobs and their members.

use crate::v1 as api;
use serde::Serialize;

/// A job: the fields of its file, and its status, which a file may have, too, and which is ignored there.
#[derive(Serialize)]
pub struct Job<'a> {
    pub name: &'a str,
    /// The hosts in rank order; of the next epoch if one is being installed.
    pub members: Vec<&'a str>,
    pub gather: &'static str,
    pub seed: u64,
    pub loss_threshold: u32,
    pub weight: u32,
    pub evict_after_s: u32,
    pub sealed: bool,
    pub status: JobStatus<'a>,
}

/// The part of a job that only the controller sets.
#[derive(Serialize)]
pub struct JobStatus<'a> {
    pub id: u32,
    pub epoch: u32,
    pub group_id: u32,
    pub group_address: &'a str,
    pub counter_index: u32,
    pub switches: &'a [String],
    /// True once all switches have had the job.
    pub ready: bool,
    /// The switches that have all of it; null on a standby.
    pub ready_switches: Option<u32>,
    /// Why the others do not.
    pub conditions: Vec<Condition<'a>>,
    pub tree: Vec<String>,
    /// Why the stored job is on no switch; else empty.
    pub unfit: &'a str,
    /// Why the job still uses elements that are down or drained; else empty.
    pub reroute_problem: &'a str,
    /// Seconds of Unix time.
    pub created_at: u64,
    /// Identifies the job among all jobs of its name.
    pub uid: String,
    pub first_operation: u32,
    /// Why the last change of members was cancelled, or why a suspected member stays; else empty.
    pub change_problem: &'a str,
    /// The epoch that is being installed.
    pub next: Option<NextEpoch<'a>>,
    pub members: Vec<Member<'a>>,
}

/// A uid as text, because JSON's numbers have 53 bits; empty for none.
pub fn uid(number: u64) -> String {
    match number {
        0 => String::new(),
        number => format!("{number:016x}"),
    }
}

/// Why a switch does not have all of a job.
#[derive(Serialize)]
pub struct Condition<'a> {
    pub kind: &'static str,
    pub element: &'a str,
    pub reason: &'a str,
    /// Seconds of Unix time.
    pub since: u64,
}

#[derive(Serialize)]
pub struct NextEpoch<'a> {
    pub epoch: u32,
    pub id: u32,
    pub members: Vec<Member<'a>>,
}

#[derive(Serialize)]
pub struct Member<'a> {
    pub rank: u32,
    pub host: &'a str,
    pub mac: &'a str,
    pub ip: &'a str,
    pub udp_port: u32,
    pub switch: &'a str,
    pub switch_port: u32,
    pub switch_port_name: &'a str,
    pub state: &'static str,
    pub unreachable: bool,
}

impl<'a> From<&'a api::Job> for Job<'a> {
    fn from(job: &'a api::Job) -> Self {
        let desired = job.next.as_ref().map_or(&job.members, |next| &next.members);
        Self {
            name: &job.name,
            members: desired.iter().map(|member| &*member.host).collect(),
            gather: match job.gather() {
                api::Gather::Unicast => "unicast",
                api::Gather::Multicast | api::Gather::Unspecified => "multicast",
            },
            seed: job.seed,
            loss_threshold: job.loss_threshold,
            weight: job.weight,
            evict_after_s: job.evict_after_s,
            sealed: job.sealed,
            status: job.into(),
        }
    }
}

impl<'a> From<&'a api::Job> for JobStatus<'a> {
    fn from(job: &'a api::Job) -> Self {
        Self {
            id: job.id,
            epoch: job.epoch,
            group_id: job.group_id,
            group_address: &job.group_address,
            counter_index: job.counter_index,
            switches: &job.switches,
            ready: job.ready,
            ready_switches: job.ready_switches,
            conditions: job.conditions.iter().map(Into::into).collect(),
            tree: job.tree.iter().map(link_name).collect(),
            unfit: &job.unfit,
            reroute_problem: &job.remaining,
            created_at: job.created_at,
            uid: uid(job.uid),
            first_operation: job.first_operation,
            change_problem: &job.unchanged,
            next: job.next.as_ref().map(|next| NextEpoch {
                epoch: next.epoch,
                id: next.id,
                members: next.members.iter().map(Into::into).collect(),
            }),
            members: job.members.iter().map(Into::into).collect(),
        }
    }
}

impl<'a> From<&'a api::JobCondition> for Condition<'a> {
    fn from(condition: &'a api::JobCondition) -> Self {
        Self {
            kind: kind(condition),
            element: &condition.element,
            reason: &condition.reason,
            since: condition.since,
        }
    }
}

/// The kind of a condition.
pub fn kind(condition: &api::JobCondition) -> &'static str {
    match condition.kind() {
        api::JobConditionKind::Pending => "pending",
        api::JobConditionKind::Degraded => "degraded",
        api::JobConditionKind::Drained => "drained",
        api::JobConditionKind::Unspecified => "unknown",
    }
}

impl<'a> From<&'a api::Member> for Member<'a> {
    fn from(member: &'a api::Member) -> Self {
        Self {
            rank: member.rank,
            host: &member.host,
            mac: &member.mac,
            ip: &member.ip,
            udp_port: member.udp_port,
            switch: &member.switch,
            switch_port: member.switch_port,
            switch_port_name: &member.switch_port_name,
            state: state(member),
            unreachable: member.cut_off,
        }
    }
}

/// A link's name, as `ultima fabric drain` accepts it.
pub(super) fn link_name(link: &api::TreeLink) -> String {
    format!("{}-{}", link.from_name, link.to_name)
}

/// A job's state in one word: the first of these that holds.
pub fn status(job: &api::Job) -> &'static str {
    let any = |state| job.members.iter().any(|member| member.state() == state);
    let all = |state| job.members.iter().all(|member| member.state() == state);
    let has = |kind| job.conditions.iter().any(|it| it.kind() == kind);
    if !job.unfit.is_empty() {
        "Unfit"
    } else if has(api::JobConditionKind::Degraded) {
        "Degraded"
    } else if has(api::JobConditionKind::Pending) {
        "Pending"
    } else if any(api::MemberState::Suspected) {
        "Suspected"
    } else if job.next.is_some() {
        "Changing"
    } else if all(api::MemberState::Free) {
        "Idle"
    } else if any(api::MemberState::Free) {
        "Joining"
    } else if all(api::MemberState::Left) {
        "Ended"
    } else if any(api::MemberState::Left) {
        "Leaving"
    } else {
        "Running"
    }
}

/// The number of a job's switches that have all of it, of how many.
pub fn ready(job: &api::Job) -> String {
    let ready = job.ready_switches;
    let ready = ready.map_or_else(|| "-".to_owned(), |ready| ready.to_string());
    format!("{ready}/{}", job.switches.len())
}

/// The state of a member.
pub fn state(member: &api::Member) -> &'static str {
    match member.state() {
        api::MemberState::Free => "free",
        api::MemberState::Joined => "joined",
        api::MemberState::Left => "left",
        api::MemberState::Suspected => "suspected",
        api::MemberState::Unspecified => "unknown",
    }
}

/// A deleted job.
#[derive(Serialize)]
pub struct Deleted {
    /// Its name.
    pub name: String,
    /// Disconnected switches, from which the controller removes the job when they are back.
    pub pending_switches: Vec<String>,
}

#[cfg(test)]
mod tests {
    use crate::v1::{JobConditionKind, MemberState};
    use serde_json::json;

    use super::*;

    fn job(members: &[MemberState], conditions: &[JobConditionKind]) -> api::Job {
        let member = |state: &MemberState| api::Member {
            state: (*state).into(),
            ..api::Member::default()
        };
        let condition = |kind: &JobConditionKind| api::JobCondition {
            kind: (*kind).into(),
            element: "s1".into(),
            reason: "being written".into(),
            since: 7,
        };
        api::Job {
            members: members.iter().map(member).collect(),
            conditions: conditions.iter().map(condition).collect(),
            ..api::Job::default()
        }
    }

    #[test]
    fn conditions_have_a_kind_an_element_a_reason_and_a_time() {
        for (kind, name) in [
            (JobConditionKind::Pending, "pending"),
            (JobConditionKind::Degraded, "degraded"),
            (JobConditionKind::Drained, "drained"),
        ] {
            let job = job(&[], &[kind]);
            let shown = serde_json::to_value(Job::from(&job)).unwrap();
            let expected = json!([
                { "kind": name, "element": "s1", "reason": "being written", "since": 7 }
            ]);
            assert_eq!(shown["status"]["conditions"], expected);
        }
    }

    #[test]
    fn each_state_of_a_job_has_a_word() {
        use JobConditionKind::{Degraded, Pending};
        use MemberState::{Free, Joined, Left, Suspected};
        let unfit = api::Job {
            unfit: "no host h3".into(),
            ..job(&[Free], &[Degraded])
        };
        let changing = api::Job {
            next: Some(api::NextEpoch::default()),
            ..job(&[Joined, Left], &[])
        };
        for (job, word) in [
            (unfit, "Unfit"),
            (job(&[Suspected], &[Pending, Degraded]), "Degraded"),
            (job(&[Suspected], &[Pending]), "Pending"),
            (job(&[Suspected, Free], &[]), "Suspected"),
            (changing, "Changing"),
            (job(&[Free, Free], &[]), "Idle"),
            (job(&[Free, Joined], &[]), "Joining"),
            (job(&[Left, Left], &[]), "Ended"),
            (job(&[Left, Joined], &[]), "Leaving"),
            (job(&[Joined, Joined], &[]), "Running"),
        ] {
            assert_eq!(status(&job), word, "{job:?}");
        }
    }
}
