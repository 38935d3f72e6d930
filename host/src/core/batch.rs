//! Datagrams that leave together.

use std::ops::Range;

use super::{Core, Destination, Transmit};
use crate::element;

/// Bytes of a batch: two of the longest IPv4 packets, each a run of datagrams to one receiver.
const BATCH: usize = 2 * 65_000;
/// Buckets of at least this many values are sent from where they are, by iovec. The kernel copies a smaller one, which is in the cache,
/// faster from a batch, where datagrams follow each other.
const ZERO_COPY_FROM: usize = 1 << 20;

/// Datagrams to send, in order, from [`Core::poll_transmit`]. Values may stay in the operation's bucket. They are read there
/// when the batch is sent.
pub struct Batch {
    /// The datagrams one after the other, without the values that are in the core.
    bytes: Vec<u8>,
    /// As long as `bytes` once [`Batch::detach`] has copied.
    spare: Vec<u8>,
    /// Bytes in use.
    end: usize,
    /// Bytes of all datagrams, with their values.
    total: usize,
    datagrams: Vec<Queued>,
    /// Number of datagrams that were sent.
    sent: usize,
    carrier: Carrier,
}

/// What carries datagrams from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    /// A simulator, one whole datagram at a time.
    Simulator,
    /// Sockets.
    Sockets,
    /// A link that copies each datagram itself.
    Copies,
    /// Memory that only ranks of this user and host write, see `driver/colocated.rs`.
    SharedMemory,
}

impl Carrier {
    /// True if seals of datagrams to this destination must cover the payload. Those to the group pass a switch.
    pub(super) fn needs_digest(self, to: Destination) -> bool {
        self != Carrier::SharedMemory || to == Destination::Group
    }

    /// The least values of a bucket whose values are not copied into a batch.
    pub(super) fn zero_copy_from(self) -> usize {
        match self {
            Carrier::Simulator => usize::MAX,
            Carrier::Sockets => ZERO_COPY_FROM,
            Carrier::Copies | Carrier::SharedMemory => 0,
        }
    }
}

/// A datagram of a batch.
pub(crate) struct Queued {
    pub(crate) to: Destination,
    pub(crate) len: usize,
    /// Its place in the batch.
    bytes: Range<usize>,
    /// Values behind those bytes.
    values: Option<InCore>,
}

/// Values of a packet in an operation's bucket.
pub(super) struct InCore {
    /// The operation's number.
    pub(super) operation: u32,
    pub(super) range: Range<usize>,
    /// True for the own shard's aggregates, false for contributions.
    pub(super) aggregates: bool,
}

impl Batch {
    /// An empty batch for datagrams up to `max_datagram`, see [`Core::max_datagram`].
    pub fn new(max_datagram: usize) -> Self {
        Self {
            bytes: vec![0; BATCH.max(max_datagram)],
            spare: Vec::new(),
            end: 0,
            total: 0,
            datagrams: Vec::new(),
            sent: 0,
            carrier: Carrier::Sockets,
        }
    }

    /// What carries its datagrams.
    pub(super) fn carrier(&self) -> Carrier {
        self.carrier
    }

    /// Sets what carries its next datagrams.
    pub(crate) fn set_carrier(&mut self, carrier: Carrier) {
        self.carrier = carrier;
    }

    /// True if all datagrams were sent.
    pub fn is_empty(&self) -> bool {
        self.datagrams.is_empty()
    }

    /// Room for another datagram.
    pub(super) fn room(&mut self) -> &mut [u8] {
        let room = self.bytes.len() - self.total;
        &mut self.bytes[self.end..][..room]
    }

    /// Adds the datagram that was written to the front of [`Batch::room`].
    pub(super) fn push(&mut self, transmit: Transmit, values: Option<InCore>) {
        let end = self.end + transmit.head;
        self.datagrams.push(Queued {
            to: transmit.to,
            len: transmit.len,
            bytes: self.end..end,
            values,
        });
        self.end = end;
        self.total += transmit.len;
    }

    /// Adds a datagram that no operation sends.
    #[cfg(test)]
    pub(crate) fn add(&mut self, to: Destination, datagram: &[u8]) {
        let len = datagram.len();
        self.room()[..len].copy_from_slice(datagram);
        let head = len;
        self.push(Transmit { to, len, head }, None);
    }

    /// Datagrams that were not sent.
    pub(crate) fn unsent(&self) -> &[Queued] {
        &self.datagrams[self.sent..]
    }

    /// Calls `change` with the start of each of the first `count` unsent datagrams, its header at least.
    pub(crate) fn change_heads(&mut self, count: usize, mut change: impl FnMut(&mut [u8])) {
        for datagram in &self.datagrams[self.sent..][..count] {
            change(&mut self.bytes[datagram.bytes.clone()]);
        }
    }

    /// Writes the next datagram to `room`, which is as long.
    pub(crate) fn write_next(&self, core: &Core, room: &mut [u8]) {
        self.write(&self.unsent()[0], core, room);
    }

    fn write(&self, datagram: &Queued, core: &Core, room: &mut [u8]) {
        let (head, values) = room.split_at_mut(datagram.bytes.len());
        head.copy_from_slice(&self.bytes[datagram.bytes.clone()]);
        if let Some(place) = &datagram.values {
            core.config().element.write(core.values(place), values);
        }
    }

    /// Calls `each` with the bytes of the first `count` unsent datagrams, in at most two slices per datagram. Values in the core
    /// must be of an element that is in place.
    pub(crate) fn slices<'a>(
        &'a self,
        count: usize,
        core: &'a Core,
        mut each: impl FnMut(&'a [u8]),
    ) {
        let datagrams = &self.unsent()[..count];
        let mut start = datagrams.first().map_or(0, |first| first.bytes.start);
        let mut end = start;
        for datagram in datagrams {
            end = datagram.bytes.end;
            if let Some(values) = &datagram.values {
                each(&self.bytes[start..end]);
                each(element::in_place(core.values(values)));
                start = end;
            }
        }
        if start < end {
            each(&self.bytes[start..end]);
        }
    }

    /// True if values of the first `count` unsent datagrams are in the core.
    pub(crate) fn has_values_in_core(&self, count: usize) -> bool {
        let mut datagrams = self.unsent()[..count].iter();
        datagrams.any(|datagram| datagram.values.is_some())
    }

    /// A copy of the first `count` unsent datagrams.
    pub(crate) fn copy(&mut self, count: usize, core: &Core) -> &[u8] {
        let mut spare = std::mem::take(&mut self.spare);
        spare.resize(self.bytes.len(), 0);
        let mut end = 0;
        for datagram in &self.unsent()[..count] {
            self.write(datagram, core, &mut spare[end..][..datagram.len]);
            end += datagram.len;
        }
        self.spare = spare;
        &self.spare[..end]
    }

    /// Notes that the next `count` datagrams were sent.
    pub(crate) fn note_sent(&mut self, count: usize) {
        self.sent += count;
        if self.sent == self.datagrams.len() {
            self.datagrams.clear();
            (self.sent, self.end, self.total) = (0, 0, 0);
        }
    }

    /// Copies the unsent datagrams' values from the core, which may then go on.
    pub(crate) fn detach(&mut self, core: &Core) {
        if !self.has_values_in_core(self.unsent().len()) {
            return;
        }
        let mut spare = std::mem::take(&mut self.spare);
        spare.resize(self.bytes.len(), 0);
        let mut end = 0;
        for at in self.sent..self.datagrams.len() {
            let datagram = &self.datagrams[at];
            let place = end..end + datagram.len;
            self.write(datagram, core, &mut spare[place.clone()]);
            end = place.end;
            let datagram = &mut self.datagrams[at];
            (datagram.bytes, datagram.values) = (place, None);
        }
        self.spare = std::mem::replace(&mut self.bytes, spare);
        self.end = end;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ultima_wire::{Key, Sealer};

    use super::*;
    use crate::config::{Config, Gather};
    use crate::element::Element;
    use crate::operation::OperationId;
    use crate::time::Time;

    fn core(key: Option<Key>, element: Element, len: usize) -> Core {
        let config = Config {
            key,
            element,
            gather: Gather::Unicast,
            slot_bytes: 32_000,
            ..Config::new(1, 1, 0, 3, 7, Duration::from_secs(1))
        };
        let mut core = Core::new(config).expect("valid");
        let id = OperationId { step: 1, bucket: 0 };
        let values: Vec<f32> = (0..len).map(|at| at as f32 / 7.0).collect();
        core.start(Time::ZERO, id, values).expect("starts");
        core
    }

    /// The bytes of all unsent datagrams.
    fn bytes(batch: &Batch, core: &Core) -> Vec<u8> {
        let mut bytes = Vec::new();
        for datagram in batch.unsent() {
            let start = bytes.len();
            bytes.resize(start + datagram.len, 0);
            batch.write(datagram, core, &mut bytes[start..]);
        }
        let is_in_place = core.config().element.is_in_place();
        if is_in_place || batch.unsent().iter().all(|one| one.values.is_none()) {
            let mut slices = Vec::new();
            batch.slices(batch.unsent().len(), core, |part| {
                slices.extend_from_slice(part)
            });
            assert!(slices == bytes);
        }
        bytes
    }

    #[test]
    fn values_in_the_core_complete_the_same_datagrams() {
        let sealed = Some(Key([7; 16]));
        compare(None, Element::F32, 1 << 20, Carrier::Sockets);
        compare(sealed, Element::F32, 1 << 20, Carrier::Sockets);
        compare(None, Element::Bf16, 1 << 20, Carrier::Sockets);
        compare(None, Element::F16, 1 << 18, Carrier::Copies);
        compare(sealed, Element::F32, 1 << 18, Carrier::Copies);
        compare(sealed, Element::F32, 1 << 18, Carrier::SharedMemory);
        compare(sealed, Element::Bf16, 1 << 18, Carrier::SharedMemory);
    }

    #[test]
    fn only_shared_memory_may_carry_packets_whose_payload_is_not_covered() {
        let mut sender = core(Some(Key([7; 16])), Element::F32, 1 << 18);
        let mut batch = Batch::new(sender.max_datagram());
        for carrier in [Carrier::Sockets, Carrier::Copies, Carrier::SharedMemory] {
            batch.set_carrier(carrier);
            sender.poll_transmit(Time::ZERO, &mut batch);
            let (to, len) = (batch.unsent()[0].to, batch.unsent()[0].len);
            let Destination::Rank(rank) = to else {
                panic!("unicast");
            };
            let datagram = &bytes(&batch, &sender)[..len];
            for by in [Carrier::Sockets, Carrier::Copies, Carrier::SharedMemory] {
                let config = Config {
                    rank,
                    ..sender.config().clone()
                };
                let mut receiver: Core = Core::new(config).expect("valid");
                receiver.handle(Time::ZERO, by, datagram);
                let refused = carrier == Carrier::SharedMemory && by != carrier;
                assert_eq!(
                    receiver.totals().rejected.total(),
                    u64::from(refused),
                    "{carrier:?} by {by:?}"
                );
            }
            batch.note_sent(batch.unsent().len());
        }
    }

    /// A job whose ranks share memory may change over to multicast.
    #[test]
    fn packets_to_the_group_are_covered_in_any_case() {
        let unicast = core(Some(Key([7; 16])), Element::Bf16, 1 << 18);
        let config = Config {
            gather: Gather::Multicast,
            ..unicast.config().clone()
        };
        let mut core: Core = Core::new(config).expect("valid");
        let id = OperationId { step: 1, bucket: 0 };
        core.start(Time::ZERO, id, vec![1.0; 1 << 18])
            .expect("starts");
        let mut batch = Batch::new(core.max_datagram());
        batch.set_carrier(Carrier::SharedMemory);
        let (mut now, mut aggregates) = (Time::ZERO, 0);
        // The other ranks send nothing: the own shard closes with the own contribution.
        while let Some(due) = core.poll_timeout() {
            core.handle_timeout(now);
            core.poll_transmit(now, &mut batch);
            let all = bytes(&batch, &core);
            let mut rest = &all[..];
            for queued in batch.unsent() {
                let (datagram, behind) = rest.split_at(queued.len);
                rest = behind;
                if queued.to == Destination::Group {
                    assert_eq!(Sealer::new(&Key([7; 16])).verify(datagram), Ok(()));
                    aggregates += u32::from(queued.len > 1000);
                }
            }
            if batch.is_empty() {
                now = now.max(due);
            } else {
                batch.note_sent(batch.unsent().len());
            }
        }
        assert!(aggregates > 0, "no GATHER was sent");
    }

    #[test]
    fn values_of_small_buckets_and_sealed_16_bit_values_are_in_the_batch() {
        let sealed = Some(Key([7; 16]));
        for (key, element, len) in [
            (None, Element::F32, (1 << 20) - 1),
            (sealed, Element::Bf16, 1 << 20),
        ] {
            let mut core = core(key, element, len);
            let mut batch = Batch::new(core.max_datagram());
            core.poll_transmit(Time::ZERO, &mut batch);
            assert!(!batch.is_empty() && batch.end == batch.total, "{element:?}");
        }
    }

    /// Compares batches with single datagrams.
    fn compare(key: Option<Key>, element: Element, len: usize, carrier: Carrier) {
        let (mut core, mut other) = (core(key, element, len), core(key, element, len));
        let mut buf = vec![0; other.max_datagram()];
        let mut batch = Batch::new(core.max_datagram());
        batch.set_carrier(carrier);
        let mut count = 0;
        loop {
            core.poll_transmit(Time::ZERO, &mut batch);
            if batch.is_empty() {
                break;
            }
            if count == 0 {
                assert!(batch.end < batch.total / 100, "values are in the core");
            }
            while !batch.is_empty() {
                let all = bytes(&batch, &core);
                let few = batch.unsent().len().min(2);
                let copied: usize = batch.unsent()[..few].iter().map(|one| one.len).sum();
                assert!(batch.copy(few, &core) == &all[..copied]);
                if batch.sent == 1 {
                    // The rest waits.
                    batch.detach(&core);
                    assert_eq!(bytes(&batch, &core), all);
                    assert!(batch.unsent().iter().all(|one| one.values.is_none()));
                    let at = batch.bytes.as_ptr();
                    batch.detach(&core);
                    assert_eq!(batch.bytes.as_ptr(), at, "nothing to copy again");
                }
                let (to, len) = (batch.unsent()[0].to, batch.unsent()[0].len);
                let sent = other.next_datagram(Time::ZERO, &mut buf).expect("the same");
                assert_eq!((sent.to, sent.len), (to, len));
                let mut datagram = all[..len].to_vec();
                if let Some(key) = key.filter(|_| carrier == Carrier::SharedMemory) {
                    assert_eq!(Sealer::new(&key).verify_header(&datagram), Ok(()));
                    assert!(Sealer::new(&key).verify(&datagram).is_err());
                    Sealer::new(&key).seal(&mut datagram);
                }
                assert_eq!(datagram, buf[..len]);
                batch.note_sent(1);
                count += 1;
            }
        }
        assert_eq!(other.next_datagram(Time::ZERO, &mut buf), None);
        // Two of three shards.
        let least = 2 * (len / 3) * element.size() / 32_000;
        assert!(count >= least, "{count} of {least}");
    }
}
