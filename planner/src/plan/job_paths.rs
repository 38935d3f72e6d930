//! The paths of a job's packets, switch by switch.

use std::collections::{BTreeMap, BTreeSet};

use crate::fabric::{Fabric, HostId, SwitchId, SwitchPort};
use crate::job::Member;
use crate::routing::{Passage, Routes};
use crate::target::PortNumber;
use crate::tree::JobTree;

/// The job's traffic through a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Through {
    /// The ingress ports of members on other switches, each with the switch of their hosts.
    entrances: BTreeSet<(SwitchId, PortNumber)>,
    /// The destination hosts of unicast packets.
    destinations: BTreeSet<HostId>,
    /// The egress ports.
    exits: BTreeSet<PortNumber>,
}

impl Through {
    /// The ingress ports of packets from hosts of `home`, another switch.
    pub fn entrances(&self, home: SwitchId) -> impl Iterator<Item = PortNumber> {
        let ports = self
            .entrances
            .range((home, PortNumber(0))..=(home, PortNumber(u16::MAX)));
        ports.map(|(_, port)| *port)
    }

    /// True if unicast packets for a host pass the switch.
    pub(crate) fn leads_to(&self, host: HostId) -> bool {
        self.destinations.contains(&host)
    }

    fn enter(&mut self, home: SwitchId, at: SwitchPort) {
        // At their own switch, packets enter at their hosts' ports.
        if at.switch != home {
            self.entrances.insert((home, at.port));
        }
    }
}

/// Called for each passage of a path.
type Pass<'a> = dyn FnMut(Passage) + 'a;

/// All switches that a job's packets pass: multicast packets by the tree, unicast packets by the
/// routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPaths(BTreeMap<SwitchId, Through>);

impl JobPaths {
    /// The paths between `members`, including those to unreachable members.
    pub fn new(
        fabric: &Fabric,
        routes: &Routes,
        members: &[Member],
        tree: Option<&JobTree>,
    ) -> Self {
        let path = |from, to, pass: &mut Pass| {
            routes.path(fabric, from, to).for_each(pass);
        };
        JobPaths::along(fabric, members, tree, path)
    }

    /// The paths that packets may take while switches change routes in their [rounds](Routes::write_round)
    /// and groups change trees: first by old ports, and from the first switch with its new ports on
    /// by new ones.
    pub fn moving(
        fabric: &Fabric,
        [before, after]: [&Routes; 2],
        members: &[Member],
        trees: [Option<&JobTree>; 2],
    ) -> Self {
        let path = |from, to, pass: &mut Pass| {
            after.path(fabric, from, to).for_each(&mut *pass);
            for passage in before.path(fabric, from, to) {
                pass(passage);
                after.path(fabric, passage.ingress, to).for_each(&mut *pass);
            }
        };
        JobPaths::along(fabric, members, trees.into_iter().flatten(), path)
    }

    fn along<'a>(
        fabric: &Fabric,
        members: &[Member],
        trees: impl IntoIterator<Item = &'a JobTree>,
        path: impl Fn(SwitchPort, HostId, &mut Pass),
    ) -> Self {
        let trees: Vec<&JobTree> = trees.into_iter().collect();
        let hosts: BTreeSet<HostId> = members.iter().map(|member| member.host).collect();
        let attached = |host: &HostId| fabric.host(*host).attached;
        // After its first switch, a packet's path is the same as all others' from there.
        let homes: BTreeMap<SwitchId, SwitchPort> = hosts
            .iter()
            .map(|host| (attached(host).switch, attached(host)))
            .collect();

        let mut paths = JobPaths::default();
        for &host in &hosts {
            let at = attached(&host);
            paths.at(at.switch).exits.insert(at.port);
            for (home, start) in &homes {
                path(*start, host, &mut |passage| {
                    paths.pass(*home, passage, host)
                });
            }
        }
        for (tree, switch) in trees
            .iter()
            .flat_map(|tree| tree.switches().map(move |at| (tree, at)))
        {
            let ports = tree.branches(switch).iter().map(|end| end.port);
            paths.at(switch).exits.extend(ports);
        }
        for home in homes.keys() {
            for entrance in trees.iter().flat_map(|tree| tree.entrances(*home)) {
                paths.at(entrance.switch).enter(*home, entrance);
            }
        }
        paths
    }

    /// Adds the passage of packets for `host` from `home` through a switch.
    fn pass(&mut self, home: SwitchId, passage: Passage, host: HostId) {
        let through = self.at(passage.ingress.switch);
        through.destinations.insert(host);
        through.exits.insert(passage.egress);
        through.enter(home, passage.ingress);
    }

    /// True if a port admits packets from hosts of `home`.
    pub fn admits(&self, home: SwitchId, at: SwitchPort) -> bool {
        let through = self.0.get(&at.switch);
        through.is_some_and(|through| through.entrances.contains(&(home, at.port)))
    }

    fn at(&mut self, switch: SwitchId) -> &mut Through {
        self.0.entry(switch).or_default()
    }

    /// The switches with their traffic.
    pub fn iter(&self) -> impl Iterator<Item = (SwitchId, &Through)> {
        self.0.iter().map(|(switch, through)| (*switch, through))
    }

    /// The egress ports.
    pub fn exits(&self) -> impl Iterator<Item = SwitchPort> {
        self.iter().flat_map(|(switch, through)| {
            let ports = through.exits.iter();
            ports.map(move |port| SwitchPort {
                switch,
                port: *port,
            })
        })
    }
}
