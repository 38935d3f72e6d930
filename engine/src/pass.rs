//! A packet's path through the switch: ingress, the decision at its end, egress.
//!
//! The order of decisions is simple_switch's: clone; then resubmit, or else multicast, or else
//! drop, or else one copy to `egress_spec`; after egress clone, then drop, or else recirculate, or
//! else send.

use std::sync::Arc;

use super::action::{Machine, Verdict};
use super::clone::{Egress, Ingress, replicate};
use super::code::{Address, NOWHERE, Shared};
use super::family::Family;
use super::octets::plural;
use super::parser::Parsed;
use super::phv::Phv;
use super::pre::Replica;
use super::standard::{DROP_PORT, InstanceType};
use super::trace::{Origin, Recorder};
use super::{Copy, DropCause, EgressOutcome, Engine, IngressOutcome, Packet, Program, QueueInfo};

/// The state with which a packet starts ingress.
struct Start<'a> {
    frame: &'a [u8],
    /// `None` after resubmit and recirculate, where simple_switch leaves the metadata empty.
    port: Option<u16>,
    kind: InstanceType,
    /// A header vector whose fields of the given list are kept.
    kept: Option<(Phv, usize)>,
    passes: u32,
    family: Family,
}

/// The end of one pass through ingress.
enum End {
    Done(IngressOutcome),
    Resubmit {
        phv: Phv,
        fields: usize,
        family: Family,
    },
}

impl Engine {
    /// Starts recording.
    pub fn record(&mut self, mut recorder: Box<Recorder>) {
        recorder.symbols = self.program.symbols.clone();
        self.state.trace = Some(recorder);
    }

    /// Returns the active recorder.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.state.trace.as_deref_mut()
    }

    /// Ends recording and returns the recorder of [`Engine::record`].
    pub fn recorded(&mut self) -> Option<Box<Recorder>> {
        self.state.trace.take()
    }
}

impl Engine {
    /// Runs parser and ingress for a frame that enters at `port`, `now_us` microseconds after the switch started. Appends copies
    /// to `copies`.
    pub fn ingress(
        &mut self,
        port: u16,
        frame: &[u8],
        now_us: u64,
        copies: &mut Vec<Copy>,
    ) -> IngressOutcome {
        let kind = InstanceType::Normal;
        let start = Start {
            frame,
            port: Some(port),
            kind,
            kept: None,
            passes: 0,
            family: Family::default(),
        };
        self.enter(start, now_us, copies)
    }

    fn enter(&mut self, mut start: Start, now_us: u64, copies: &mut Vec<Copy>) -> IngressOutcome {
        loop {
            if start.passes > 0
                && let Err(cause) = self.admit_pass(&mut start)
            {
                if let Some((phv, _)) = start.kept {
                    self.release(phv);
                }
                if let Some(recorder) = &mut self.state.trace {
                    recorder.dropped(cause);
                }
                return IngressOutcome::Dropped(cause);
            }
            let (frame, passes) = (start.frame, start.passes);
            match self.ingress_pass(start, now_us, copies) {
                End::Done(outcome) => return outcome,
                End::Resubmit {
                    phv,
                    fields,
                    family,
                } => {
                    let (kind, kept) = (InstanceType::Resubmitted, Some((phv, fields)));
                    start = Start {
                        frame,
                        port: None,
                        kind,
                        kept,
                        passes: passes + 1,
                        family,
                    };
                }
            }
        }
    }

    /// Checks that a packet may pass ingress again.
    fn admit_pass(&mut self, start: &mut Start) -> Result<(), DropCause> {
        let cause = if start.passes > self.limits.passes {
            DropCause::PassLimit
        } else if start.family.admit(1, self.limits.descendants) == 0 {
            DropCause::DescendantLimit
        } else {
            return Ok(());
        };
        self.over_limit += 1;
        Err(cause)
    }

    /// Returns how many of the wanted copies the limits allow.
    pub(super) fn admit_copies(&mut self, family: &mut Family, wanted: usize) -> usize {
        // Groups and sessions have few replicas, `Limits::replicas`.
        let wanted = wanted as u32;
        let admitted = family.admit(wanted, self.limits.descendants);
        self.over_limit += u64::from(wanted - admitted);
        admitted as usize
    }

    fn ingress_pass(&mut self, start: Start, now_us: u64, copies: &mut Vec<Copy>) -> End {
        let frame = start.frame;
        let mut family = start.family;
        let length = frame.len() as u32;
        if let Some(recorder) = &mut self.state.trace {
            let bytes = plural(frame.len() as u64, "byte");
            match (start.kind, start.port) {
                (InstanceType::Resubmitted, _) => {
                    recorder.note(1, format_args!("resubmitted: ingress again, {bytes}"));
                }
                (InstanceType::Recirculated, _) => {
                    recorder.note(1, format_args!("recirculated: ingress again, {bytes}"));
                }
                (_, Some(port)) => recorder.note(1, format_args!("ingress from port {port}")),
                (_, None) => recorder.note(1, format_args!("ingress")),
            }
        }
        let mut phv = self.acquire();
        let standard = &self.program.standard;
        if let Some((kept, fields)) = &start.kept {
            phv.keep(&self.program.field_lists[*fields], kept);
        }
        if let Some(port) = start.port {
            standard.ingress_port.set(&mut phv, u64::from(port));
            standard.ingress_global_timestamp.set(&mut phv, now_us);
        }
        standard.instance_type.set(&mut phv, start.kind as u64);
        standard.packet_length.set(&mut phv, u64::from(length));
        if let Some((kept, _)) = start.kept {
            self.release(kept);
        }

        let mut verdict = Verdict {
            ingress_length: length,
            length,
            passes: start.passes,
            ..Verdict::default()
        };
        let parsed = match self.parse_into(&mut phv, &mut verdict, frame, now_us) {
            Ok(parsed) => parsed,
            Err(cause) => return self.end(phv, IngressOutcome::Dropped(cause)),
        };
        let payload = &frame[parsed.bytes..];
        let start = self.program.code.starts.ingress;
        let ran = self.run(start, &mut phv, &mut verdict, payload, now_us, |_, _| ());
        if let Err(cause) = ran {
            return self.end(phv, IngressOutcome::Dropped(cause));
        }
        verdict.exit = false;
        verdict.jumps = 0;

        if let Some(clone) = verdict.clone.take() {
            let ingress = Ingress {
                phv: &phv,
                verdict: &verdict,
                frame,
                now_us,
            };
            self.clone_ingress(clone, ingress, &mut family, copies);
        }
        if let Some(fields) = verdict.resubmit {
            return End::Resubmit {
                phv,
                fields,
                family,
            };
        }
        let standard = &self.program.standard;
        let group = standard.mcast_grp.get(&phv) as u32;
        if group != 0 {
            let kind = InstanceType::Replica as u64;
            standard.instance_type.set(&mut phv, kind);
            // In v1model, truncation in ingress has no effect on replicas.
            verdict.truncate = None;
            let priority = standard.priority.get(&phv) as u8;
            let wanted = self.pre.group(group).map_or(0, <[Replica]>::len);
            if wanted == 0 {
                return self.end(phv, IngressOutcome::Dropped(DropCause::EmptyGroup));
            }
            let admitted = self.admit_copies(&mut family, wanted);
            if admitted == 0 {
                return self.end(phv, IngressOutcome::Dropped(DropCause::DescendantLimit));
            }
            if let Some(recorder) = &mut self.state.trace
                && admitted < wanted
            {
                let replicas = wanted - admitted;
                recorder.note(
                    2,
                    format_args!("replicas refused at the limit of descendants: {replicas}"),
                );
            }
            let packet = self.share(phv, verdict, payload, family);
            let replicas = &self.pre.group(group).unwrap_or_default()[..admitted];
            let order = (Origin::Multicast { group }, priority);
            replicate(replicas, &packet, order, &mut self.state.trace, copies);
            return End::Done(IngressOutcome::Forwarded);
        }
        let port = standard.egress_spec.get(&phv) as u16;
        if port == DROP_PORT {
            return self.end(phv, IngressOutcome::Dropped(DropCause::Program));
        }
        if self.admit_copies(&mut family, 1) == 0 {
            return self.end(phv, IngressOutcome::Dropped(DropCause::DescendantLimit));
        }
        let standard = &self.program.standard;
        let kind = InstanceType::Normal as u64;
        standard.instance_type.set(&mut phv, kind);
        let priority = standard.priority.get(&phv) as u8;
        let (rid, len) = (standard.egress_rid.get(&phv) as u16, verdict.length);
        let mark = match &mut self.state.trace {
            Some(recorder) => recorder.order(port, rid, Origin::Unicast),
            None => None,
        };
        let packet = self.share(phv, verdict, payload, family);
        copies.push(Copy {
            port,
            rid,
            priority,
            len,
            mark,
            packet,
        });
        End::Done(IngressOutcome::Forwarded)
    }

    fn end(&mut self, phv: Phv, outcome: IngressOutcome) -> End {
        if let (IngressOutcome::Dropped(cause), Some(recorder)) = (outcome, &mut self.state.trace) {
            recorder.dropped(cause);
        }
        self.release(phv);
        End::Done(outcome)
    }

    /// Parses the frame and verifies its checksums.
    pub(super) fn parse_into(
        &mut self,
        phv: &mut Phv,
        verdict: &mut Verdict,
        frame: &[u8],
        now_us: u64,
    ) -> Result<Parsed, DropCause> {
        let start = self.program.code.starts.parser;
        self.run(start, phv, verdict, frame, now_us, |program, machine| {
            let (parsed, standard) = (machine.parsed, &program.standard);
            standard.parser_error.set(machine.phv, parsed.error.into());
            let wrong = u64::from(!machine.correct);
            standard.checksum_error.set(machine.phv, wrong);
            parsed
        })
    }

    /// Runs code from `start` on, then `then`.
    fn run<T>(
        &mut self,
        start: Address,
        phv: &mut Phv,
        verdict: &mut Verdict,
        payload: &[u8],
        now_us: u64,
        then: impl FnOnce(&Program, &mut Machine) -> T,
    ) -> Result<T, DropCause> {
        let Engine {
            program,
            tables,
            profiles,
            state,
            limits,
            ..
        } = self;
        let mut machine = Machine {
            layout: &program.layout,
            calculations: &program.calculations,
            learn_lists: &program.learn_lists,
            errors: &program.parser.errors,
            phv,
            state,
            verdict,
            payload,
            now_us,
            parsed: Parsed {
                bytes: 0,
                error: program.parser.errors.no_error,
            },
            correct: true,
            back: NOWHERE,
            visited: 0,
            max_jumps: limits.action_jumps,
            max_states: limits.parser_states,
        };
        let shared = Shared {
            profiles,
            actions: &program.actions,
            checksums: &program.checksums,
            parser: &program.parser,
        };
        program.code.run(start, tables, shared, &mut machine)?;
        Ok(then(program, &mut machine))
    }

    /// Runs egress and deparser for a copy that leaves its queue. Clears `out` and writes the frame to it. Appends clones and
    /// copies of recirculated packets to `clones`.
    pub fn egress(
        &mut self,
        copy: Copy,
        queue: QueueInfo,
        now_us: u64,
        out: &mut Vec<u8>,
        clones: &mut Vec<Copy>,
    ) -> EgressOutcome {
        let outcome = self.egress_pass(&copy, queue, now_us, out, clones);
        self.recycle(copy.packet);
        outcome
    }

    fn egress_pass(
        &mut self,
        copy: &Copy,
        queue: QueueInfo,
        now_us: u64,
        out: &mut Vec<u8>,
        clones: &mut Vec<Copy>,
    ) -> EgressOutcome {
        out.clear();
        if let Some(recorder) = &mut self.state.trace {
            let stay = queue.deq_timedelta_us;
            let behind = plural(queue.enq_qdepth.into(), "packet");
            recorder.note(
                1,
                format_args!("egress after {stay} us in the queue, behind {behind}"),
            );
        }
        let packet = &*copy.packet;
        let mut verdict = packet.verdict;
        let mut phv = self.acquire_any();
        phv.set_content(&packet.content);
        let standard = &self.program.standard;
        standard.egress_global_timestamp.set(&mut phv, now_us);
        standard.enq_timestamp.set(&mut phv, queue.enq_timestamp_us);
        standard
            .enq_qdepth
            .set(&mut phv, u64::from(queue.enq_qdepth));
        standard
            .deq_timedelta
            .set(&mut phv, u64::from(queue.deq_timedelta_us));
        standard
            .deq_qdepth
            .set(&mut phv, u64::from(queue.deq_qdepth));
        standard.qid.set(&mut phv, u64::from(copy.priority));
        standard.egress_rid.set(&mut phv, u64::from(copy.rid));
        standard.egress_port.set(&mut phv, u64::from(copy.port));
        // Anything but the port that drops, as simple_switch has it.
        standard.egress_spec.set(&mut phv, u64::from(DROP_PORT) + 1);
        standard
            .packet_length
            .set(&mut phv, u64::from(verdict.length));

        let payload = packet.payload.as_slice();
        let start = self.program.code.starts.egress;
        let ran = self.run(start, &mut phv, &mut verdict, payload, now_us, |_, _| ());
        if let Err(cause) = ran {
            return self.end_egress(phv, cause);
        }
        if let Some(clone) = verdict.clone.take() {
            let egress = Egress {
                phv: &phv,
                verdict: &verdict,
                payload,
            };
            self.clone_egress(clone, egress, packet.family.join(), clones);
        }
        if self.program.standard.egress_spec.get(&phv) == u64::from(DROP_PORT) {
            return self.end_egress(phv, DropCause::Program);
        }
        let start = self.program.code.starts.deparser;
        let emit = |program: &Program, machine: &mut Machine| program.deparser.run(machine, out);
        let deparsed = self.run(start, &mut phv, &mut verdict, payload, now_us, emit);
        if let Err(cause) = deparsed {
            return self.end_egress(phv, cause);
        }
        if let Some(fields) = verdict.recirculate {
            let (kind, kept) = (InstanceType::Recirculated, Some((phv, fields)));
            let passes = verdict.passes + 1;
            let start = Start {
                frame: out,
                port: None,
                kind,
                kept,
                passes,
                family: packet.family.join(),
            };
            return EgressOutcome::Recirculated(self.enter(start, now_us, clones));
        }
        self.release(phv);
        EgressOutcome::Sent
    }

    fn end_egress(&mut self, phv: Phv, cause: DropCause) -> EgressOutcome {
        if let Some(recorder) = &mut self.state.trace {
            recorder.dropped(cause);
        }
        self.release(phv);
        EgressOutcome::Dropped(cause)
    }

    /// Returns a header vector in its initial state.
    pub(super) fn acquire(&mut self) -> Phv {
        let mut phv = self.acquire_any();
        // Traces show every field.
        match self.state.trace {
            Some(_) => phv.reset(&self.program.layout),
            None => phv.reset_live(&self.program.layout),
        }
        phv
    }

    /// Returns a header vector with any content.
    fn acquire_any(&mut self) -> Phv {
        let pooled = self.pool.pop();
        pooled.unwrap_or_else(|| Phv::new(&self.program.layout))
    }

    pub(super) fn duplicate(&mut self, phv: &Phv) -> Phv {
        let mut copy = self.acquire_any();
        copy.set_content(phv.content(&self.program.layout));
        copy
    }

    pub(super) fn release(&mut self, phv: Phv) {
        if self.pool.len() < MAX_POOL {
            self.pool.push(phv);
        }
    }

    /// Returns the state that the copies of a packet share.
    pub(super) fn share(
        &mut self,
        phv: Phv,
        verdict: Verdict,
        payload: &[u8],
        family: Family,
    ) -> Arc<Packet> {
        let mut packet = self.packets.pop().unwrap_or_default();
        // A packet of the pool has one owner, so this never clones.
        let shared = Arc::make_mut(&mut packet);
        shared.content.clear();
        shared.content.extend_from_slice(match self.state.trace {
            Some(_) => phv.content(&self.program.layout),
            None => phv.live(&self.program.layout),
        });
        shared.verdict = verdict;
        shared.family = family;
        shared.payload.clear();
        shared.payload.extend_from_slice(payload);
        self.release(phv);
        packet
    }

    /// Keeps the buffers of a packet's last copy for later packets.
    fn recycle(&mut self, mut packet: Arc<Packet>) {
        if self.packets.len() < MAX_POOL
            && Arc::get_mut(&mut packet).is_some_and(|p| p.payload.capacity() <= MAX_KEPT)
        {
            self.packets.push(packet);
        }
    }
}

/// Largest number of header vectors, and of packets, kept for reuse.
const MAX_POOL: usize = 4096;
const MAX_KEPT: usize = 1 << 14;
