//! Frames from an interface, read where the kernel wrote them: a receive ring in memory that both
//! share (PACKET_RX_RING of packet(7), described in the kernel's `networking/packet_mmap.rst`).
//!
//! Slots are of TPACKET_V2: the reader gets them one by one. It gets a block of TPACKET_V3 only
//! when the block is full or after a timeout of at least a millisecond. A frame that is longer than a slot,
//! because the interface has a larger MTU or a sender left segmentation to us, comes whole through
//! the socket's ordinary queue (PACKET_COPY_THRESH), and its slot says so.

use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::Mapping;
use super::offload::VNET_HEADER;
use super::packet_socket::{set_option, vlan_tag};

/// Bytes of a slot: a frame of Ethernet's ordinary 1,514 bytes and what the kernel puts before it.
const SLOT: usize = 2048;
/// Slots of a ring: 14 ms at 300,000 frames a second, 8 MiB.
const SLOTS: usize = 4096;
/// Bytes of the next slot to load ahead: all of an ordinary frame.
const PREFETCHED: usize = 1600;
/// The kernel's unit of allocation.
const BLOCK: usize = 64 * 1024;

/// A ring of slots, filled by the kernel and emptied here, in the same order.
pub(super) struct RxRing {
    memory: Mapping,
    next: usize,
}

/// The next filled slot. Dropping it returns the slot to the kernel.
pub(super) struct Slot<'a> {
    /// The part of the frame that is in the slot.
    pub(super) content: Content<'a>,
    status: &'a AtomicU32,
}

/// The content of a slot.
pub(super) enum Content<'a> {
    /// All of it: offload header and frame, and the VLAN tag that the kernel took off it.
    Frame(&'a mut [u8], Option<[u8; 4]>),
    /// It is the next message in the socket's queue.
    Queued,
    /// There was no memory to keep all of it: it is lost.
    Lost,
}

impl RxRing {
    /// Creates the socket's ring in the kernel and maps it. The socket must not be bound yet, and
    /// its frames must have offload headers.
    pub(super) fn map(socket: &OwnedFd) -> io::Result<Self> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set_option(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        // Any number but 0: frames that are longer than a slot are queued.
        set_option(socket, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, &1i32)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as libc::c_uint,
            tp_block_nr: (SLOT * SLOTS / BLOCK) as libc::c_uint,
            tp_frame_size: SLOT as libc::c_uint,
            tp_frame_nr: SLOTS as libc::c_uint,
        };
        set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        Ok(RxRing {
            memory: Mapping::of_socket(socket, 0, SLOT * SLOTS)?,
            next: 0,
        })
    }

    /// The next slot, if the kernel has filled it.
    pub(super) fn next(&mut self) -> Option<Slot<'_>> {
        // SAFETY: `next` is below SLOTS, so that the slot lies within the mapping. It begins with a
        // tpacket2_hdr, whose first word is the status; both sides access it atomically.
        let (slot, status) = unsafe {
            let slot = self.memory.memory.add(self.next * SLOT);
            (slot, slot.cast::<AtomicU32>().as_ref())
        };
        let flags = status.load(Ordering::Acquire);
        if flags & libc::TP_STATUS_USER == 0 {
            return None;
        }
        self.next = (self.next + 1) % SLOTS;
        self.prefetch(self.next);
        // SAFETY: as long as its status says that the slot is ours, which is until the `Slot` is
        // dropped, the kernel does not touch it; `next` lends one slot at a time.
        let bytes = unsafe { std::slice::from_raw_parts_mut(slot.as_ptr().add(4), SLOT - 4) };
        let content = content(bytes, flags);
        Some(Slot { content, status })
    }
}

/// Bytes that one prefetch instruction loads.
const LINE: usize = 64;

impl RxRing {
    /// Loads a slot into the cache while the frame before it is processed: the CPU that wrote it is usually another one.
    #[cfg(target_arch = "x86_64")]
    fn prefetch(&self, slot: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        for at in (0..PREFETCHED).step_by(LINE) {
            // SAFETY: the address lies within the mapping. A prefetch has no effect but on speed.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(
                    self.memory.memory.add(slot * SLOT + at).as_ptr().cast(),
                )
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn prefetch(&self, _: usize) {}
}

/// Reads a slot's header; `bytes` are the slot without the status.
fn content(bytes: &mut [u8], flags: u32) -> Content<'_> {
    if flags & libc::TP_STATUS_COPY != 0 {
        return Content::Queued;
    }
    let half = |at: usize| u16::from_ne_bytes([bytes[at - 4], bytes[at - 3]]);
    let word = |at: usize| {
        let bytes = [bytes[at - 4], bytes[at - 3], bytes[at - 2], bytes[at - 1]];
        u32::from_ne_bytes(bytes)
    };
    let len = word(offset_of!(libc::tpacket2_hdr, tp_len)) as usize;
    let kept = word(offset_of!(libc::tpacket2_hdr, tp_snaplen)) as usize;
    let frame = usize::from(half(offset_of!(libc::tpacket2_hdr, tp_mac)));
    let control = half(offset_of!(libc::tpacket2_hdr, tp_vlan_tci));
    let tag = vlan_tag(
        flags,
        control,
        half(offset_of!(libc::tpacket2_hdr, tp_vlan_tpid)),
    );
    // The offload header lies right before the frame.
    let start = frame.saturating_sub(VNET_HEADER);
    if kept < len || start < size_of::<libc::tpacket2_hdr>() || frame + kept > SLOT {
        return Content::Lost;
    }
    Content::Frame(&mut bytes[start - 4..frame + kept - 4], tag)
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}
