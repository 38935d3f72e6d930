//! Jobs.

use serde::Serialize;
use ultima_controller::api;

/// A job.
#[derive(Serialize)]
pub struct Job<'a> {
    pub name: &'a str,
    pub id: u32,
    epoch: u32,
    seed: u64,
    gather: &'static str,
    group_id: u32,
    group_address: &'a str,
    counter_index: u32,
    loss_threshold: u32,
    weight: u32,
    pub switches: &'a [String],
    pub tree: Vec<String>,
    stays: &'a str,
    evict_after_s: u32,
    sealed: bool,
    first_operation: u32,
    unchanged: &'a str,
    /// What it is changing to.
    next: Option<NextEpoch<'a>>,
    members: Vec<Member<'a>>,
}

#[derive(Serialize)]
struct NextEpoch<'a> {
    epoch: u32,
    id: u32,
    members: Vec<Member<'a>>,
}

#[derive(Serialize)]
struct Member<'a> {
    rank: u32,
    host: &'a str,
    mac: &'a str,
    ip: &'a str,
    udp_port: u32,
    switch: &'a str,
    switch_port: u32,
    switch_port_name: &'a str,
    state: &'static str,
    cut_off: bool,
}

impl<'a> From<&'a api::Job> for Job<'a> {
    fn from(job: &'a api::Job) -> Self {
        Self {
            name: &job.name,
            id: job.id,
            epoch: job.epoch,
            seed: job.seed,
            gather: match job.gather() {
                api::Gather::Unicast => "unicast",
                api::Gather::Multicast | api::Gather::Unspecified => "multicast",
            },
            group_id: job.group_id,
            group_address: &job.group_address,
            counter_index: job.counter_index,
            loss_threshold: job.loss_threshold,
            weight: job.weight,
            switches: &job.switches,
            tree: job.tree.iter().map(link_name).collect(),
            stays: &job.stays,
            evict_after_s: job.evict_after_s,
            sealed: job.sealed,
            first_operation: job.first_operation,
            unchanged: &job.unchanged,
            next: job.next.as_ref().map(|next| NextEpoch {
                epoch: next.epoch,
                id: next.id,
                members: next.members.iter().map(Into::into).collect(),
            }),
            members: job.members.iter().map(Into::into).collect(),
        }
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
            cut_off: member.cut_off,
        }
    }
}

/// A link by both ends, as `ultima fabric drain` takes it.
fn link_name(link: &api::TreeLink) -> String {
    format!("{}-{}", link.from_name, link.to_name)
}

/// How a member's rank stands.
pub fn state(member: &api::Member) -> &'static str {
    match member.state() {
        api::MemberState::Free => "free",
        api::MemberState::Joined => "joined",
        api::MemberState::Left => "left",
        api::MemberState::Suspected => "suspected",
        api::MemberState::Unspecified => "unknown",
    }
}

/// A job that was deleted.
#[derive(Serialize)]
pub struct Deleted {
    /// Its name.
    pub name: String,
    /// Switches that lose what they have of it only when they are back.
    pub pending_switches: Vec<String>,
}

impl Deleted {
    /// A line for it, and one for what is left.
    pub fn text(&self) -> String {
        let mut text = format!("deleted {}\n", self.name);
        if !self.pending_switches.is_empty() {
            let switches = self.pending_switches.join(", ");
            text += &format!("still on {switches}, until they are back\n");
        }
        text
    }
}
