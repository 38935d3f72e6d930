//! The resources that all jobs of a fabric have taken: UDP ports on hosts, ids and indices, links,
//! and room on switches.
//!
//! A [`Ledger`] only keeps account and never talks to a switch. Its operations take time in the
//! size of one job, independent of the number of jobs.

mod fill;
mod numbers;
mod refit;
mod restore;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashSet};

pub use fill::{Fill, GROUPS, NODES};
pub use refit::Refitted;
use ultima_p4runtime::names::Names;

use self::numbers::Numbers;
use crate::fabric::{Fabric, HostId, SwitchId, SwitchPort};
use crate::job::{
    CounterIndex, Epoch, Gather, GroupId, Job, JobId, JobSpec, Member, Multicast, Rank, Refusal,
    RefusalKind, ShareIndex, SourceIndex, by_rank, key, place,
};
use crate::plan::{self, JobPaths, JobPlan, Usage};
use crate::routing::Routes;
use crate::tree::{JobTree, Load};

/// The resources that jobs have taken.
#[derive(Clone, Debug)]
pub struct Ledger {
    jobs: BTreeSet<JobId>,
    /// The last id that was given out. Ids are given out in turn, so that late packets of a deleted
    /// job reach no other job.
    last: JobId,
    members: HashSet<Member>,
    counters: Numbers,
    groups: Numbers,
    switches: Vec<OnSwitch>,
    load: Load,
    /// Share indices that jobs use while they are [rerouted](Self::free_returned), including those that
    /// they will return.
    moving: HashSet<(SwitchId, ShareIndex)>,
}

/// The resources taken on one switch.
#[derive(Clone, Debug, Default)]
struct OnSwitch {
    shares: Numbers,
    sources: Numbers,
    usage: Usage,
}

impl Ledger {
    /// The ledger of a fabric without jobs.
    pub fn new(fabric: &Fabric, routes: &Routes) -> Self {
        let switches = fabric.switch_ids().map(|switch| OnSwitch {
            usage: Usage::of(&plan::of_fabric(fabric, routes, switch)),
            ..OnSwitch::default()
        });
        Ledger {
            jobs: BTreeSet::new(),
            last: JobId(0),
            members: HashSet::new(),
            counters: Numbers::default(),
            groups: Numbers::default(),
            switches: switches.collect(),
            load: Load::new(fabric),
            moving: HashSet::new(),
        }
    }

    /// Plans a job or another epoch of one, and its entries. Nothing is taken until it is
    /// [added](Self::add). `seed` is for a job without one.
    ///
    /// An epoch has an id, indices and UDP ports of its own, so that two of them can be on the
    /// switches at the same time. The program knows a job's group and its ranks' addresses only by
    /// the job's id.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn propose(
        &self,
        fabric: &Fabric,
        routes: &Routes,
        names: &Names,
        spec: &JobSpec,
        epoch: Epoch,
        seed: u64,
    ) -> Result<(Job, JobPlan), Refusal> {
        let members = place(fabric, spec, epoch, &self.members)?;
        let homes = homes(fabric, &members);
        reach_each_other(fabric, routes, &members)?;

        let JobId(last) = self.last;
        let above = last
            .checked_add(1)
            .into_iter()
            .flat_map(|first| first..=u16::MAX);
        let mut ids = above.chain(1..=last);
        let id = ids.find(|id| !self.jobs.contains(&JobId(*id)));
        let sources = self.sources(fabric, &members);
        let (Some(id), Some(counter), Some(group), Some(sources)) = (
            id,
            self.counters.free().next(),
            self.groups.free().next(),
            sources,
        ) else {
            return Err(self.too_many());
        };
        let multicast = match spec.gather {
            Gather::Unicast => None,
            Gather::Multicast => {
                let tree = JobTree::choose(fabric, routes, &self.load, spec.policy.weight, &homes);
                Some(Multicast {
                    group: GroupId(group),
                    // The members reach each other only through other members' switches.
                    tree: tree.ok_or_else(|| no_tree(fabric, &members))?,
                })
            }
        };
        let job = Job {
            id: JobId(id),
            name: spec.name.clone(),
            epoch,
            seed: spec.seed.unwrap_or(seed),
            counter: CounterIndex(counter),
            multicast,
            policy: spec.policy,
            created_at: spec.created_at,
            request: spec.request,
            uid: spec.uid,
            client: spec.client.clone(),
            key: spec.sealed.then(key::draw),
            members,
            shares: BTreeMap::new(),
            sources,
        };
        let paths = JobPaths::new(fabric, routes, &job.members, job.tree());
        self.plan(fabric, names, job, &paths)
    }

    /// Assigns a share index to each of a job's egress ports, keeping existing ones, and plans the
    /// job.
    fn plan(
        &self,
        fabric: &Fabric,
        names: &Names,
        mut job: Job,
        paths: &JobPaths,
    ) -> Result<(Job, JobPlan), Refusal> {
        let exits: BTreeSet<SwitchPort> = paths.exits().collect();
        job.shares.retain(|port, _| exits.contains(port));
        let kept: HashSet<(SwitchId, ShareIndex)> = (job.shares.iter())
            .map(|(at, share)| (at.switch, *share))
            .collect();
        let mut free = PerSwitch::new(|switch: SwitchId| {
            let free = self.switches[switch.0].shares.free().map(ShareIndex);
            let (kept, moving) = (&kept, &self.moving);
            free.filter(move |share| {
                let number = (switch, *share);
                !kept.contains(&number) && !moving.contains(&number)
            })
        });
        for at in exits {
            if let Entry::Vacant(unnumbered) = job.shares.entry(at) {
                unnumbered.insert(free.next(at.switch).ok_or_else(|| self.too_many())?);
            }
        }

        let plan = plan::of_paths(fabric, &job, paths);
        for (switch, plan) in &plan {
            let usage = &self.switches[switch.0].usage;
            usage.check_with(fabric.switch(*switch), names, plan)?;
        }
        Ok((job, plan))
    }

    /// The lowest free source index on each member's switch, in rank order.
    fn sources(&self, fabric: &Fabric, members: &[Member]) -> Option<Vec<SourceIndex>> {
        let mut free = PerSwitch::new(|switch: SwitchId| self.switches[switch.0].sources.free());
        let of = |member: &Member| free.next(fabric.host(member.host).attached.switch);
        members
            .iter()
            .map(of)
            .map(|source| source.map(SourceIndex))
            .collect()
    }

    /// The resources taken on a switch.
    pub fn usage(&self, switch: SwitchId) -> &Usage {
        &self.switches[switch.0].usage
    }

    fn too_many(&self) -> Refusal {
        let jobs = self.jobs.len();
        let message = format!("the fabric has {jobs} jobs and no free job id; delete a job");
        Refusal::no_room(None, message)
    }

    /// Counts the id of a job, whose resources are [taken](Self::take), as given out.
    pub fn give_out(&mut self, id: JobId) {
        self.last = id;
    }

    /// Reserves the numbers and UDP ports of a job that is on no switch, so that no other job gets
    /// them.
    pub fn reserve(&mut self, fabric: &Fabric, reserved: &Reserved) {
        self.jobs.insert(reserved.id);
        self.counters.take(reserved.counter.0);
        if let Some(group) = reserved.group {
            self.groups.take(group.0);
        }
        for (member, source) in &reserved.members {
            self.members.insert(*member);
            let switch = fabric.host(member.host).attached.switch;
            self.switches[switch.0].sources.take(source.0);
        }
        for (switch, share) in &reserved.shares {
            self.switches[switch.0].shares.take(share.0);
        }
    }

    /// Takes the resources of a [proposed](Self::propose) job. Its id is given out again if they are
    /// returned before it is [given out](Self::give_out).
    pub fn take(&mut self, fabric: &Fabric, job: &Job, plan: &JobPlan) {
        self.jobs.insert(job.id);
        self.members.extend(&job.members);
        self.each_number(fabric, job, Numbers::take);
        if let Some(tree) = job.tree() {
            self.load.add(tree, job.policy.weight);
        }
        for (switch, plan) in plan {
            let usage = &mut self.switches[switch.0].usage;
            usage.add(&Usage::of(plan.entities()));
        }
    }

    /// Returns the resources of a job with this plan.
    pub fn remove(&mut self, fabric: &Fabric, job: &Job, plan: &JobPlan) {
        self.jobs.remove(&job.id);
        for member in &job.members {
            self.members.remove(member);
        }
        self.each_number(fabric, job, Numbers::give_back);
        if let Some(tree) = job.tree() {
            self.load.remove(tree, job.policy.weight);
        }
        for (switch, plan) in plan {
            let usage = &mut self.switches[switch.0].usage;
            usage.remove(&Usage::of(plan.entities()));
        }
    }

    /// Takes or gives back all numbers of a job.
    fn each_number(&mut self, fabric: &Fabric, job: &Job, change: fn(&mut Numbers, u16)) {
        change(&mut self.counters, job.counter.0);
        if let Some(group) = job.group() {
            change(&mut self.groups, group.0);
        }
        for (at, share) in &job.shares {
            change(&mut self.switches[at.switch.0].shares, share.0);
        }
        for (member, source) in job.members.iter().zip(&job.sources) {
            let switch = fabric.host(member.host).attached.switch;
            change(&mut self.switches[switch.0].sources, source.0);
        }
    }
}

/// The numbers of a job that is on no switch, as far as the fabric has its hosts and switches.
#[derive(Clone, Debug)]
pub struct Reserved {
    /// The job's id.
    pub id: JobId,
    /// The index of the job's counters.
    pub counter: CounterIndex,
    /// The job's multicast group.
    pub group: Option<GroupId>,
    /// The members, with the indices of their loss counters.
    pub members: Vec<(Member, SourceIndex)>,
    /// The indices of the job's shares.
    pub shares: Vec<(SwitchId, ShareIndex)>,
}

/// The remaining free numbers of each switch.
struct PerSwitch<F, I> {
    free: F,
    rest: BTreeMap<SwitchId, I>,
}

impl<F: Fn(SwitchId) -> I, I: Iterator> PerSwitch<F, I> {
    fn new(free: F) -> Self {
        PerSwitch {
            free,
            rest: BTreeMap::new(),
        }
    }

    fn next(&mut self, switch: SwitchId) -> Option<I::Item> {
        let free = || (self.free)(switch);
        self.rest.entry(switch).or_insert_with(free).next()
    }
}

/// The switches of the members' hosts.
pub fn homes(fabric: &Fabric, members: &[Member]) -> BTreeSet<SwitchId> {
    let home = |member: &Member| fabric.host(member.host).attached.switch;
    members.iter().map(home).collect()
}

/// Checks that all members reach each other.
fn reach_each_other(fabric: &Fabric, routes: &Routes, members: &[Member]) -> Result<(), Refusal> {
    match cut_off(fabric, routes, members).first() {
        None => Ok(()),
        Some((rank, from)) => Err(unreachable(fabric, members[usize::from(rank.0)], *from)),
    }
}

/// The ranks that cannot be reached from some switch of the largest part of the members, each with
/// the first such switch.
pub fn cut_off(fabric: &Fabric, routes: &Routes, members: &[Member]) -> Vec<(Rank, SwitchId)> {
    let part = largest_part(fabric, routes, members);
    // The members on a host are reached alike.
    let mut known: BTreeMap<HostId, Option<SwitchId>> = BTreeMap::new();
    let mut from = |host: HostId| {
        let unreached = || {
            let home = fabric.host(host).attached.switch;
            let mut homes = part.iter();
            let unreached = homes.find(|home| routes.port(**home, host).is_none());
            // If all of their switches are down, no member reaches another.
            unreached.copied().or(part.is_empty().then_some(home))
        };
        *known.entry(host).or_insert_with(unreached)
    };
    by_rank(members)
        .filter_map(|(rank, member)| Some((rank, from(member.host)?)))
        .collect()
}

/// The reason that no path leads from a switch to a member.
fn unreachable(fabric: &Fabric, member: Member, from: SwitchId) -> Refusal {
    let (switch, host) = (&fabric.switch(from).name, &fabric.host(member.host).name);
    let message = format!(
        "no path leads from switch {switch} to host {host} while elements are down or drained; repair or undrain them, or leave the host out"
    );
    Refusal::of_field(RefusalKind::Unreachable, "members", message)
}

/// The reason that no tree joins the members.
fn no_tree(fabric: &Fabric, members: &[Member]) -> Refusal {
    let (first, last) = (members[0], members[members.len() - 1]);
    unreachable(fabric, last, fabric.host(first.host).attached.switch)
}

/// The members' switches that most members reach.
fn largest_part(fabric: &Fabric, routes: &Routes, members: &[Member]) -> BTreeSet<SwitchId> {
    let homes = homes(fabric, members);
    let part = |of: SwitchId| {
        homes
            .iter()
            .filter(move |to| routes.distance(of, **to).is_some())
    };
    let members_near = |of: SwitchId| {
        let near: BTreeSet<&SwitchId> = part(of).collect();
        let home = |member: &&Member| near.contains(&fabric.host(member.host).attached.switch);
        members.iter().filter(home).count()
    };
    // Chooses the first of equally large parts: `max_by_key` returns the last one.
    let largest = homes.iter().rev().max_by_key(|home| members_near(**home));
    largest
        .into_iter()
        .flat_map(|of| part(*of))
        .copied()
        .collect()
}
