//! The placement of ranks on hosts and UDP ports.

use std::collections::{HashMap, HashSet};
use std::iter::Chain;
use std::ops::{Range, RangeInclusive};

use ultima_link::units::counted;

use super::{Epoch, JobSpec, Refusal, RefusalKind};
use crate::fabric::{Fabric, HostId};
use crate::names::some_of;
use crate::yaml;

/// A rank's host and UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The host.
    pub host: HostId,
    /// The UDP port on the host.
    pub udp_port: u16,
}

impl JobSpec {
    /// Checks everything that does not depend on the fabric.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        check_name(&self.name)?;
        // The highest RID belongs to replicas for other switches, so it cannot be a rank.
        match self.members.len() {
            2..=MOST_RANKS => Ok(()),
            0 => Err(Refusal::invalid(
                "members",
                "no members; expected their hosts in rank order, such as [h1, h2]",
            )),
            members => {
                let message = format!("{members} members; a job has 2 to {MOST_RANKS}");
                Err(Refusal::invalid("members", message))
            }
        }
    }
}

/// Checks a job's name.
pub(super) fn check_name(name: &str) -> Result<(), Refusal> {
    yaml::check_name(name).map_err(|problem| Refusal::invalid("name", problem))
}

/// The most members of a job.
const MOST_RANKS: usize = u16::MAX as usize;

/// The number of epochs before a job may reuse its UDP ports on a host. By then the sockets of its
/// old epochs, which still send repairs, are closed.
const EPOCHS_APART: u16 = 8;

/// Assigns each member of an epoch its host and a UDP port that no rank in `taken` (those of all
/// other jobs and epochs) has there. The first job on a host gets ports from the host's `udp_port`
/// up.
///
/// # Errors
/// The first member that cannot be placed.
pub fn place(
    fabric: &Fabric,
    spec: &JobSpec,
    epoch: Epoch,
    taken: &HashSet<Member>,
) -> Result<Vec<Member>, Refusal> {
    spec.check()?;
    let turn = epoch.0.saturating_sub(1) % EPOCHS_APART;
    let mut seated: HashMap<HostId, Seated> = HashMap::new();

    let mut members = Vec::with_capacity(spec.members.len());
    for (index, name) in spec.members.iter().enumerate() {
        let id = host_of(fabric, index, name)?;
        let host = fabric.host(id);
        let first = host.udp_port;
        let from = first.saturating_add(turn.saturating_mul(host.ranks));
        let seated = seated.entry(id).or_insert(Seated {
            ranks: 0,
            ports: (from..=u16::MAX).chain(first..from),
        });
        if seated.ranks == host.ranks {
            let room = counted(host.ranks, "rank");
            return Err(of_member(
                RefusalKind::Invalid,
                index,
                format!(
                    "host {name} has room for {room} of a job (`ranks` in the fabric's file); list another host"
                ),
            ));
        }
        seated.ranks += 1;
        let member = (&mut seated.ports)
            .map(|udp_port| Member { host: id, udp_port })
            .find(|member| !taken.contains(member))
            .ok_or_else(|| {
                let problem = format!(
                    "host {name} has no free UDP port from {first} up; delete a job, or lower the host's udp_port in the fabric's file"
                );
                of_member(RefusalKind::NoRoom, index, problem)
            })?;
        members.push(member);
    }
    Ok(members)
}

/// Finds the host at an index in a list of members.
///
/// # Errors
/// The fabric has no host of that name.
pub fn host_of(fabric: &Fabric, index: usize, name: &str) -> Result<HostId, Refusal> {
    fabric.host_named(name).ok_or_else(|| {
        let known = some_of(fabric.hosts().iter().map(|host| &host.name));
        let problem = format!("unknown host {name:?} (the fabric has {known})");
        of_member(RefusalKind::UnknownHost, index, problem)
    })
}

/// A problem with the member at an index in the list.
fn of_member(kind: RefusalKind, index: usize, problem: String) -> Refusal {
    let field = format!("members[{index}]");
    let message = format!("{field}: {problem}");
    Refusal::of_field(kind, field, message)
}

/// The ranks of the job on a host so far.
struct Seated {
    ranks: u16,
    /// The UDP ports that were not tried yet.
    ports: Chain<RangeInclusive<u16>, Range<u16>>,
}
