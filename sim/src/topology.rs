//! The topology: hosts, switches and links.

use std::fmt;
use std::ops::Range;

use crate::packet::Target;

/// A fabric of switches with hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One switch.
    Star,
    /// Two levels: every leaf is linked to every spine, hosts to leaves. A pair of hosts uses one spine,
    /// chosen by hash (ECMP). The job's multicast tree uses the first.
    LeafSpine {
        /// Hosts per leaf; the last leaf may have fewer.
        hosts_per_leaf: u32,
        /// Spine switches.
        spines: u32,
    },
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topology::Star => f.write_str("star"),
            Topology::LeafSpine {
                hosts_per_leaf,
                spines,
            } => write!(f, "leaf-spine:{hosts_per_leaf}:{spines}"),
        }
    }
}

/// Numbers of links, one for each direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fabric {
    pub(crate) hosts: u32,
    leaves: u32,
    hosts_per_leaf: u32,
    spines: u32,
}

/// Aggregation: every leaf adds its hosts' values, one spine the leaves'. A star has one leaf and no spine.
impl Fabric {
    pub(crate) fn leaves(&self) -> u32 {
        self.leaves
    }

    pub(crate) fn leaf_of(&self, host: u32) -> u32 {
        host / self.hosts_per_leaf
    }

    pub(crate) fn hosts_of(&self, leaf: u32) -> Range<u32> {
        let first = leaf * self.hosts_per_leaf;
        first..(first + self.hosts_per_leaf).min(self.hosts)
    }

    /// The link from a host's leaf to it.
    pub(crate) fn down(&self, host: u32) -> u32 {
        self.hosts + host
    }

    /// The link from a leaf to the aggregating spine, the first.
    pub(crate) fn root_up(&self, leaf: u32) -> u32 {
        self.trunk_up(leaf, 0)
    }

    /// The link from the aggregating spine to a leaf.
    pub(crate) fn root_down(&self, leaf: u32) -> u32 {
        self.trunk_down(0, leaf)
    }
}

/// The end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Host(u32),
    /// A leaf, from one of its hosts.
    LeafFromHost(u32),
    LeafFromSpine(u32),
    Spine(u32, u32),
}

/// The role of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// From a host.
    Up,
    /// To a host.
    Down,
    /// Between switches.
    Trunk,
}

impl Fabric {
    pub(crate) fn new(topology: Topology, hosts: u32) -> Self {
        let (hosts_per_leaf, spines) = match topology {
            Topology::Star => (hosts, 0),
            Topology::LeafSpine {
                hosts_per_leaf,
                spines,
            } => (hosts_per_leaf, spines),
        };
        Self {
            hosts,
            leaves: hosts.div_ceil(hosts_per_leaf),
            hosts_per_leaf,
            spines,
        }
    }

    /// Number of links.
    pub(crate) fn links(&self) -> u32 {
        2 * self.hosts + 2 * self.leaves * self.spines
    }

    /// The link from a host.
    pub(crate) fn up(&self, host: u32) -> u32 {
        host
    }

    fn trunk_up(&self, leaf: u32, spine: u32) -> u32 {
        2 * self.hosts + leaf * self.spines + spine
    }

    fn trunk_down(&self, spine: u32, leaf: u32) -> u32 {
        2 * self.hosts + self.leaves * self.spines + spine * self.leaves + leaf
    }

    /// Number of hosts that a packet of `source` on `link` will reach.
    pub(crate) fn receivers(&self, link: u32, source: u32, to: Target) -> u64 {
        let hosts = match (to, self.end(link)) {
            (Target::Host(_) | Target::Neighbour, _) | (_, End::Host(_)) => 1,
            (Target::Group(group), End::LeafFromHost(_)) => group.len() - 1,
            (Target::Group(group), End::LeafFromSpine(leaf)) => {
                group.among(self.hosts_of(leaf)).len() as u32
            }
            (Target::Group(group), End::Spine(..)) => {
                let same_leaf = group.among(self.hosts_of(self.leaf_of(source)));
                group.len() - same_leaf.len() as u32
            }
        };
        hosts.into()
    }

    /// Maximum number of links on a packet's path.
    pub(crate) fn diameter(&self) -> u32 {
        if self.leaves > 1 { 4 } else { 2 }
    }

    pub(crate) fn role(&self, link: u32) -> Role {
        match link {
            link if link < self.hosts => Role::Up,
            link if link < 2 * self.hosts => Role::Down,
            _ => Role::Trunk,
        }
    }

    pub(crate) fn end(&self, link: u32) -> End {
        let trunks = self.leaves * self.spines;
        match self.role(link) {
            Role::Up => End::LeafFromHost(self.leaf_of(link)),
            Role::Down => End::Host(link - self.hosts),
            Role::Trunk => match link - 2 * self.hosts {
                up if up < trunks => End::Spine(up % self.spines, up / self.spines),
                down => End::LeafFromSpine((down - trunks) % self.leaves),
            },
        }
    }

    /// The links on which a switch at `end` sends a packet of `source`.
    pub(crate) fn forward(&self, end: End, source: u32, to: Target, mut send: impl FnMut(u32)) {
        match (end, to) {
            (End::Host(_), _) | (_, Target::Neighbour) => {}
            (End::LeafFromHost(leaf) | End::LeafFromSpine(leaf), Target::Host(host)) => {
                if self.leaf_of(host) == leaf {
                    send(self.down(host));
                } else {
                    send(self.trunk_up(leaf, spread(source, host) % self.spines));
                }
            }
            (End::Spine(spine, _), Target::Host(host)) => {
                send(self.trunk_down(spine, self.leaf_of(host)));
            }
            (End::LeafFromHost(leaf) | End::LeafFromSpine(leaf), Target::Group(group)) => {
                let here = group.among(self.hosts_of(leaf));
                if matches!(end, End::LeafFromHost(_)) && group.len() > here.len() as u32 {
                    send(self.trunk_up(leaf, 0));
                }
                for host in here.filter(|&host| host != source) {
                    send(self.down(host));
                }
            }
            (End::Spine(spine, from), Target::Group(group)) => {
                let has_some = |leaf: &u32| group.among(self.hosts_of(*leaf)).len() > 0;
                for leaf in (0..self.leaves)
                    .filter(|&leaf| leaf != from)
                    .filter(has_some)
                {
                    send(self.trunk_down(spine, leaf));
                }
            }
        }
    }
}

/// A hash of a pair of hosts (Fibonacci hashing).
fn spread(source: u32, to: u32) -> u32 {
    let pair = u64::from(source) << 32 | u64::from(to);
    (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Group;

    /// Hosts that a packet reaches, and the links on its longest path.
    fn reached(fabric: &Fabric, source: u32, to: Target) -> (Vec<u32>, u32) {
        let mut hosts = Vec::new();
        let mut links = vec![(fabric.up(source), 1)];
        let mut longest = 0;
        while let Some((link, passed)) = links.pop() {
            assert!(link < fabric.links());
            match fabric.end(link) {
                End::Host(host) => {
                    hosts.push(host);
                    longest = longest.max(passed);
                }
                end => fabric.forward(end, source, to, |next| links.push((next, passed + 1))),
            }
        }
        hosts.sort_unstable();
        (hosts, longest)
    }

    #[test]
    fn packets_reach_each_receiver_once() {
        let leaf_spine = |hosts_per_leaf, spines| Topology::LeafSpine {
            hosts_per_leaf,
            spines,
        };
        for topology in [
            Topology::Star,
            leaf_spine(4, 2),
            leaf_spine(1, 1),
            leaf_spine(16, 3),
        ] {
            for hosts in [2, 3, 9, 13] {
                let fabric = Fabric::new(topology, hosts);
                for source in 0..hosts {
                    let others = (0..hosts).filter(|&host| host != source);
                    let all = Target::Group(Group::all(hosts));
                    let (group, links) = reached(&fabric, source, all);
                    assert!(others.clone().eq(group));
                    assert_eq!(links, fabric.diameter());
                    let every_other = Group::new(source % 2, 2, (hosts - source % 2).div_ceil(2));
                    let (group, _) = reached(&fabric, source, Target::Group(every_other));
                    assert!(
                        others
                            .clone()
                            .filter(|host| host % 2 == source % 2)
                            .eq(group)
                    );
                    for host in others {
                        assert_eq!(reached(&fabric, source, Target::Host(host)).0, [host]);
                    }
                }
            }
        }
    }

    #[test]
    fn a_link_has_a_set_of_receivers() {
        let leaf_spine = Topology::LeafSpine {
            hosts_per_leaf: 4,
            spines: 2,
        };
        for topology in [Topology::Star, leaf_spine] {
            let fabric = Fabric::new(topology, 13);
            let all = (0..13).map(|source| (source, Group::all(13)));
            let every_third = (0..5).map(|number| (1 + 3 * number, Group::new(1, 3, 4)));
            for (source, to) in all.chain(every_third.take(4)) {
                let to = Target::Group(to);
                let mut links = vec![fabric.up(source)];
                while let Some(link) = links.pop() {
                    let mut behind = vec![link];
                    let mut hosts = 0;
                    while let Some(link) = behind.pop() {
                        match fabric.end(link) {
                            End::Host(_) => hosts += 1,
                            end => fabric.forward(end, source, to, |next| behind.push(next)),
                        }
                    }
                    assert_eq!(fabric.receivers(link, source, to), hosts, "{link}");
                    fabric.forward(fabric.end(link), source, to, |next| links.push(next));
                }
            }
        }
    }

    #[test]
    fn pairs_are_spread_over_the_spines() {
        let mut pairs = [0; 4];
        for (source, to) in (0..64).flat_map(|s| (0..64).map(move |t| (s, t))) {
            pairs[spread(source, to) as usize % 4] += 1;
        }
        assert!(pairs.iter().all(|n| (900..1150).contains(n)), "{pairs:?}");
    }
}
