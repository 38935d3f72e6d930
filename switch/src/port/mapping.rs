//! Mapped memory that is unmapped when it is dropped.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Memory that can be read and written.
pub(super) struct Mapping {
    pub(super) memory: NonNull<u8>,
    len: NonZeroUsize,
}

// SAFETY: the mapping belongs to this value alone, whichever thread it is on.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        let len = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let memory = unsafe { mmap_anonymous(None, len, protection, MapFlags::MAP_PRIVATE) }?;
        let memory = memory.cast();
        Ok(Mapping { memory, len })
    }

    /// Maps memory that a socket shares with the kernel.
    pub(super) fn of_socket(socket: &OwnedFd, at: libc::off_t, len: usize) -> io::Result<Self> {
        let len = NonZeroUsize::new(len).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: as above.
        let memory = unsafe { mmap(None, len, protection, flags, socket, at) }?;
        let memory = memory.cast();
        Ok(Mapping { memory, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length, and no reference into it outlives its owner. A failure would only leave it
        // mapped.
        let _ = unsafe { munmap(self.memory.cast(), self.len.get()) };
    }
}
