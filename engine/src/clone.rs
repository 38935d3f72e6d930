//! Clones: copies for the replicas of a clone session, in addition to the packet itself.

use std::sync::Arc;

use super::action::Verdict;
use super::family::Family;
use super::phv::Phv;
use super::pre::Replica;
use super::standard::InstanceType;
use super::trace::{Origin, Recorder};
use super::{Copy, Engine, Packet};

/// A packet at the end of ingress.
pub(super) struct Ingress<'a> {
    pub phv: &'a Phv,
    pub verdict: &'a Verdict,
    /// As it arrived.
    pub frame: &'a [u8],
    pub now_us: u64,
}

/// A packet at the end of egress.
pub(super) struct Egress<'a> {
    pub phv: &'a Phv,
    pub verdict: &'a Verdict,
    /// The frame behind the parsed headers.
    pub payload: &'a [u8],
}

/// A session's orders for its clones.
struct Orders {
    session: u32,
    /// The number of replicas within the limits.
    replicas: usize,
    priority: u8,
    truncate: Option<u32>,
}

impl Engine {
    /// Clones the packet from ingress: the packet as it arrived, parsed again, with the kept fields as they
    /// are at the end of ingress.
    pub(super) fn clone_ingress(
        &mut self,
        (session, fields): (u32, usize),
        ingress: Ingress<'_>,
        family: &mut Family,
        copies: &mut Vec<Copy>,
    ) {
        let verdict = ingress.verdict;
        let Some(orders) = self.orders(session, verdict.passes, family) else {
            return;
        };
        let mut copy = self.acquire();
        let length = verdict.ingress_length;
        let standard = &self.program.standard;
        let port = standard.ingress_port.get(ingress.phv);
        standard.ingress_port.set(&mut copy, port);
        let mut fresh = Verdict {
            ingress_length: length,
            length,
            passes: verdict.passes,
            truncate: orders.truncate,
            ..Verdict::default()
        };
        // The parser passed the same frame a moment ago: it can fail only for what it reads from
        // metadata.
        let recorder = self.state.trace.take();
        let parsed = self.parse_into(&mut copy, &mut fresh, ingress.frame, ingress.now_us);
        self.state.trace = recorder;
        let Ok(parsed) = parsed else {
            return self.release(copy);
        };
        copy.reset_metadata(&self.program.layout);
        copy.keep(&self.program.field_lists[fields], ingress.phv);
        let kind = InstanceType::IngressClone as u64;
        self.program.standard.instance_type.set(&mut copy, kind);
        fresh.exit = false;
        let packet = self.share(copy, fresh, (ingress.frame, parsed), family.join());
        self.order_clones(&orders, &packet, copies);
    }

    /// Clones from egress are the packet as it is, with fresh metadata but for the kept fields.
    pub(super) fn clone_egress(
        &mut self,
        (session, fields): (u32, usize),
        egress: Egress<'_>,
        mut family: Family,
        clones: &mut Vec<Copy>,
    ) {
        let verdict = egress.verdict;
        let passes = verdict.passes + 1;
        let Some(orders) = self.orders(session, passes, &mut family) else {
            return;
        };
        let mut copy = self.duplicate(egress.phv);
        copy.reset_metadata(&self.program.layout);
        copy.keep(&self.program.field_lists[fields], egress.phv);
        let kind = InstanceType::EgressClone as u64;
        self.program.standard.instance_type.set(&mut copy, kind);
        let fresh = Verdict {
            ingress_length: verdict.ingress_length,
            length: verdict.length,
            passes,
            truncate: orders.truncate,
            ..Verdict::default()
        };
        let packet = self.share(copy, fresh, (egress.payload, 0), family);
        self.order_clones(&orders, &packet, clones);
    }

    /// Returns the orders for clones of this pass, or `None` if the session does not exist or has no replicas, or if the limits
    /// are reached.
    fn orders(&mut self, session: u32, passes: u32, family: &mut Family) -> Option<Orders> {
        let Some(found) = self.pre.session(session) else {
            if let Some(recorder) = &mut self.state.trace {
                recorder.note(2, format_args!("no clone session {session}: no clone"));
            }
            return None;
        };
        // A session's length limit; 0 stands for none.
        let truncate = Some(found.packet_length_bytes).filter(|bytes| *bytes != 0);
        let priority = found.class_of_service;
        let wanted = found.replicas.len();
        let replicas = if passes > self.limits.passes {
            self.over_limit += wanted as u64;
            0
        } else {
            self.admit_copies(family, wanted)
        };
        if let Some(recorder) = &mut self.state.trace
            && replicas < wanted
        {
            let replicas = wanted - replicas;
            recorder.note(2, format_args!("clones refused at the limits: {replicas}"));
        }
        (replicas > 0).then_some(Orders {
            session,
            replicas,
            priority,
            truncate,
        })
    }

    fn order_clones(&mut self, orders: &Orders, packet: &Arc<Packet>, copies: &mut Vec<Copy>) {
        let session = orders.session;
        if let Some(found) = self.pre.session(session) {
            let order = (Origin::Clone { session }, orders.priority);
            let replicas = &found.replicas[..orders.replicas];
            replicate(replicas, packet, order, &mut self.state.trace, copies);
        }
    }
}

/// Orders a copy for every replica, with where it comes from and its priority; the last replica first, as
/// BMv2 does, which shows where several go to one port.
pub(super) fn replicate(
    replicas: &[Replica],
    packet: &Arc<Packet>,
    (origin, priority): (Origin, u8),
    trace: &mut Option<Box<Recorder>>,
    copies: &mut Vec<Copy>,
) {
    let len = packet.verdict.sent_length();
    copies.extend(replicas.iter().rev().map(|replica| Copy {
        port: replica.port,
        rid: replica.rid,
        priority,
        len,
        mark: match trace {
            Some(recorder) => recorder.order(replica.port, replica.rid, origin),
            None => None,
        },
        packet: packet.clone(),
    }));
}

impl Verdict {
    /// Bytes that the queue counts: no more than what truncation leaves.
    fn sent_length(&self) -> u32 {
        self.truncate
            .map_or(self.length, |longest| self.length.min(longest))
    }
}
