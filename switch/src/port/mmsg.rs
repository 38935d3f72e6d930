//! Batches of frames in one system call: `recvmmsg` and `sendmmsg`.
//!
//! nix and rustix offer these calls only with allocations or lifetimes that do not fit a forwarding
//! loop, so this is the one place of the crate that lays out `mmsghdr` by hand.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::offload::Gso;
use crate::tm::BATCH;

/// Longest frame that the switch takes, in bytes.
pub(crate) const MAX_FRAME: usize = 65_535;
/// Bytes per slot: room for a frame and the header that AF_PACKET puts in front of it.
const SLOT: usize = 65_536 + 64;
/// Words of ancillary data per slot: one `tpacket_auxdata` with its header needs 40 bytes.
const CONTROL_WORDS: usize = 8;

/// Where the frames of one call of [`recv`] lie.
pub(crate) struct RxBatch {
    slab: Box<[u8]>,
    control: Box<[[u64; CONTROL_WORDS]; BATCH]>,
    slots: [Slot; BATCH],
    count: usize,
}

/// One received message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Slot {
    /// The frame begins here, in the slot's bytes.
    pub(super) start: usize,
    /// One past its end.
    pub(super) end: usize,
    /// The message was longer than the slot, or its frame is refused for another reason.
    pub(super) refused: bool,
    /// The frame stands for several segments.
    pub(super) gso: Option<Gso>,
    control_len: usize,
}

/// A received frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// All of it.
    Whole(&'a [u8]),
    /// Several segments, still to be cut.
    Segments(&'a [u8], Gso),
    /// It is longer than [`MAX_FRAME`], or of no use otherwise: its beginning.
    Refused(&'a [u8]),
}

impl RxBatch {
    /// Buffers for a batch, shared by all ports.
    pub(crate) fn new() -> Self {
        RxBatch {
            slab: vec![0; SLOT * BATCH].into_boxed_slice(),
            control: Box::new([[0; CONTROL_WORDS]; BATCH]),
            slots: [Slot::default(); BATCH],
            count: 0,
        }
    }

    /// The received frames, in order.
    pub(crate) fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        self.slots[..self.count]
            .iter()
            .zip(self.slab.chunks_exact(SLOT))
            .map(|(slot, bytes)| {
                let frame = &bytes[slot.start..slot.end];
                match slot.gso {
                    _ if slot.refused => Frame::Refused(frame),
                    Some(gso) => Frame::Segments(frame, gso),
                    None if frame.len() > MAX_FRAME => Frame::Refused(frame),
                    None => Frame::Whole(frame),
                }
            })
    }

    /// Number of messages received.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Forgets all but the first `count` messages.
    pub(super) fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// A message for rework in place: its extent, its slot's bytes and its ancillary data.
    pub(super) fn message(&mut self, index: usize) -> (&mut Slot, &mut [u8], &[u64]) {
        let slot = &mut self.slots[index];
        let words = (slot.control_len / 8).min(CONTROL_WORDS);
        (
            slot,
            &mut self.slab[index * SLOT..][..SLOT],
            &self.control[index][..words],
        )
    }
}

/// Receives as many messages as are there, up to a batch, without waiting. An empty batch does not
/// occur: nothing there is `WouldBlock`.
pub(super) fn recv(fd: BorrowedFd<'_>, batch: &mut RxBatch) -> io::Result<()> {
    batch.count = 0;
    // SAFETY: both are plain C structures for which all zeros (null pointers, zero lengths) are
    // valid.
    let mut iov: [libc::iovec; BATCH] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for (i, bytes) in batch.slab.chunks_exact_mut(SLOT).enumerate() {
        iov[i] = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: SLOT,
        };
        headers[i].msg_hdr.msg_iov = &raw mut iov[i];
        headers[i].msg_hdr.msg_iovlen = 1;
        headers[i].msg_hdr.msg_control = batch.control[i].as_mut_ptr().cast();
        headers[i].msg_hdr.msg_controllen = (CONTROL_WORDS * 8) as _;
    }
    // SAFETY: every header points at one iovec and one control buffer of the stated sizes, which
    // are exclusively borrowed through `batch` and live until the call returns.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            BATCH as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (slot, header) in batch.slots.iter_mut().zip(&headers[..received]) {
        *slot = Slot {
            start: 0,
            end: (header.msg_len as usize).min(SLOT),
            refused: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            gso: None,
            #[allow(clippy::unnecessary_cast)] // A socklen_t with musl.
            control_len: header.msg_hdr.msg_controllen as usize,
        };
    }
    batch.count = received;
    Ok(())
}

/// Sends up to a batch of frames without waiting, each behind the same `prefix`; says how many were
/// taken. An error concerns the first frame, which was not.
pub(super) fn send(fd: BorrowedFd<'_>, prefix: &[u8], frames: &[&[u8]]) -> io::Result<usize> {
    let frames = &frames[..frames.len().min(BATCH)];
    let mut iov: [[MaybeUninit<libc::iovec>; 2]; BATCH] =
        [[const { MaybeUninit::uninit() }; 2]; BATCH];
    // SAFETY: a plain C structure for which all zeros are valid.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for ((header, parts), frame) in headers.iter_mut().zip(&mut iov).zip(frames) {
        for (part, bytes) in parts.iter_mut().zip([prefix, frame]) {
            part.write(libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            });
        }
        header.msg_hdr.msg_iov = parts.as_mut_ptr().cast();
        header.msg_hdr.msg_iovlen = 2;
    }
    // SAFETY: the first `frames.len()` headers each point at two initialised iovecs over borrowed
    // bytes that outlive the call; the kernel only reads through them.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            frames.len() as libc::c_uint,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn a_batch_crosses_a_socketpair() {
        let (a, b) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        )
        .expect("socketpair");
        let mut batch = RxBatch::new();
        let nothing = recv(b.as_fd(), &mut batch).expect_err("nothing there");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let frames: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; usize::from(n) + 1]).collect();
        let refs: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        assert_eq!(send(a.as_fd(), &[7], &refs).expect("send"), BATCH);
        recv(b.as_fd(), &mut batch).expect("recv");
        assert_eq!(batch.frames().count(), BATCH);
        for (n, frame) in batch.frames().enumerate() {
            let Frame::Whole(bytes) = frame else {
                panic!("frame {n} is whole")
            };
            assert_eq!((bytes.len(), bytes[0], bytes[1]), (n + 2, 7, n as u8));
        }
    }

    #[test]
    fn a_frame_over_the_limit_is_marked() {
        let (a, b) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC,
        )
        .expect("socketpair");
        let long = vec![1; MAX_FRAME + 1];
        let longer = vec![2; SLOT + 1];
        assert_eq!(send(a.as_fd(), &[], &[&long[1..], &long]).expect("send"), 2);
        let mut batch = RxBatch::new();
        recv(b.as_fd(), &mut batch).expect("recv");
        let kinds: Vec<bool> = batch
            .frames()
            .map(|frame| matches!(frame, Frame::Whole(_)))
            .collect();
        assert_eq!(kinds, [true, false]);
        assert_eq!(send(a.as_fd(), &[], &[&longer]).expect("send"), 1);
        recv(b.as_fd(), &mut batch).expect("recv");
        assert!(matches!(batch.frames().next(), Some(Frame::Refused(_))));
    }
}
