//! A schedule's messages over TCP as in Linux: SACK, RACK and TLP, CUBIC, delayed acknowledgements.
//!
//! | file | content |
//! | --- | --- |
//! | `connection.rs` | one direction of a connection, with both ends and its messages |
//! | `sender.rs`, `cubic.rs` | scoreboard, loss detection and timers; the congestion window |
//! | `receiver.rs` | selective and delayed acknowledgements |

mod connection;
mod cubic;
mod receiver;
mod sender;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;
use ultima_wire::Ticks;

use crate::clock::Ps;
use crate::network::{Hosts, Network};
use crate::operations::Operations;
use crate::packet::{Packet, Stamps, Target};
use crate::schedule::{Message, Schedule};
use crate::stages::Stages;
use crate::stages::TRAIN;
use connection::Connection;
use receiver::Ack;
use sender::{Next, Sender};

/// Ethernet, IPv4 and TCP headers, with timestamps.
pub(crate) const HEADERS: u32 = 14 + 20 + 32;
/// The receive window: Linux's default for `net.ipv4.tcp_rmem`'s maximum, 6 MiB.
const RECEIVE_WINDOW: u64 = 6 << 20;

/// A packet's content.
#[derive(Clone, Copy)]
pub(crate) enum Segment {
    Data {
        connection: u32,
        number: u32,
        sent_at: Ps,
        /// True if the receiver acknowledges it at once: the last of a message (Linux, when the application has
        /// read all), a retransmission or a probe (Linux's quick acknowledgement after idle time).
        push: bool,
    },
    Acknowledgement {
        connection: u32,
        ack: Ack,
    },
}

/// Parameters of the modelled TCP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TcpConfig {
    /// Bytes of a message per segment.
    pub(crate) segment: u64,
    pub(crate) min_rto: Ps,
}

/// One host's state.
#[derive(Default)]
struct Host {
    /// Connections that may have a segment to send, served round-robin.
    ready: VecDeque<u32>,
    /// Messages that have not started, by time and order.
    starts: BinaryHeap<Reverse<(Ps, u64, Message)>>,
    /// Lower bounds of connections' timers. A later one is added again.
    timers: BinaryHeap<Reverse<(Ps, u32)>>,
    /// Its start of the current operation. Earlier messages are stored and answered then.
    begins: Ps,
    /// True if it has the current operation's result.
    is_done: bool,
}

/// All ranks of a schedule.
pub(crate) struct Tcp<'a> {
    schedule: Box<dyn Schedule>,
    config: TcpConfig,
    stages: Stages,
    operations: Operations<'a>,
    operation: u32,
    hosts: Vec<Host>,
    connections: Vec<State>,
    by_pair: FxHashMap<(u32, u32), u32>,
    /// Number of messages so far, which orders those of one time.
    messages: u64,
    outbox: Vec<Message>,
}

struct State {
    connection: Connection,
    /// True if it is in its host's `ready`.
    is_ready: bool,
    /// The earliest of its times in `timers`.
    timer: Ps,
}

impl<'a> Tcp<'a> {
    pub(crate) fn new(
        schedule: Box<dyn Schedule>,
        ranks: u32,
        config: TcpConfig,
        stages: Stages,
        operations: Operations<'a>,
    ) -> Self {
        Self {
            schedule,
            config,
            stages,
            operations,
            operation: 0,
            hosts: (0..ranks).map(|_| Host::default()).collect(),
            connections: Vec::new(),
            by_pair: FxHashMap::default(),
            messages: 0,
            outbox: Vec::new(),
        }
    }

    pub(crate) fn into_operations(self) -> Operations<'a> {
        self.operations
    }

    fn connection(&mut self, from: u32, to: u32) -> u32 {
        let next = self.connections.len() as u32;
        let number = *self.by_pair.entry((from, to)).or_insert(next);
        if number == next {
            let room = RECEIVE_WINDOW.div_ceil(self.config.segment) as u32;
            // A handshake is a message of headers in each direction.
            let rtt = Ps(2 * self.stages.usual(HEADERS.into()).0);
            let sender = Sender::new(room, rtt, self.config.min_rto);
            self.connections.push(State {
                connection: Connection::new(from, to, sender),
                is_ready: false,
                timer: Ps::NEVER,
            });
        }
        number
    }

    /// Schedules the messages in `outbox` for when their senders are ready.
    fn launch(&mut self, now: Ps) {
        for message in self.outbox.drain(..) {
            let Message {
                from, stage, bytes, ..
            } = message;
            let before = self.stages.before(self.operation, stage, from, bytes);
            self.messages += 1;
            let host = &mut self.hosts[from as usize];
            let start = (now.max(host.begins) + before, self.messages, message);
            host.starts.push(Reverse(start));
        }
    }

    /// Sends `host`'s packets, and schedules the next call.
    fn advance(&mut self, net: &mut Network<Segment>, host: u32) {
        let now = net.now();
        self.finish(net, host);
        while let Some(Reverse((at, _, message))) = self.hosts[host as usize].starts.peek().copied()
        {
            if at > now {
                break;
            }
            self.hosts[host as usize].starts.pop();
            let number = self.connection(message.from, message.to);
            let state = &mut self.connections[number as usize];
            state.connection.queue(message, self.config.segment);
            self.make_ready(host, number);
        }
        let train = Ps::to_send(TRAIN, self.stages.rate);
        while net.sent_by(host) < now + train {
            let Some(number) = self.hosts[host as usize].ready.pop_front() else {
                break;
            };
            let state = &mut self.connections[number as usize];
            state.is_ready = false;
            if state.connection.can_send() {
                let next = state.connection.take_next(now);
                self.send_data(net, number, next);
                self.make_ready(host, number);
            }
        }
        let Host {
            ready,
            starts,
            timers,
            begins,
            ..
        } = &self.hosts[host as usize];
        let start = starts.peek().map_or(Ps::NEVER, |Reverse(start)| start.0);
        let timer = timers.peek().map_or(Ps::NEVER, |Reverse(timer)| timer.0);
        let room = match ready.is_empty() {
            true => Ps::NEVER,
            false => net.sent_by(host),
        };
        let begins = Some(*begins).filter(|begins| *begins > now);
        net.wake(
            host,
            start.min(timer).min(room).min(begins.unwrap_or(Ps::NEVER)),
        );
    }

    /// Checks if `host` has its result, after a message or its start.
    fn finish(&mut self, net: &mut Network<Segment>, host: u32) {
        let state = &mut self.hosts[host as usize];
        if !state.is_done && state.begins <= net.now() && self.schedule.is_done(host) {
            state.is_done = true;
            self.operations.ended(net, host);
        }
    }

    fn make_ready(&mut self, host: u32, number: u32) {
        let state = &mut self.connections[number as usize];
        if state.connection.can_send() && !std::mem::replace(&mut state.is_ready, true) {
            self.hosts[host as usize].ready.push_back(number);
        }
    }

    fn send_data(&mut self, net: &mut Network<Segment>, number: u32, next: Next) {
        let connection = &self.connections[number as usize].connection;
        let bytes = connection.bytes(next.number, self.config.segment);
        let body = Segment::Data {
            connection: number,
            number: next.number,
            sent_at: net.now(),
            push: next.urgent || connection.ends_message(next.number),
        };
        let frame = HEADERS + bytes as u32;
        net.send(
            packet(connection.from, connection.to, frame, body),
            Ticks::MAX,
        );
        self.set_timer(number);
    }

    /// Adds a time to `timers` that is not later than the connection's own.
    fn set_timer(&mut self, number: u32) {
        let state = &mut self.connections[number as usize];
        let deadline = state.connection.deadline();
        if deadline < state.timer {
            state.timer = deadline;
            let timers = &mut self.hosts[state.connection.from as usize].timers;
            timers.push(Reverse((deadline, number)));
        }
    }

    /// Handles the timers that have expired.
    fn time_out(&mut self, now: Ps, host: u32) {
        while let Some(&Reverse((at, number))) = self.hosts[host as usize].timers.peek() {
            if at > now {
                return;
            }
            self.hosts[host as usize].timers.pop();
            let state = &mut self.connections[number as usize];
            if state.timer == at {
                state.timer = Ps::NEVER;
            }
            if state.connection.deadline() <= now {
                state.connection.time_out(now);
                self.make_ready(host, number);
            }
            self.set_timer(number);
        }
    }

    /// Passes the complete messages of a connection to the schedule.
    fn deliver(&mut self, net: &mut Network<Segment>, number: u32) {
        let to = self.connections[number as usize].connection.to;
        while let Some(message) = self.connections[number as usize]
            .connection
            .received_message()
        {
            self.schedule.received(&message, &mut self.outbox);
        }
        self.launch(net.now());
        self.finish(net, to);
    }
}

fn packet(source: u32, to: u32, frame: u32, body: Segment) -> Packet<Segment> {
    Packet {
        source,
        target: Target::Host(to),
        frame,
        head: None,
        is_owed: false,
        body,
    }
}

impl Hosts for Tcp<'_> {
    type Body = Segment;

    fn receive(&mut self, net: &mut Network<Segment>, host: u32, _: Stamps, body: Segment) {
        match body {
            Segment::Data {
                connection: number,
                number: segment,
                sent_at,
                push,
            } => {
                let connection = &mut self.connections[number as usize].connection;
                if let Some(ack) = connection.receive(segment, sent_at, push) {
                    let frame = HEADERS + ack.option();
                    let body = Segment::Acknowledgement {
                        connection: number,
                        ack,
                    };
                    net.send(packet(host, connection.from, frame, body), Ticks::MAX);
                }
                self.deliver(net, number);
            }
            Segment::Acknowledgement {
                connection: number,
                ack,
            } => {
                let connection = &mut self.connections[number as usize].connection;
                connection.acknowledge(net.now(), &ack);
                self.set_timer(number);
                self.make_ready(host, number);
            }
        }
        self.advance(net, host);
    }

    fn woken(&mut self, net: &mut Network<Segment>, host: u32) {
        self.time_out(net.now(), host);
        self.advance(net, host);
    }

    fn alarmed(&mut self, net: &mut Network<Segment>) {
        self.operation = self.operations.begin(net);
        for (rank, host) in (0..).zip(&mut self.hosts) {
            host.begins = self.operations.begins(rank);
            host.is_done = false;
        }
        self.schedule.begin(&mut self.outbox);
        self.launch(net.now());
        for host in 0..net.hosts() {
            self.advance(net, host);
        }
    }
}
