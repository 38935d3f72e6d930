//! A packet's path through the switch: ingress, the decision at its end, egress.
//!
//! The order of decisions is simple_switch's: clone; then resubmit, or else multicast, or else
//! drop, or else one copy to `egress_spec`; after egress clone, then drop, or else recirculate, or
//! else send.

use std::sync::Arc;

use super::action::{Machine, Verdict};
use super::clone::{Egress, Ingress, replicate};
use super::code::{Address, Shared};
use super::family::Family;
use super::octets::plural;
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

impl End {
    fn dropped(cause: DropCause) -> End {
        End::Done(IngressOutcome::Dropped(cause))
    }
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
            let again = match start.kind {
                InstanceType::Resubmitted => "resubmitted",
                _ => "recirculated",
            };
            match start.port {
                Some(port) => recorder.note(1, format_args!("ingress from port {port}")),
                None => recorder.note(1, format_args!("{again}: ingress again, {bytes}")),
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
            Err(cause) => return End::dropped(self.discard(phv, cause)),
        };
        let payload = &frame[parsed..];
        let start = self.program.code.starts.ingress;
        let ran = self.run(start, &mut phv, &mut verdict, payload, now_us, |_, _| ());
        if let Err(cause) = ran {
            return End::dropped(self.discard(phv, cause));
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
                return End::dropped(self.discard(phv, DropCause::EmptyGroup));
            }
            let admitted = self.admit_copies(&mut family, wanted);
            if admitted == 0 {
                return End::dropped(self.discard(phv, DropCause::DescendantLimit));
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
            let packet = self.share(phv, verdict, (frame, parsed), family);
            let replicas = &self.pre.group(group).unwrap_or_default()[..admitted];
            let order = (Origin::Multicast { group }, priority);
            replicate(replicas, &packet, order, &mut self.state.trace, copies);
            return End::Done(IngressOutcome::Forwarded);
        }
        let port = standard.egress_spec.get(&phv) as u16;
        if port == DROP_PORT {
            return End::dropped(self.discard(phv, DropCause::Program));
        }
        if self.admit_copies(&mut family, 1) == 0 {
            return End::dropped(self.discard(phv, DropCause::DescendantLimit));
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
        let packet = self.share(phv, verdict, (frame, parsed), family);
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

    /// Records that a packet is dropped, and keeps its header vector for others.
    fn discard(&mut self, phv: Phv, cause: DropCause) -> DropCause {
        if let Some(recorder) = &mut self.state.trace {
            recorder.dropped(cause);
        }
        self.release(phv);
        cause
    }

    /// Parses the frame and verifies its checksums. Returns the bytes of the parsed headers.
    pub(super) fn parse_into(
        &mut self,
        phv: &mut Phv,
        verdict: &mut Verdict,
        frame: &[u8],
        now_us: u64,
    ) -> Result<usize, DropCause> {
        let start = self.program.code.starts.parser;
        let run = |Program { standard, .. }: &Program, machine: &mut Machine| {
            let (error, wrong) = (machine.parser_error.into(), u64::from(!machine.correct));
            standard.parser_error.set(machine.phv, error);
            standard.checksum_error.set(machine.phv, wrong);
            machine.context.parsed
        };
        self.run(start, phv, verdict, frame, now_us, run)
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
        let context = program.code.context(state, payload, verdict.ingress_length);
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
            context,
            parser_error: program.parser.errors.no_error,
            correct: true,
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
        mut copy: Copy,
        queue: QueueInfo,
        now_us: u64,
        out: &mut Vec<u8>,
        clones: &mut Vec<Copy>,
    ) -> EgressOutcome {
        let outcome = self.egress_pass(&mut copy, queue, now_us, out, clones);
        self.recycle(copy.packet);
        outcome
    }

    fn egress_pass(
        &mut self,
        copy: &mut Copy,
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
        standard.enq_qdepth.set(&mut phv, queue.enq_qdepth.into());
        standard
            .deq_timedelta
            .set(&mut phv, queue.deq_timedelta_us.into());
        standard.deq_qdepth.set(&mut phv, queue.deq_qdepth.into());
        standard.qid.set(&mut phv, copy.priority.into());
        standard.egress_rid.set(&mut phv, copy.rid.into());
        standard.egress_port.set(&mut phv, copy.port.into());
        // Anything but the port that drops, as simple_switch has it.
        standard.egress_spec.set(&mut phv, u64::from(DROP_PORT) + 1);
        standard.packet_length.set(&mut phv, verdict.length.into());

        let payload = packet.payload();
        let start = self.program.code.starts.egress;
        let ran = self.run(start, &mut phv, &mut verdict, payload, now_us, |_, _| ());
        if let Err(cause) = ran {
            return EgressOutcome::Dropped(self.discard(phv, cause));
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
            return EgressOutcome::Dropped(self.discard(phv, DropCause::Program));
        }
        let start = self.program.code.starts.deparser;
        let emit = |program: &Program, machine: &mut Machine| program.deparser.emit(machine, out);
        let deparsed = self.run(start, &mut phv, &mut verdict, payload, now_us, emit);
        if let Err(cause) = deparsed {
            return EgressOutcome::Dropped(self.discard(phv, cause));
        }
        let headers = out.len();
        Packet::complete(&mut copy.packet, out);
        let whole = out.len();
        // Recirculated packets are not truncated, as in BMv2.
        if let (Some(bytes), None) = (verdict.truncate, verdict.recirculate) {
            out.truncate(bytes as usize);
        }
        if let Some(recorder) = &mut self.state.trace {
            let (payload, cut) = (whole - headers, whole - out.len());
            let (layout, headers) = (&self.program.layout, self.program.deparser.headers());
            let valid = headers.filter(|header| phv.is_valid(*header));
            recorder.deparsed(layout, valid, payload, cut, out);
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
                family: copy.packet.family.join(),
            };
            return EgressOutcome::Recirculated(self.enter(start, now_us, clones));
        }
        self.release(phv);
        EgressOutcome::Sent
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
        (frame, parsed): (&[u8], usize),
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
        shared.parsed = parsed;
        shared.frame.clear();
        shared.frame.extend_from_slice(frame);
        self.release(phv);
        packet
    }

    /// Keeps the buffers of a packet's last copy for later packets.
    fn recycle(&mut self, mut packet: Arc<Packet>) {
        if self.packets.len() < MAX_POOL
            && Arc::get_mut(&mut packet).is_some_and(|p| p.frame.capacity() <= MAX_KEPT)
        {
            self.packets.push(packet);
        }
    }
}

impl Packet {
    /// The bytes behind the parsed headers.
    fn payload(&self) -> &[u8] {
        &self.frame[self.parsed..]
    }

    /// Puts the payload behind the headers in `out`. The last copy gives its frame away, if they are as long as those that were parsed.
    fn complete(packet: &mut Arc<Packet>, out: &mut Vec<u8>) {
        match Arc::get_mut(packet) {
            Some(last) if last.parsed == out.len() => {
                last.frame[..out.len()].copy_from_slice(out);
                std::mem::swap(&mut last.frame, out);
            }
            _ => out.extend_from_slice(packet.payload()),
        }
    }
}

/// Largest number of header vectors, and of packets, kept for reuse.
const MAX_POOL: usize = 4096;
const MAX_KEPT: usize = 1 << 14;
