//! Which host and UDP port each rank gets.

use std::collections::{HashMap, HashSet};
use std::iter::Chain;
use std::ops::{Range, RangeInclusive};

use super::{Epoch, JobProblem, JobSpec, PlacementError};
use crate::fabric::{Fabric, HostId};
use crate::names::some_of;
use crate::yaml;

/// A rank's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Where it sits.
    pub host: HostId,
    /// Where it listens there.
    pub udp_port: u16,
}

impl JobSpec {
    /// Checks what can be checked without the fabric.
    pub(super) fn check(&self) -> Result<(), JobProblem> {
        check_name(&self.name)?;
        // The highest RID is that of copies to other switches and cannot be a rank.
        if !(2..=usize::from(u16::MAX)).contains(&self.members.len()) {
            return Err(JobProblem::Members(self.members.len()));
        }
        Ok(())
    }
}

/// Checks that a job can have that name.
pub(super) fn check_name(name: &str) -> Result<(), JobProblem> {
    match yaml::is_name(name) {
        true => Ok(()),
        false => Err(JobProblem::Name(name.to_owned())),
    }
}

/// Gives each member of `spec` its host and a UDP port that no rank in `taken` (of all jobs that
/// there are) has there. The first job on a host gets ports from the host's `udp_port` up.
///
/// # Errors
/// The first member that has no place.
pub fn place(
    fabric: &Fabric,
    spec: &JobSpec,
    taken: &HashSet<Member>,
) -> Result<Vec<Member>, PlacementError> {
    place_in(fabric, (spec, Epoch(1)), taken)
}

/// Epochs that go by before a host's UDP ports are given to the same job again: until then sockets of its old ones, which still send what
/// others wait for, are closed.
const EPOCHS_APART: u16 = 8;

/// The same for another epoch of a job.
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

/// The host that stands at this place in a list of members.
///
/// # Errors
/// The fabric has none of that name.
pub fn host_of(fabric: &Fabric, index: usize, name: &str) -> Result<HostId, PlacementError> {
    let id = fabric.host_named(name);
    id.ok_or_else(|| PlacementError::UnknownHost {
        index,
        host: name.to_owned(),
        known: some_of(fabric.hosts().iter().map(|host| &host.name)),
    })
}

/// What a host has of the job so far.
struct Seated {
    ranks: u16,
    /// The UDP ports that have not been looked at yet.
    ports: Chain<RangeInclusive<u16>, Range<u16>>,
}
