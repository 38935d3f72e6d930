//! The placement of ranks on hosts and UDP ports.

use std::collections::{HashMap, HashSet};
use std::iter::Chain;
use std::ops::{Range, RangeInclusive};

use super::{Epoch, JobProblem, JobSpec, PlacementError};
use crate::fabric::{Fabric, HostId};
use crate::names::some_of;

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
    pub(super) fn check(&self) -> Result<(), JobProblem> {
        check_name(&self.name)?;
        // The highest RID belongs to replicas for other switches, so it cannot be a rank.
        if !(2..=usize::from(u16::MAX)).contains(&self.members.len()) {
            return Err(JobProblem::Members(self.members.len()));
        }
        Ok(())
    }
}

/// Checks a job's name.
pub(super) fn check_name(name: &str) -> Result<(), JobProblem> {
    match ultima_api::is_name(name) {
        true => Ok(()),
        false => Err(JobProblem::Name(name.to_owned())),
    }
}

/// Assigns each member of `spec` its host and a UDP port that no rank in `taken` (those of all
/// other jobs) has there. The first job on a host gets ports from the host's `udp_port` up.
///
/// # Errors
/// The first member that cannot be placed.
pub fn place(
    fabric: &Fabric,
    spec: &JobSpec,
    taken: &HashSet<Member>,
) -> Result<Vec<Member>, PlacementError> {
    place_in(fabric, (spec, Epoch(1)), taken)
}

/// The number of epochs before a job may reuse its UDP ports on a host. By then the sockets of its
/// old epochs, which still send repairs, are closed.
const EPOCHS_APART: u16 = 8;

/// Like [`place`], for another epoch of a job.
///
/// # Errors
/// As [`place`].
pub fn place_in(
    fabric: &Fabric,
    (spec, epoch): (&JobSpec, Epoch),
    taken: &HashSet<Member>,
) -> Result<Vec<Member>, PlacementError> {
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
            return Err(PlacementError::NoRoom {
                index,
                host: name.clone(),
                ranks: host.ranks,
            });
        }
        seated.ranks += 1;
        let member = (&mut seated.ports)
            .map(|udp_port| Member { host: id, udp_port })
            .find(|member| !taken.contains(member))
            .ok_or_else(|| PlacementError::NoPort {
                index,
                host: name.clone(),
                first: host.udp_port,
            })?;
        members.push(member);
    }
    Ok(members)
}

/// Finds the host at an index in a list of members.
///
/// # Errors
/// The fabric has no host of that name.
pub fn host_of(fabric: &Fabric, index: usize, name: &str) -> Result<HostId, PlacementError> {
    let id = fabric.host_named(name);
    id.ok_or_else(|| PlacementError::UnknownHost {
        index,
        host: name.to_owned(),
        known: some_of(fabric.hosts().iter().map(|host| &host.name)),
    })
}

/// The ranks of the job on a host so far.
struct Seated {
    ranks: u16,
    /// The UDP ports that were not tried yet.
    ports: Chain<RangeInclusive<u16>, Range<u16>>,
}
