//! One spanning tree over all switches.

use std::collections::VecDeque;

use super::{SwitchId, Trunk};
use crate::target::PortNumber;

/// A loop-free choice of trunks that reaches every switch. Routes and groups follow it, so that
/// a job's packets come in where its admission rules expect them.
#[derive(Clone, Debug)]
pub struct SpanningTree {
    /// For each switch, its neighbours in the tree and the port to each, by port number.
    neighbours: Vec<Vec<(PortNumber, SwitchId)>>,
    /// `toward[a][b]`: the port at *a* that leads to *b*; none where *a* is *b*.
    toward: Vec<Vec<Option<PortNumber>>>,
}

impl SpanningTree {
    /// The tree that breadth-first search from the first switch finds, so that the number of hops
    /// from there is least; among trunks of equal length the one that comes first in `trunks`.
    ///
    /// # Errors
    /// The first switch that cannot be reached.
    pub(super) fn new(switches: usize, trunks: &[Trunk]) -> Result<Self, SwitchId> {
        let mut links = vec![Vec::new(); switches];
        for Trunk { ends: [a, b] } in trunks {
            links[a.switch.0].push((*a, *b));
            links[b.switch.0].push((*b, *a));
        }

        let mut neighbours = vec![Vec::new(); switches];
        let mut reached = vec![false; switches];
        reached[0] = true;
        let mut queue = VecDeque::from([SwitchId(0)]);
        while let Some(switch) = queue.pop_front() {
            for (near, far) in &links[switch.0] {
                if !std::mem::replace(&mut reached[far.switch.0], true) {
                    neighbours[switch.0].push((near.port, far.switch));
                    neighbours[far.switch.0].push((far.port, switch));
                    queue.push_back(far.switch);
                }
            }
        }
        if let Some(missed) = reached.iter().position(|reached| !reached) {
            return Err(SwitchId(missed));
        }
        for ports in &mut neighbours {
            ports.sort_unstable();
        }

        let mut tree = SpanningTree {
            toward: vec![vec![None; switches]; switches],
            neighbours,
        };
        for to in (0..switches).map(SwitchId) {
            tree.lead_to(to);
        }
        Ok(tree)
    }

    /// Fills in, at every switch, the port that leads to `to`.
    fn lead_to(&mut self, to: SwitchId) {
        let mut stack = vec![(to, None)];
        while let Some((at, came_from)) = stack.pop() {
            for index in 0..self.neighbours[at.0].len() {
                let (_, next) = self.neighbours[at.0][index];
                if Some(next) == came_from {
                    continue;
                }
                let back = self.neighbours[next.0]
                    .iter()
                    .find(|(_, switch)| *switch == at);
                self.toward[next.0][to.0] = back.map(|(port, _)| *port);
                stack.push((next, Some(at)));
            }
        }
    }

    /// The port at `from` that leads to `to`; none where they are the same switch.
    pub fn port_toward(&self, from: SwitchId, to: SwitchId) -> Option<PortNumber> {
        self.toward[from.0][to.0]
    }

    /// The switch at the other end of `port` of `switch`, where that is a trunk of the tree.
    pub fn across(&self, switch: SwitchId, port: PortNumber) -> Option<SwitchId> {
        let ports = &self.neighbours[switch.0];
        let index = ports.binary_search_by_key(&port, |(port, _)| *port).ok()?;
        Some(ports[index].1)
    }

    /// The switches on the way from `from` to `to`, both included.
    pub fn path(&self, from: SwitchId, to: SwitchId) -> impl Iterator<Item = SwitchId> + '_ {
        std::iter::successors(Some(from), move |at| {
            self.port_toward(*at, to)
                .and_then(|port| self.across(*at, port))
        })
    }
}
