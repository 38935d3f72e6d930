//! Distances between switches.

use std::collections::VecDeque;

use crate::fabric::{Fabric, Health, SwitchId};

/// The number of trunks on a shortest path between any two switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Distances(Vec<Vec<Option<u32>>>);

impl Distances {
    /// Computes the distances by breadth-first search from every switch, over elements that are up.
    pub fn new(fabric: &Fabric, health: &Health) -> Self {
        let from = |start| from_one(fabric, health, start);
        Distances(fabric.switch_ids().map(from).collect())
    }

    /// The distance; none if no path exists. A switch that is down has none to itself, either.
    pub fn get(&self, from: SwitchId, to: SwitchId) -> Option<u32> {
        self.0[to.0][from.0]
    }

    /// The switches with a path to `to`, farthest first.
    pub fn toward(&self, to: SwitchId) -> Vec<SwitchId> {
        let reached = |(at, distance): (usize, &Option<u32>)| Some((SwitchId(at), (*distance)?));
        let mut switches: Vec<_> = (self.0[to.0].iter().enumerate())
            .filter_map(reached)
            .collect();
        switches.sort_by_key(|(_, distance)| std::cmp::Reverse(*distance));
        switches.into_iter().map(|(switch, _)| switch).collect()
    }
}

/// The distances from a switch. A breadth-first search by hand: petgraph's keeps no distances, and its `dijkstra` would need a graph
/// for each start, in which only switches that carry transit have other edges.
fn from_one(fabric: &Fabric, health: &Health, start: SwitchId) -> Vec<Option<u32>> {
    let mut distances = vec![None; fabric.switches().len()];
    if !health.switch_is_up(start) {
        return distances;
    }
    distances[start.0] = Some(0);
    let mut queue = VecDeque::from([(start, 0)]);
    while let Some((switch, distance)) = queue.pop_front() {
        // A switch without transit traffic may end a path but not be on one.
        if switch != start && !health.carries(switch) {
            continue;
        }
        for end in fabric.trunks_of(switch) {
            let far = &mut distances[end.far.switch.0];
            if far.is_none() && health.trunk_is_up(fabric, end.trunk) {
                *far = Some(distance + 1);
                queue.push_back((end.far.switch, distance + 1));
            }
        }
    }
    distances
}
