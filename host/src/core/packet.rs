//! Parsing, checking and writing of datagrams.

use ultima_wire::{
    Auth, Check, Credit, Dtype, Feedback, Header, HostFlags, Kind, RepairRequest, Report,
    Requested, Sealer, SwitchFlags, Ticks, bitmap,
};

use crate::cause::{Cause, Phase, SlotTrimmed};
use crate::codec::Coding;
use crate::config::Config;
use crate::element::Element;
use crate::layout::Shape;
use crate::operation::OperationId;
use crate::recycling::{Repair, Request};
use crate::stats::Rejection;
use crate::time::Time;
use crate::timeout::SharedTc;

use super::Destination;
use super::batch::Carrier;
use super::check::CheckPacket;
use super::congestion::Queues;
use super::outgoing::Outgoing;

/// A repair request always has room for a bitmap of this many bytes, however small slots are.
const REQUEST_ROOM: usize = 64;

/// The longest datagram of a job.
pub(super) fn max_datagram(config: &Config) -> usize {
    config.header_len()
        + (config.slot_bytes + config.counted_len())
            .max(Feedback::LEN)
            .max(Report::LEN + Check::LEN)
            .max(RepairRequest::PREFIX + REQUEST_ROOM)
}

/// Bytes of the longest bitmap in a repair request.
pub(super) fn request_room(config: &Config) -> usize {
    max_datagram(config) - config.header_len() - RepairRequest::PREFIX
}

/// The fields of a packet for the others' rates and schedules.
pub(super) struct FeedbackFields {
    /// In FEEDBACK: queues that packets to this rank met.
    pub(super) queues: Queues,
    /// In FEEDBACK: true for a notice.
    pub(super) notice: bool,
    /// In FEEDBACK: the time of the packet that it answers, or 0.
    pub(super) echoed: Ticks,
    /// Number of ranks that may send to this one at a time.
    pub(super) incast: u8,
}

/// A datagram that was written.
pub(super) struct Written {
    pub(super) len: usize,
    /// Bytes in the buffer: all, or all before values that stay in their bucket.
    pub(super) head: usize,
}

impl Written {
    pub(super) fn whole(len: usize) -> Self {
        Self { len, head: len }
    }

    pub(super) fn behind(self, start: usize) -> Self {
        Self {
            len: start + self.len,
            head: start + self.head,
        }
    }
}

/// Parses a datagram and checks all that does not depend on its operation: job, ranks, kind, and the maximum
/// length of its payload.
pub(super) fn admit<'a>(
    config: &Config,
    sealer: Option<&mut Sealer>,
    carrier: Carrier,
    datagram: &'a [u8],
) -> Result<(Header, &'a [u8]), Rejection> {
    let (header, payload) = Header::parse(datagram).map_err(|_| Rejection::Malformed)?;
    if header.job != config.job {
        return Err(Rejection::Job);
    }
    if header.epoch != config.epoch {
        return Err(Rejection::Epoch);
    }
    verify(sealer, carrier, &header, datagram)?;
    if header.source >= config.ranks {
        return Err(Rejection::Source);
    }
    // A REPORT is this rank's own PROBE, returned.
    if (header.source == config.rank) != (header.kind == Kind::Report) {
        return Err(match header.kind {
            Kind::Report => Rejection::Source,
            _ => Rejection::Own,
        });
    }
    let (owner, fits) = match header.kind {
        Kind::Scatter => (config.rank, payload.len() <= config.slot_bytes),
        Kind::Gather => (header.source, payload.len() <= longest_aggregate(config)),
        Kind::Repair if config.recycling.is_some() || header.host_flags.exact => {
            (header.source, payload.len() <= longest_aggregate(config))
        }
        Kind::Feedback => {
            let trimmed = cause_of(header.switch_flags).is_some() && payload.is_empty();
            (header.source, trimmed || payload.len() == Feedback::LEN)
        }
        Kind::Control | Kind::Report => (
            header.source,
            payload.len() <= max_datagram(config) - config.header_len(),
        ),
        Kind::Probe | Kind::Repair => return Err(Rejection::Kind),
    };
    if header.owner != owner {
        return Err(Rejection::Owner);
    }
    if !fits {
        return Err(Rejection::Length);
    }
    Ok((header, payload))
}

/// Checks the seal of a packet. Neither a PROBE nor the REPORT that answers it has a tag, because switches
/// have no key.
fn verify(
    sealer: Option<&mut Sealer>,
    carrier: Carrier,
    header: &Header,
    datagram: &[u8],
) -> Result<(), Rejection> {
    let holds = match sealer {
        Some(sealer) if is_sealed(header.kind) => match carrier {
            Carrier::SharedMemory => sealer.verify_header(datagram).is_ok(),
            _ => sealer.verify(datagram).is_ok(),
        },
        _ => header.auth.is_none(),
    };
    holds.then_some(()).ok_or(Rejection::Seal)
}

/// True if packets of this kind carry a tag in a job with a key.
fn is_sealed(kind: Kind) -> bool {
    !matches!(kind, Kind::Probe | Kind::Report)
}

/// This rank's header of `kind` about `owner`'s shard. All other fields are zero except the time. With a key
/// it has room for digest and tag, which [`Sealer::seal`] writes last.
pub(super) fn header(config: &Config, now: Time, kind: Kind, owner: u16) -> Header {
    Header {
        sent_at: Ticks::from_clock_ns(now.as_nanos()),
        auth: (config.key)
            .filter(|_| is_sealed(kind))
            .map(|_| Auth::default()),
        ..Header::new(kind, config.job, config.epoch, config.rank, owner)
    }
}

fn longest_aggregate(config: &Config) -> usize {
    config.slot_bytes + bitmap::len(config.ranks.into())
}

/// The cause of a packet with these flags having no payload. None if it should have one.
pub(super) fn cause_of(flags: SwitchFlags) -> Option<Cause> {
    if flags.late {
        Some(Cause::Late)
    } else {
        flags.trimmed.then_some(Cause::Trimmed)
    }
}

/// The loss that a SCATTER's or GATHER's header without its payload reports.
pub(super) fn slot_trimmed(header: &Header, id: OperationId, cause: Cause) -> SlotTrimmed {
    SlotTrimmed {
        id,
        phase: match header.kind {
            Kind::Scatter => Phase::Scatter,
            _ => Phase::Gather,
        },
        source: header.source,
        owner: header.owner,
        slot: header.slot,
        cause,
        hops: header.switch_flags.hops,
        path_queue: header.path_queue.into(),
    }
}

/// Checks a SCATTER, GATHER or REPAIR, with or without payload, against this rank's layout of its bucket.
pub(super) fn check(
    config: &Config,
    Shape {
        layout,
        coding,
        length_check,
    }: Shape,
    header: &Header,
    payload: &[u8],
) -> Result<(), Rejection> {
    // Checked first: another coding may also change the layout.
    if header.host_flags.hadamard != (coding != Coding::Identity) {
        return Err(Rejection::Coding);
    }
    let slots = layout.slots(header.owner);
    if header.slots != slots || header.slot >= slots {
        return Err(Rejection::Slot);
    }
    if header.length_check != length_check {
        return Err(Rejection::Length);
    }
    if header.dtype != config.element.dtype() {
        return Err(Rejection::Dtype);
    }
    if cause_of(header.switch_flags).is_some() {
        return match payload.len() {
            0 => Ok(()),
            _ => Err(Rejection::Length),
        };
    }
    let values = layout.slot(header.owner, header.slot).len();
    match payload.get(values * config.element.size()..) {
        Some(counted) if fits(config, header, counted) => Ok(()),
        _ => Err(Rejection::Length),
    }
}

/// True if the bytes after an aggregate's elements are a bitmap of as many ranks as it has contributions, or
/// absent where that is allowed.
fn fits(config: &Config, header: &Header, counted: &[u8]) -> bool {
    let ranks = usize::from(config.ranks);
    let incomplete = header.kind != Kind::Scatter && header.contributions < config.ranks;
    if counted.is_empty() {
        return !(incomplete && config.recycling.is_some());
    }
    incomplete
        && counted.len() == bitmap::len(ranks)
        && bitmap::count(counted) == usize::from(header.contributions)
        && bitmap::numbers(counted).all(|rank| rank < ranks)
        && bitmap::contains(counted, header.owner.into())
}

/// True if a checked aggregate includes this rank's contribution, as far as it says.
pub(super) fn counts_us(config: &Config, header: &Header, payload: &[u8]) -> bool {
    let has_bitmap = config.recycling.is_some() && header.contributions < config.ranks;
    let counted = match has_bitmap {
        true => bitmap::len(config.ranks.into()),
        false => 0,
    };
    !has_bitmap || bitmap::contains(&payload[payload.len() - counted..], config.rank.into())
}

/// True if a FEEDBACK says that its sender's packets are all sent.
pub(super) fn is_notice(payload: &[u8]) -> bool {
    Feedback::parse(payload).is_some_and(|feedback| feedback.notice)
}

/// The t_C in a header, and its stage.
pub(super) fn shared_t_c(header: &Header) -> Option<(Phase, SharedTc)> {
    let stage = match (header.kind, header.host_flags.last) {
        (Kind::Scatter, true) | (Kind::Feedback, false) => Phase::Scatter,
        (Kind::Gather | Kind::Feedback, true) => Phase::Gather,
        _ => return None,
    };
    (header.shared_tc != 0).then_some((stage, SharedTc(header.shared_tc)))
}

/// Writes an operation's packet to the front of `buf`, with `counted` after its values.
pub(super) fn write(
    config: &Config,
    now: Time,
    id: OperationId,
    outgoing: &Outgoing<'_>,
    fields: &FeedbackFields,
    counted: &[u8],
    buf: &mut [u8],
) -> Written {
    let Outgoing { packet, values, .. } = outgoing;
    let has_values = packet.kind != Kind::Feedback;
    let header = Header {
        budget: outgoing.budget.into(),
        step: id.step,
        bucket: id.bucket,
        host_flags: HostFlags {
            last: packet.last,
            hadamard: has_values && outgoing.shape.coding != Coding::Identity,
            exact: false,
        },
        length_check: match has_values {
            true => outgoing.shape.length_check,
            false => 0,
        },
        dtype: match has_values {
            true => config.element.dtype(),
            false => Dtype::None,
        },
        slot: packet.slot,
        slots: outgoing.slots,
        contributions: packet.contributions,
        shared_tc: SharedTc::from(outgoing.t_c).0,
        incast: fields.incast,
        echoed: fields.echoed,
        ..header(config, now, packet.kind, packet.owner)
    };
    let start = header.emit(buf);
    let payload = &mut buf[start..];
    if has_values {
        let count = outgoing.range.len();
        return write_values(config.element, *values, count, counted, payload).behind(start);
    }
    let Queues {
        queue,
        marked,
        trimmed,
    } = fields.queues;
    let feedback = Feedback {
        wait: outgoing.remaining.into(),
        queue,
        marked,
        trimmed,
        notice: fields.notice,
    };
    feedback.emit(payload);
    Written::whole(start + Feedback::LEN)
}

/// Writes a repeated aggregate with its sequence number to the front of `buf`.
pub(super) fn write_repair(
    config: &Config,
    now: Time,
    repair: &Repair<'_>,
    sequence: u32,
    buf: &mut [u8],
) -> Written {
    let header = Header {
        // It is never late: its operation has ended.
        budget: Ticks::MAX,
        step: repair.id.step,
        bucket: repair.id.bucket,
        host_flags: HostFlags {
            hadamard: repair.shape.coding != Coding::Identity,
            ..HostFlags::default()
        },
        length_check: repair.shape.length_check,
        dtype: config.element.dtype(),
        slot: repair.slot,
        slots: repair.slots,
        contributions: repair.contributions,
        echoed: Ticks(sequence),
        ..header(config, now, Kind::Repair, config.rank)
    };
    let start = header.emit(buf);
    let counted = repair.counted.unwrap_or_default();
    let payload = &mut buf[start..];
    write_values(
        config.element,
        Some(repair.values),
        repair.count,
        counted,
        payload,
    )
    .behind(start)
}

/// Writes a repair request to the front of `buf`. From its echo the owner learns the round trip.
pub(super) fn write_request(
    config: &Config,
    now: Time,
    request: &Request<'_>,
    echoed: Ticks,
    buf: &mut [u8],
) -> Written {
    let header = Header {
        budget: Ticks::MAX,
        step: request.id.step,
        bucket: request.id.bucket,
        slots: request.slots,
        echoed,
        ..header(config, now, Kind::Control, config.rank)
    };
    let start = header.emit(buf);
    let request = RepairRequest {
        of: Requested::Aggregates,
        first: request.first,
        wanted: request.wanted,
    };
    Written::whole(start + request.emit(&mut buf[start..]))
}

/// Writes a grant of credit, or a request for it, to the front of `buf`.
pub(super) fn write_credit(config: &Config, now: Time, message: Credit, buf: &mut [u8]) -> Written {
    let header = Header {
        budget: Ticks::MAX,
        ..header(config, now, Kind::Control, config.rank)
    };
    let start = header.emit(buf);
    Written::whole(start + message.emit(&mut buf[start..]))
}

/// Writes a check packet to the front of `buf`.
pub(super) fn write_check(
    config: &Config,
    now: Time,
    packet: &CheckPacket,
    buf: &mut [u8],
) -> Written {
    let kind = match packet.probe {
        true => Kind::Probe,
        false => Kind::Control,
    };
    let header = Header {
        // It belongs to no operation and is never late.
        budget: Ticks::MAX,
        step: packet.about.step,
        bucket: packet.about.bucket,
        ..header(config, now, kind, config.rank)
    };
    let start = header.emit(buf);
    let room = match packet.probe {
        true => Report::LEN,
        false => 0,
    };
    let shortest = room + Check::LEN;
    let end = start
        + packet
            .payload
            .clamp(shortest, config.slot_bytes.max(shortest));
    let check = Check {
        token: packet.token,
        by_group: packet.to == Destination::Group,
    };
    buf[start..start + room].fill(0);
    check.emit(&mut buf[start + room..end]);
    Written::whole(end)
}

/// The switch's report, and the rank's data after the room for it in its PROBE.
pub(super) fn probed(payload: &[u8]) -> Option<(Report, Check)> {
    let report = Report::parse(payload)?;
    Some((report, Check::parse(&payload[Report::LEN..])?))
}

/// Writes `count` values, unless they stay in their bucket, and the bytes after them.
pub(super) fn write_values(
    element: Element,
    values: Option<&[f32]>,
    count: usize,
    counted: &[u8],
    buf: &mut [u8],
) -> Written {
    let len = count * element.size();
    let written = match values {
        Some(values) => {
            element.write(values, buf);
            len
        }
        None => 0,
    };
    buf[written..written + counted.len()].copy_from_slice(counted);
    Written {
        len: len + counted.len(),
        head: written + counted.len(),
    }
}
