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

/// The messages of one call of [`recv`].
pub(crate) struct RxBatch {
    slab: Box<[u8]>,
    control: Box<[[u64; CONTROL_WORDS]; BATCH]>,
    slots: [Slot; BATCH],
    count: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    len: usize,
    truncated: bool,
    control_len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
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

    /// The received messages as frames, in order.
    pub(super) fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        self.slots[..self.count]
            .iter()
            .zip(self.slab.chunks_exact(SLOT))
            .map(|(slot, bytes)| Frame::whole(&bytes[..slot.len]))
    }

    /// The first message, with its ancillary data, as the frame that `read` makes of it.
    pub(super) fn first<'a>(
        &'a mut self,
        read: impl FnOnce(&'a mut [u8], &[u64]) -> Frame<'a>,
    ) -> Frame<'a> {
        let slot = self.slots[0];
        let bytes = &mut self.slab[..slot.len];
        if slot.truncated {
            return Frame::Refused(bytes);
        }
        let words = (slot.control_len / 8).min(CONTROL_WORDS);
        read(bytes, &self.control[0][..words])
    }

    /// Forgets the first message without ancillary data and all behind it. Returns the number of messages left.
    pub(super) fn keep_with_control(&mut self) -> usize {
        let slots = self.slots[..self.count].iter();
        self.count = slots.take_while(|slot| slot.control_len > 0).count();
        self.count
    }
}

impl<'a> Frame<'a> {
    /// A frame with nothing left to do, unless it is too long.
    pub(super) fn whole(bytes: &'a [u8]) -> Self {
        // A frame that the slot's end truncated was longer than the limit, too.
        if bytes.len() > MAX_FRAME {
            Frame::Refused(bytes)
        } else {
            Frame::Whole(bytes)
        }
    }
}

/// Receives as many messages as are there, at most `count`, without waiting. An empty batch does not occur: nothing there is
/// `WouldBlock`.
pub(super) fn recv(fd: BorrowedFd<'_>, batch: &mut RxBatch, count: usize) -> io::Result<()> {
    batch.count = 0;
    // SAFETY: both are plain C structures for which all zeros (null pointers, zero lengths) are
    // valid.
    let mut iov: [libc::iovec; BATCH] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for (i, bytes) in batch.slab.chunks_exact_mut(SLOT).take(count).enumerate() {
        iov[i] = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: SLOT,
        };
        headers[i].msg_hdr.msg_iov = &raw mut iov[i];
        headers[i].msg_hdr.msg_iovlen = 1;
        headers[i].msg_hdr.msg_control = batch.control[i].as_mut_ptr().cast();
        headers[i].msg_hdr.msg_controllen = (CONTROL_WORDS * 8) as _;
    }
    // SAFETY: each of the first `count` headers points at one iovec and one control buffer of the stated sizes, which
    // are exclusively borrowed through `batch` and live until the call returns.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (slot, header) in batch.slots.iter_mut().zip(&headers[..received]) {
        *slot = Slot {
            len: (header.msg_len as usize).min(SLOT),
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            #[allow(clippy::unnecessary_cast)] // A socklen_t with musl.
            control_len: header.msg_hdr.msg_controllen as usize,
        };
    }
    batch.count = received;
    Ok(())
}

/// Sends up to a batch of frames without waiting; says how many were taken. An error concerns the
/// first frame, which was not.
pub(super) fn send(fd: BorrowedFd<'_>, frames: &[&[u8]]) -> io::Result<usize> {
    let frames = &frames[..frames.len().min(BATCH)];
    let mut iov: [MaybeUninit<libc::iovec>; BATCH] = [const { MaybeUninit::uninit() }; BATCH];
    // SAFETY: a plain C structure for which all zeros are valid.
    let mut headers: [libc::mmsghdr; BATCH] = unsafe { zeroed() };
    for ((header, part), frame) in headers.iter_mut().zip(&mut iov).zip(frames) {
        part.write(libc::iovec {
            iov_base: frame.as_ptr().cast_mut().cast(),
            iov_len: frame.len(),
        });
        header.msg_hdr.msg_iov = part.as_mut_ptr();
        header.msg_hdr.msg_iovlen = 1;
    }
    // SAFETY: the first `frames.len()` headers each point at an initialised iovec over borrowed
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
        let nothing = recv(b.as_fd(), &mut batch, BATCH).expect_err("nothing there");
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        let frames: Vec<Vec<u8>> = (0..40u8).map(|n| vec![n; usize::from(n) + 1]).collect();
        let refs: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        assert_eq!(send(a.as_fd(), &refs).expect("send"), BATCH);
        recv(b.as_fd(), &mut batch, BATCH).expect("recv");
        assert_eq!(batch.frames().count(), BATCH);
        for (n, frame) in batch.frames().enumerate() {
            let Frame::Whole(bytes) = frame else {
                panic!("frame {n} is whole")
            };
            assert_eq!((bytes.len(), bytes[0]), (n + 1, n as u8));
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
        assert_eq!(send(a.as_fd(), &[&long[1..], &long]).expect("send"), 2);
        let mut batch = RxBatch::new();
        recv(b.as_fd(), &mut batch, BATCH).expect("recv");
        let kinds: Vec<bool> = batch
            .frames()
            .map(|frame| matches!(frame, Frame::Whole(_)))
            .collect();
        assert_eq!(kinds, [true, false]);
        assert_eq!(send(a.as_fd(), &[&longer]).expect("send"), 1);
        recv(b.as_fd(), &mut batch, BATCH).expect("recv");
        assert!(matches!(batch.frames().next(), Some(Frame::Refused(_))));
    }
}
