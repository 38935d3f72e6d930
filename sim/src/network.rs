//! The network: links, packets and time.

use hdrhistogram::Histogram;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde::Serialize;
use ultima_link::{FlowLengths, Flows, Jitter, JitterSampler, Loss, LossProcess};
use ultima_wire::Ticks;

use crate::agenda::Agenda;
use crate::background::Background;
use crate::clock::Ps;
use crate::cross::Bursts;
use crate::link::{Fate, Link, Port, Removal};
use crate::packet::{Flight, Packet, Packets, Stamps, Target};
use crate::topology::{End, Fabric, Role, Topology};

/// Significant digits of measured waits.
const WAITS_DIGITS: u8 = 2;
/// Upper limit of measured waits.
const LONGEST_WAIT_NS: u64 = 60_000_000_000;

/// The parameters of a fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkConfig {
    /// The topology.
    pub topology: Topology,
    /// Bits per second of a host's link, in each direction. Trunks have the same rate, times hosts per leaf over
    /// spines if that is more.
    pub rate: u64,
    /// Propagation delay of one link, including the switch's time before its queue.
    pub delay: Ps,
    /// Random time added to the delay of each packet, on links to and from hosts. Packets do not overtake each other.
    pub jitter: Option<Jitter>,
    /// Bytes in a switch's egress queue.
    pub queue: u64,
    /// Queued bytes above which a packet loses its payload.
    pub trim: u64,
    /// Queued bytes above which a packet is marked.
    pub mark: u64,
    /// Loss on links to hosts.
    pub loss: Option<Loss>,
    /// The share of cross traffic on a link to a host, 0 or more and under 1.
    pub cross: f64,
    /// Mean time of a burst of cross traffic on a link.
    pub burst: Ps,
    /// Background flows on links to hosts.
    pub background: Option<Background>,
    /// Hosts with slower links.
    pub slow: Option<Slow>,
}

/// Hosts with slower links. A core on such a host is paced at its own link's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Number of slow hosts, the first ones.
    pub hosts: u32,
    /// The factor by which these links are slower, in both directions.
    pub factor: u32,
}

impl NetworkConfig {
    /// Bits per second of `host`'s link.
    pub fn rate_of(&self, host: u32) -> u64 {
        match self.slow {
            Some(slow) if host < slow.hosts => self.rate / u64::from(slow.factor),
            _ => self.rate,
        }
    }
}

/// Counters of packets. Every sent or copied packet is delivered, lost by one of the causes, or in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounts {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Copies that switches made in addition to the received packet, and packets of their own.
    pub copied: u64,
    /// Packets that ended in an aggregating switch.
    pub aggregated: u64,
    /// Copies that arrived at their hosts, including those without payload.
    pub delivered: u64,
    /// Copies dropped at a full queue.
    pub queue_dropped: u64,
    /// Copies that wires lost.
    pub link_lost: u64,
    /// Copies whose payload a switch removed because of its queue. They continue, and are delivered or lost.
    pub trimmed: u64,
    /// Copies whose payload a switch removed because their budget was used up. They continue too.
    pub late: u64,
    /// Contributions and aggregates of the bounded transport that were dropped, lost or trimmed: each counts
    /// once per receiver, whatever the number of its copies. Late ones do not count.
    pub owed_lost: u64,
}

impl Accounts {
    /// Copies in flight.
    pub fn in_flight(&self) -> u64 {
        let ended = self.delivered + self.aggregated + self.queue_dropped + self.link_lost;
        self.sent + self.copied - ended
    }
}

/// The senders and receivers.
pub(crate) trait Hosts {
    /// A packet's content.
    type Body: Clone;

    /// Handles a packet at `host`.
    fn receive(
        &mut self,
        net: &mut Network<Self::Body>,
        host: u32,
        stamps: Stamps,
        body: Self::Body,
    );

    /// Handles a packet to [`Target::Neighbour`] at the switch at `end`.
    fn at_switch(&mut self, _net: &mut Network<Self::Body>, _end: End, _body: Self::Body) {}

    /// Called at the time of [`Network::wake`] for `host`.
    fn woken(&mut self, net: &mut Network<Self::Body>, host: u32);

    /// Called at the time of [`Network::alarm`].
    fn alarmed(&mut self, net: &mut Network<Self::Body>);
}

/// A network in virtual time. The same calls give the same times.
pub(crate) struct Network<B> {
    fabric: Fabric,
    now: Ps,
    links: Vec<Link>,
    packets: Packets<B>,
    /// Links, then hosts, then one alarm.
    agenda: Agenda,
    accounts: Accounts,
    events: u64,
    most_packets: usize,
    /// Waits before links to hosts that are not slow, in nanoseconds.
    waits: Histogram<u64>,
    /// The first host that is not slow.
    from_host: u32,
}

impl<B: Clone> Network<B> {
    pub(crate) fn new(config: &NetworkConfig, hosts: u32, seed: u64) -> Self {
        let fabric = Fabric::new(config.topology, hosts);
        let links: Vec<Link> = (0..fabric.links())
            .map(|number| link(config, &fabric, seed, number))
            .collect();
        Self {
            fabric,
            now: Ps::ZERO,
            agenda: Agenda::new(links.len() + hosts as usize + 1),
            links,
            packets: Packets::new(),
            accounts: Accounts::default(),
            events: 0,
            most_packets: 0,
            waits: Histogram::new_with_bounds(1, LONGEST_WAIT_NS, WAITS_DIGITS)
                .expect("bounds that work"),
            from_host: config.slow.map_or(0, |slow| slow.hosts),
        }
    }

    pub(crate) fn now(&self) -> Ps {
        self.now
    }

    pub(crate) fn hosts(&self) -> u32 {
        self.fabric.hosts
    }

    pub(crate) fn fabric(&self) -> Fabric {
        self.fabric
    }

    /// Counters so far.
    pub(crate) fn accounts(&self) -> Accounts {
        self.accounts
    }

    /// Number of events so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Maximum number of packets in flight; copies of one packet count once.
    pub(crate) fn most_packets(&self) -> usize {
        self.most_packets
    }

    /// The longest wait in a switch's queue.
    pub(crate) fn longest_wait(&self) -> Ps {
        let by_switch = (0..).zip(&self.links);
        by_switch
            .filter(|(number, _)| self.fabric.role(*number) != Role::Up)
            .map(|(_, link)| link.longest_wait())
            .max()
            .unwrap_or_default()
    }

    /// The 99th percentile of waits before links to hosts that are not slow.
    pub(crate) fn p99_wait(&self) -> Ps {
        Ps(self.waits.value_at_quantile(0.99) * 1000)
    }

    /// Sets rate and delay of hosts' links to their switches.
    #[cfg(test)]
    pub(crate) fn set_uplinks(&mut self, rate: u64, delay: Ps) {
        for host in 0..self.fabric.hosts {
            self.links[self.fabric.up(host) as usize] = Link::new(rate, delay, None);
        }
    }

    /// The time at which all packets that `host` sent so far have left it.
    pub(crate) fn sent_by(&self, host: u32) -> Ps {
        self.links[self.fabric.up(host) as usize].free_at()
    }

    /// Sends `packet` as soon as its source's link is free.
    pub(crate) fn send(&mut self, packet: Packet<B>, budget: Ticks) {
        self.accounts.sent += 1;
        let link = self.fabric.up(packet.source);
        let flight = Flight {
            arrives: Ps::ZERO,
            packet: self.packets.insert(packet),
            stamps: Stamps::new(budget),
        };
        self.most_packets = self.most_packets.max(self.packets.len());
        self.offer(link, flight);
    }

    /// Sends `packet` from a switch to its neighbours on each of `links`.
    pub(crate) fn send_on(&mut self, links: impl Iterator<Item = u32>, packet: Packet<B>) {
        let flight = Flight {
            arrives: Ps::ZERO,
            packet: self.packets.insert(packet),
            stamps: Stamps::new(Ticks::MAX),
        };
        self.most_packets = self.most_packets.max(self.packets.len());
        for link in links {
            self.accounts.copied += 1;
            self.packets.copied(flight.packet, 1);
            self.offer(link, flight);
        }
        self.packets.release(flight.packet);
    }

    /// Schedules [`Hosts::woken`] at `at`, not earlier than now, instead of at any earlier request;
    /// [`Ps::NEVER`] for not at all.
    pub(crate) fn wake(&mut self, host: u32, at: Ps) {
        let source = self.links.len() as u32 + host;
        self.agenda.set(source, at.max(self.now));
    }

    /// Schedules [`Hosts::alarmed`].
    pub(crate) fn alarm(&mut self, at: Ps) {
        let source = self.links.len() as u32 + self.fabric.hosts;
        self.agenda.set(source, at.max(self.now));
    }

    /// Runs until there are no events.
    pub(crate) fn run(&mut self, hosts: &mut impl Hosts<Body = B>) {
        while let Some((at, source)) = self.agenda.next() {
            self.now = at;
            self.events += 1;
            if source < self.links.len() as u32 {
                self.arrive(source, hosts);
                continue;
            }
            self.agenda.set(source, Ps::NEVER);
            match source - self.links.len() as u32 {
                host if host < self.fabric.hosts => hosts.woken(self, host),
                _ => hosts.alarmed(self),
            }
        }
    }

    /// Handles the arrival of the first packet on `link`.
    fn arrive(&mut self, link: u32, hosts: &mut impl Hosts<Body = B>) {
        let from = &mut self.links[link as usize];
        let Some(flight) = from.pop() else {
            return;
        };
        self.agenda.set(link, from.next());
        let end = self.fabric.end(link);
        if let End::Host(host) = end {
            let body = self.packets.get(flight.packet).body.clone();
            self.packets.release(flight.packet);
            self.accounts.delivered += 1;
            hosts.receive(self, host, flight.stamps, body);
            return;
        }
        let &Packet { source, target, .. } = self.packets.get(flight.packet);
        if target == Target::Neighbour {
            let body = self.packets.get(flight.packet).body.clone();
            self.packets.release(flight.packet);
            self.accounts.aggregated += 1;
            return hosts.at_switch(self, end, body);
        }
        let fabric = self.fabric;
        let mut copies = 0;
        // The received packet is released when its copies are in flight.
        fabric.forward(end, source, target, |next| {
            copies += 1;
            self.packets.copied(flight.packet, 1);
            self.offer(next, flight);
        });
        self.packets.release(flight.packet);
        self.accounts.copied += copies;
        self.accounts.copied -= 1;
    }

    fn offer(&mut self, number: u32, flight: Flight) {
        let link = &mut self.links[number as usize];
        let id = flight.packet;
        let &Packet {
            source,
            target,
            is_owed,
            ..
        } = self.packets.get(id);
        // A packet without payload was counted when it lost it.
        let counts = is_owed && !flight.stamps.has_no_payload();
        let fate = link.offer(self.now, flight, self.packets.get(id));
        let wait = link.newest_wait();
        let was_late = fate.removal() == Some(Removal::Late);
        let arrives = matches!(fate, Fate::Carried { removal: None });
        if counts && !arrives && !was_late {
            self.accounts.owed_lost += self.fabric.receivers(number, source, target);
        }
        let removal = match fate {
            Fate::Carried { removal } => {
                self.agenda.set(number, link.next());
                removal
            }
            Fate::Dropped => {
                self.accounts.queue_dropped += 1;
                self.packets.release(id);
                return;
            }
            Fate::Lost { removal } => {
                self.accounts.link_lost += 1;
                self.packets.release(id);
                removal
            }
        };
        let host = number.checked_sub(self.fabric.hosts);
        if host.is_some_and(|host| (self.from_host..self.fabric.hosts).contains(&host)) {
            self.waits.saturating_record(wait.as_ns());
        }
        match removal {
            Some(Removal::Trimmed) => self.accounts.trimmed += 1,
            Some(Removal::Late) => self.accounts.late += 1,
            None => {}
        }
    }
}

/// Link `number` of a fabric. The seed and its number determine its random numbers.
fn link(config: &NetworkConfig, fabric: &Fabric, seed: u64, number: u32) -> Link {
    let role = fabric.role(number);
    let rate = match (role, config.topology) {
        (
            Role::Trunk,
            Topology::LeafSpine {
                hosts_per_leaf,
                spines,
            },
        ) => config
            .rate
            .max(config.rate * u64::from(hosts_per_leaf) / u64::from(spines)),
        _ => config.rate_of(number % fabric.hosts),
    };
    let [depth, trim, mark] =
        [config.queue, config.trim, config.mark].map(|bytes| Ps::to_send(bytes, rate));
    let port = Port { depth, trim, mark };
    let mut link = Link::new(rate, config.delay, (role != Role::Up).then_some(port));
    let random = |purpose: u64| {
        let link = u64::from(number) << 8 | purpose;
        Xoshiro256PlusPlus::seed_from_u64(seed ^ link.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    };
    if role != Role::Trunk
        && let Some(sampler) = config.jitter.and_then(JitterSampler::new)
    {
        link.set_jitter(sampler, random(4));
    }
    if role == Role::Down {
        if let Some(loss) = &config.loss {
            let mut random = random(1);
            let process = LossProcess::new(loss.clone(), &mut random);
            link.set_loss(process, random);
        }
        if config.cross > 0.0 {
            link.set_bursts(Bursts::new(config.cross, config.burst, random(2)));
        }
        if let Some(Background {
            flow,
            calibration: Some(calibration),
            ..
        }) = config.background
        {
            let background = ultima_link::Background {
                share: calibration.load,
                flow,
                lengths: FlowLengths::Exponential,
            };
            let (byte_time, mut random) = (8e12 / rate as f64, random(3));
            if let Some(flows) = Flows::new(background, byte_time, 0, &mut random) {
                link.set_flows(flows, random);
            }
        }
    }
    link
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Group, Packet};

    /// Host 0 sends `packets` to `target` at once. Counts the received packets, and the time of the last.
    struct OneFlow {
        packets: u32,
        target: Target,
        came: Vec<u32>,
        last: Ps,
    }

    impl Hosts for OneFlow {
        type Body = ();

        fn receive(&mut self, net: &mut Network<()>, host: u32, _: Stamps, (): ()) {
            self.came[host as usize] += 1;
            self.last = net.now();
        }

        fn woken(&mut self, net: &mut Network<()>, host: u32) {
            for _ in 0..self.packets {
                let packet = Packet {
                    source: host,
                    target: self.target,
                    frame: 1000,
                    head: None,
                    is_owed: true,
                    body: (),
                };
                net.send(packet, Ticks::MAX);
            }
        }

        fn alarmed(&mut self, net: &mut Network<()>) {
            net.wake(0, net.now());
        }
    }

    /// Links of 8 Gb/s (a byte in a nanosecond) and 5 ns.
    fn flow(topology: Topology, packets: u32, target: Target) -> (OneFlow, Network<()>) {
        let config = NetworkConfig {
            topology,
            rate: 8_000_000_000,
            delay: Ps(5_000),
            jitter: None,
            queue: 1 << 20,
            trim: 1 << 20,
            mark: 1 << 20,
            loss: None,
            cross: 0.0,
            burst: Ps::ZERO,
            background: None,
            slow: None,
        };
        let mut net = Network::new(&config, 6, 1);
        let mut hosts = OneFlow {
            packets,
            target,
            came: vec![0; 6],
            last: Ps::ZERO,
        };
        net.alarm(Ps(7_000));
        net.run(&mut hosts);
        (hosts, net)
    }

    #[test]
    fn one_flow_takes_its_bytes_and_the_path() {
        // All packets follow each other; the switch receives the last one whole before it forwards it.
        let (hosts, net) = flow(Topology::Star, 100, Target::Host(4));
        assert_eq!(hosts.came, [0, 0, 0, 0, 100, 0]);
        assert_eq!(hosts.last.as_ns(), 7 + 100 * 1000 + 5 + 1000 + 5);
        assert_eq!(net.longest_wait(), Ps::ZERO);
        // Two more trunks, twice as fast as a host's link.
        let two = Topology::LeafSpine {
            hosts_per_leaf: 2,
            spines: 1,
        };
        let (hosts, _) = flow(two, 100, Target::Host(4));
        assert_eq!(
            hosts.last.as_ns(),
            7 + 100 * 1000 + 5 + 2 * (500 + 5) + 1000 + 5
        );
    }

    #[test]
    fn switches_copy_for_the_group_and_every_copy_is_counted() {
        let (hosts, net) = flow(Topology::Star, 3, Target::Group(Group::all(6)));
        assert_eq!(hosts.came, [0, 3, 3, 3, 3, 3]);
        let accounts = net.accounts();
        let counts = [accounts.sent, accounts.copied, accounts.delivered];
        assert_eq!(counts, [3, 12, 15]);
        assert_eq!((accounts.in_flight(), net.most_packets()), (0, 3));
        assert_eq!(hosts.last.as_ns(), 7 + 3 * 1000 + 5 + 1000 + 5);
    }
}
