//! Spreads hosts over equally near next switches.

use super::Distances;
use crate::fabric::{Fabric, Health, SwitchId, TrunkEnd, TrunkId};
use crate::target::PortNumber;

/// The port of each switch, for each host.
type Ports = Vec<Vec<Option<PortNumber>>>;

/// Chooses ports that lead every packet nearer to its host, host by host. Each switch takes the
/// shortest path with the most room in proportion to the trunk's rate, if all hosts sent equally to
/// all others. This includes the choices of all switches before it, so that a second tier does not
/// undo the spreading of the first. A port in `wanted` is kept if it is still on a shortest path. A
/// host whose own port is down has paths like all others, so that drained elements on the path are
/// avoided all the same.
pub(super) fn ports(
    fabric: &Fabric,
    health: &Health,
    distances: &Distances,
    wanted: Option<&Ports>,
) -> Ports {
    let trunks = (0..fabric.trunks().len()).map(TrunkId);
    let is_up: Vec<bool> = trunks
        .map(|trunk| health.trunk_is_up(fabric, trunk))
        .collect();
    let orders: Vec<Vec<SwitchId>> = (fabric.switch_ids())
        .map(|to| distances.toward(to))
        .collect();
    let mut senders = vec![0; fabric.switches().len()];
    for host in fabric.hosts() {
        senders[host.attached.switch.0] += 1;
    }

    let mut loads = Loads::new(fabric);
    let mut spread = Ports::with_capacity(fabric.hosts().len());
    for host in fabric.host_ids() {
        let mut ports = vec![None; fabric.switches().len()];
        let attached = fabric.host(host).attached;
        // Senders whose packets for this host pass a switch; known once all farther switches have
        // chosen.
        let mut flows = senders.clone();
        for &switch in &orders[attached.switch.0] {
            if switch == attached.switch {
                ports[switch.0] = Some(attached.port);
                continue;
            }
            let distance = |at| distances.get(at, attached.switch);
            let leads_on = |at| at == attached.switch || health.carries(at);
            let is_nearer = |end: &&TrunkEnd| {
                is_up[end.trunk.0]
                    && leads_on(end.far.switch)
                    && distance(end.far.switch).map(|far| far + 1) == distance(switch)
            };
            let nearer = || fabric.trunks_of(switch).iter().filter(is_nearer);
            let kept = wanted.and_then(|wanted: &Ports| wanted[host.0][switch.0]);
            let kept = kept.and_then(|port| nearer().find(|end| end.port == port));
            let flow = flows[switch.0];
            let best = || nearer().min_by_key(|end| loads.with(fabric, switch, end.trunk, flow));
            if let Some(end) = kept.or_else(best) {
                ports[switch.0] = Some(end.port);
                flows[end.far.switch.0] += flow;
                loads.add(fabric, switch, end.trunk, flow);
            }
        }
        spread.push(ports);
    }
    spread
}

/// The load of trunks in each direction.
struct Loads(Vec<[u64; 2]>);

impl Loads {
    fn new(fabric: &Fabric) -> Self {
        Loads(vec![[0; 2]; fabric.trunks().len()])
    }

    /// The strain on a trunk in the direction from `from`, with this additional load.
    fn with(&self, fabric: &Fabric, from: SwitchId, trunk: TrunkId, more: u64) -> u128 {
        let direction = direction(fabric, from, trunk);
        fabric.strain(trunk, self.0[trunk.0][direction] + more)
    }

    fn add(&mut self, fabric: &Fabric, from: SwitchId, trunk: TrunkId, more: u64) {
        self.0[trunk.0][direction(fabric, from, trunk)] += more;
    }
}

fn direction(fabric: &Fabric, from: SwitchId, trunk: TrunkId) -> usize {
    usize::from(fabric.trunk(trunk).ends[0].switch != from)
}
