//! Frames to an interface, written where the kernel reads them: the send ring of an AF_XDP socket in copy mode (the
//! kernel's `networking/af_xdp.rst`).
//!
//! A frame costs less than through a packet socket: one system call starts up to 32 frames, and none of them has a message
//! header or passes a queueing discipline. Frames wait in the ring until [`TxRing::send`].

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::utsname::uname;

use super::mapping::Mapping;
use super::packet_socket::{bind_to, get_option, set_option};

/// Bytes of a chunk, which holds one frame.
pub(super) const CHUNK: usize = 2048;
/// Number of chunks, and of slots in each ring.
const CHUNKS: usize = 128;
/// Calls of `sendto` in a row without a frame that leaves. The kernel may report progress only when a call finds the ring
/// empty, and a call sends 32 frames.
const TRIES: usize = 8;
const _: () = assert!(CHUNKS / 32 < TRIES);

/// The first kernel, by major and minor number, on which the count of sent frames after a dropped one was checked. Earlier
/// ones may report it late.
const KERNEL: (u32, u32) = (6, 18);

/// True if the running kernel is at least [`KERNEL`].
fn kernel_counts_dropped_frames() -> bool {
    let Ok(system) = uname() else {
        return false;
    };
    let release = system.release().to_string_lossy();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|number| number.parse().ok());
    numbers
        .next()
        .zip(numbers.next())
        .is_some_and(|version| version >= KERNEL)
}

/// The outcome of [`TxRing::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// The kernel dropped the last one of the frames that are no longer in the ring.
    Dropped,
    Busy,
    Gone,
}

pub(super) struct TxRing {
    socket: OwnedFd,
    /// Chunks, one per slot of the ring.
    chunks: Mapping,
    sends: Ring,
    completions: Ring,
    /// Number of frames put into the ring.
    put: u32,
    /// Number of chunks that the kernel has returned.
    returned: u32,
    /// Free chunks. The one that was returned last is used first, because it is likely to be in the cache.
    free: Vec<u64>,
}

/// A ring that this process and the kernel share.
struct Ring {
    memory: Mapping,
    producer: usize,
    consumer: usize,
    slots: usize,
}

impl TxRing {
    /// Opens a ring to the interface with this index. Fails where the kernel is older than [`KERNEL`] or has no AF_XDP, where another process sends
    /// this way, and beyond the limit of locked memory.
    pub(super) fn open(index: libc::c_uint) -> io::Result<Self> {
        if !kernel_counts_dropped_frames() {
            let older = "the kernel is older than Linux 6.18";
            return Err(io::Error::new(io::ErrorKind::Unsupported, older));
        }
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes integers only.
        let fd = unsafe { libc::socket(libc::AF_XDP, flags, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return Err(match error.raw_os_error() {
                Some(libc::EAFNOSUPPORT) => io::Error::new(io::ErrorKind::Unsupported, error),
                _ => error,
            });
        }
        // SAFETY: socket() returned a new descriptor, which nothing else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let chunks = Mapping::anonymous(CHUNK * CHUNKS)?;
        // SAFETY: a plain C structure for which all zeros are valid.
        let mut region: libc::xdp_umem_reg = unsafe { zeroed() };
        region.addr = chunks.memory.as_ptr() as u64;
        region.len = (CHUNK * CHUNKS) as u64;
        region.chunk_size = CHUNK as u32;
        set_option(&socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &region)?;
        // Every socket needs a ring for received frames, too; this one stays empty.
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_TX_RING,
        ] {
            set_option(&socket, libc::SOL_XDP, ring, &(CHUNKS as libc::c_int))?;
        }
        // SAFETY: the option is such a structure. Kernels before 5.4 have a shorter one.
        let offsets: libc::xdp_mmap_offsets =
            unsafe { get_option(&socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS) }?;
        let sends = Ring::map::<libc::xdp_desc>(&socket, libc::XDP_PGOFF_TX_RING, &offsets.tx)?;
        let at = libc::XDP_UMEM_PGOFF_COMPLETION_RING as libc::off_t;
        let completions = Ring::map::<u64>(&socket, at, &offsets.cr)?;
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            // All drivers have this mode.
            sxdp_flags: libc::XDP_COPY,
            sxdp_ifindex: index,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        bind_to(&socket, &address)?;
        Ok(TxRing {
            socket,
            chunks,
            sends,
            completions,
            put: 0,
            returned: 0,
            free: (0..CHUNKS as u64).rev().map(|n| n * CHUNK as u64).collect(),
        })
    }

    /// Puts a frame of at most [`CHUNK`] bytes into the ring. Returns false if the ring is full.
    pub(super) fn put(&mut self, frame: &[u8]) -> bool {
        assert!(frame.len() <= CHUNK);
        if self.free.is_empty() {
            self.take_back();
        }
        let Some(chunk) = self.free.pop() else {
            return false;
        };
        let descriptor = libc::xdp_desc {
            addr: chunk,
            len: frame.len() as u32,
            options: 0,
        };
        // SAFETY: the chunk lies in the mapping and is free, so the kernel does not access it. There are as many slots as
        // chunks, so the slot is free, too.
        unsafe {
            let to = self.chunks.memory.add(chunk as usize).as_ptr();
            ptr::copy_nonoverlapping(frame.as_ptr(), to, frame.len());
            self.sends.slot(self.put).write(descriptor);
        }
        self.put = self.put.wrapping_add(1);
        self.sends.producer().store(self.put, Ordering::Release);
        true
    }

    pub(super) fn waiting(&self) -> usize {
        let taken = self.sends.consumer().load(Ordering::Acquire);
        self.put.wrapping_sub(taken) as usize
    }

    /// Sends the frames in the ring, until the kernel drops one.
    pub(super) fn send(&self) -> Sent {
        let mut tries = TRIES;
        let mut waiting = self.waiting();
        while waiting > 0 {
            // SAFETY: sends no bytes of its own, and takes a null address.
            let sent = unsafe {
                let fd = self.socket.as_raw_fd();
                libc::sendto(fd, ptr::null(), 0, libc::MSG_DONTWAIT, ptr::null(), 0)
            };
            let left = self.waiting();
            if sent < 0 {
                match Errno::last() {
                    // A call sends a limited number of frames.
                    Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS => {}
                    Errno::EBUSY => return Sent::Dropped,
                    _ => return Sent::Gone,
                }
            }
            tries = if left < waiting { TRIES } else { tries - 1 };
            if tries == 0 {
                return Sent::Busy;
            }
            waiting = left;
        }
        Sent::All
    }

    /// Takes back the chunks of frames that have left.
    fn take_back(&mut self) {
        let end = self.completions.producer().load(Ordering::Acquire);
        while self.returned != end {
            // SAFETY: the kernel has filled the slots before its producer, each with an address.
            self.free
                .push(unsafe { self.completions.slot::<u64>(self.returned).read() });
            self.returned = self.returned.wrapping_add(1);
        }
        self.completions.consumer().store(end, Ordering::Release);
    }
}

impl Ring {
    /// Maps a ring with slots of type `T`.
    fn map<T>(
        socket: &OwnedFd,
        at: libc::off_t,
        offsets: &libc::xdp_ring_offset,
    ) -> io::Result<Self> {
        let slots = offsets.desc as usize;
        Ok(Ring {
            memory: Mapping::of_socket(socket, at, slots + CHUNKS * size_of::<T>())?,
            producer: offsets.producer as usize,
            consumer: offsets.consumer as usize,
            slots,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the kernel's offset lies within the mapping, and both sides access this word atomically.
        unsafe { self.memory.memory.add(self.producer).cast().as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.memory.memory.add(self.consumer).cast().as_ref() }
    }

    /// Returns the slot of the frame with this number. `T` is the type that the ring was mapped with.
    fn slot<T>(&self, number: u32) -> NonNull<T> {
        let index = number as usize % CHUNKS;
        // SAFETY: the mapping has CHUNKS slots behind this offset.
        unsafe { self.memory.memory.add(self.slots).cast().add(index) }
    }
}
