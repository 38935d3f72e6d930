//! A queue of datagrams in memory that two processes share: one writes, the other reads.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

/// Start of the datagrams, behind [`Ends`].
const DATA_AT: usize = 4096;
/// Datagrams start at multiples of this, so that one with a header without a seal has its values in whole cache lines.
const ALIGN: usize = 64;
/// Bytes before a datagram; the first four are its length.
const PREFIX: usize = 12;
/// In place of a length: the rest of the memory is unused, and the queue continues at its start.
const SKIP: u32 = u32::MAX;
/// Bytes after which a reader lets others go on.
const BATCH: u64 = 1 << 18;
/// The largest queue that a reader may offer.
const LARGEST: usize = 1 << 29;

/// The positions of writer and reader, in bytes from the start. All zero at first.
#[repr(C)]
struct Ends {
    written: Apart<AtomicU64>,
    read: Apart<AtomicU64>,
    /// 1 while the reader sleeps, or is about to.
    asleep: Apart<AtomicU32>,
}

/// A value that shares no cache line, nor the line that CPUs prefetch with it.
#[repr(C, align(128))]
struct Apart<T>(T);

/// Shared memory. Only [`Writer`] and [`Reader`] of one queue use it.
struct Memory {
    start: NonNull<u8>,
    /// Bytes for datagrams, a power of two.
    capacity: usize,
}

// SAFETY: the memory is mapped until the value is dropped, whatever the thread.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `Memory::map` with this length; nothing refers to it any more.
        let _ = unsafe { munmap(self.start.cast(), DATA_AT + self.capacity) };
    }
}

impl Memory {
    fn map(fd: &OwnedFd, capacity: usize) -> nix::Result<Self> {
        let len = NonZeroUsize::new(DATA_AT + capacity).ok_or(Errno::EINVAL)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, of a file that cannot shrink.
        let start = unsafe { mmap(None, len, access, MapFlags::MAP_SHARED, fd, 0) }?;
        let memory = Self {
            start: start.cast(),
            capacity,
        };
        // SAFETY: all of the mapping, which no forked child uses.
        unsafe { madvise(start, len.get(), MmapAdvise::MADV_DONTFORK) }?;
        Ok(memory)
    }

    fn ends(&self) -> &Ends {
        // SAFETY: mapped, aligned to a page, and used by atomic operations only.
        unsafe { self.start.cast().as_ref() }
    }

    /// Bytes from position `at` on, without a break.
    fn until_end(&self, at: u64) -> usize {
        self.capacity - (at as usize & (self.capacity - 1))
    }

    /// The memory at position `at`.
    fn data(&self, at: u64) -> *mut u8 {
        let offset = DATA_AT + (at as usize & (self.capacity - 1));
        // SAFETY: inside the mapping.
        unsafe { self.start.add(offset).as_ptr() }
    }
}

/// Memory of a datagram of `len` bytes in a queue.
fn record(len: usize) -> usize {
    (PREFIX + len).next_multiple_of(ALIGN)
}

/// The size of a queue for `count` datagrams of `len` bytes, and some short ones.
pub(super) fn capacity(count: usize, len: usize) -> usize {
    // One does not fit at the end.
    let bytes = (count + 1) * record(len) + (1 << 15);
    bytes.next_power_of_two().min(LARGEST)
}

/// The end that receives.
pub(super) struct Reader {
    memory: Memory,
    read: u64,
}

/// A queue's content makes no sense: its writer is faulty.
#[derive(Debug, PartialEq)]
pub(super) struct Corrupt;

impl Reader {
    /// Creates a queue. The file is for its writer.
    pub(super) fn create(capacity: usize) -> nix::Result<(Self, OwnedFd)> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create("ultima-receive", flags)?;
        ftruncate(&fd, (DATA_AT + capacity) as i64)?;
        // Access behind the end of a file that shrank would kill the process.
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
        let memory = Memory::map(&fd, capacity)?;
        Ok((Self { memory, read: 0 }, fd))
    }

    /// Bytes for datagrams.
    pub(super) fn capacity(&self) -> usize {
        self.memory.capacity
    }

    pub(super) fn is_empty(&self) -> bool {
        self.memory.ends().written.0.load(Ordering::Acquire) == self.read
    }

    /// Calls `handle` with the next datagrams, in place. Returns false if there are none.
    pub(super) fn read(&mut self, handle: &mut dyn FnMut(&[u8])) -> Result<bool, Corrupt> {
        let ends = self.memory.ends();
        let (start, written) = (self.read, ends.written.0.load(Ordering::Acquire));
        let ready = written.wrapping_sub(start);
        if ready > self.memory.capacity as u64 || !written.is_multiple_of(ALIGN as u64) {
            return Err(Corrupt);
        }
        while self.read != written && self.read - start < BATCH {
            let room = self.memory.until_end(self.read);
            let at = self.memory.data(self.read);
            // SAFETY: `ALIGN` bytes of the mapping at least, aligned to that.
            let len = unsafe { at.cast::<u32>().read() };
            let taken = match len {
                SKIP => room,
                len => record(len as usize),
            };
            if taken > room || taken as u64 > written - self.read {
                return Err(Corrupt);
            }
            if len != SKIP {
                // SAFETY: inside the mapping, checked above. The writer writes there again only when `ends.read` has passed it.
                // It is a process of the same user, which is trusted: a faulty one may change bytes after their check.
                handle(unsafe { std::slice::from_raw_parts(at.add(PREFIX), len as usize) });
            }
            self.read += taken as u64;
        }
        ends.read.0.store(self.read, Ordering::Release);
        Ok(self.read != start)
    }

    /// Notes that the reader sleeps until the writer wakes it. Returns false if it must not, because datagrams have come.
    pub(super) fn sleep(&self) -> bool {
        self.memory.ends().asleep.0.store(1, Ordering::Relaxed);
        // As in `Writer::must_wake`: one of the two sees the other's store.
        fence(Ordering::SeqCst);
        self.is_empty()
    }

    pub(super) fn wake(&self) {
        self.memory.ends().asleep.0.store(0, Ordering::Relaxed);
    }
}

/// The end that sends.
pub(super) struct Writer {
    memory: Memory,
    written: u64,
    /// At least so far the reader has read.
    read: u64,
}

impl Writer {
    /// Opens a queue of `capacity` bytes that its reader created.
    pub(super) fn open(fd: &OwnedFd, capacity: usize) -> nix::Result<Self> {
        let seals = SealFlag::from_bits_retain(fcntl(fd.as_fd(), FcntlArg::F_GET_SEALS)?);
        let len = fstat(fd)?.st_size as usize;
        if !seals.contains(SealFlag::F_SEAL_SHRINK)
            || !capacity.is_power_of_two()
            || !(ALIGN..=LARGEST).contains(&capacity)
            || len < DATA_AT + capacity
        {
            return Err(Errno::EINVAL);
        }
        Ok(Self {
            memory: Memory::map(fd, capacity)?,
            written: 0,
            read: 0,
        })
    }

    /// Adds a datagram of `len` bytes, which `write` writes. Returns false if there is no room.
    pub(super) fn push(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        let (room, taken) = (self.memory.until_end(self.written), record(len));
        let skipped = if taken > room { room } else { 0 };
        if !self.has_room(skipped + taken) {
            return false;
        }
        if skipped > 0 {
            // SAFETY: positions are multiples of `ALIGN`, and the reader is done with this memory.
            unsafe { self.memory.data(self.written).cast::<u32>().write(SKIP) };
            self.written += skipped as u64;
        }
        let at = self.memory.data(self.written);
        // SAFETY: there is room for `taken` bytes, without a break, which the reader is done with.
        write(unsafe {
            at.cast::<u32>().write(len as u32);
            std::slice::from_raw_parts_mut(at.add(PREFIX), len)
        });
        self.written += taken as u64;
        let ends = self.memory.ends();
        ends.written.0.store(self.written, Ordering::Release);
        true
    }

    fn has_room(&mut self, bytes: usize) -> bool {
        let needed = self.written + bytes as u64;
        if needed.wrapping_sub(self.read) > self.memory.capacity as u64 {
            self.read = self.memory.ends().read.0.load(Ordering::Acquire);
        }
        // A faulty reader is ahead of the writer, or goes back.
        needed.wrapping_sub(self.read) <= self.memory.capacity as u64
    }

    /// True if the reader sleeps, once. It must be woken.
    pub(super) fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        let asleep = &self.memory.ends().asleep.0;
        asleep.load(Ordering::Relaxed) == 1 && asleep.swap(0, Ordering::Relaxed) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(capacity: usize) -> (Writer, Reader) {
        let (reader, fd) = Reader::create(capacity).expect("makes memory");
        (Writer::open(&fd, capacity).expect("opens it"), reader)
    }

    fn push(writer: &mut Writer, datagram: &[u8]) -> bool {
        writer.push(datagram.len(), |room| room.copy_from_slice(datagram))
    }

    fn all(reader: &mut Reader) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while reader.read(&mut |it| all.push(it.to_vec())) == Ok(true) {}
        all
    }

    #[test]
    fn datagrams_come_out_as_they_went_in_until_there_is_no_room() {
        let (mut writer, mut reader) = queue(4096);
        for round in 0..100u8 {
            let mut sent = Vec::new();
            for number in 0.. {
                let len = (usize::from(round) * 37 + number * 211) % 1300;
                let datagram: Vec<u8> = (0..len).map(|at| at as u8 ^ round).collect();
                if !push(&mut writer, &datagram) {
                    break;
                }
                sent.push(datagram);
            }
            let bytes: usize = sent.iter().map(|datagram| record(datagram.len())).sum();
            // The next one, and the rest of the memory that is too short for another.
            assert!(bytes > 4096 - 2 * record(1300), "{bytes}");
            assert_eq!(all(&mut reader), sent, "round {round}");
        }
    }

    #[test]
    fn a_window_of_datagrams_has_room() {
        for (count, len) in [(2, 60), (14, 32_244), (127, 1460), (2, 65_507)] {
            let (mut writer, mut reader) = queue(capacity(count, len));
            for round in 0..100 {
                let mut short = 0;
                for _ in 0..count {
                    assert!(push(&mut writer, &vec![1; len]));
                    // Others in between move the place where one does not fit at the end.
                    let between = (round % 7).min(50 - short);
                    assert!((0..between).all(|_| push(&mut writer, &[2; 100])));
                    short += between;
                }
                assert_eq!(all(&mut reader).len(), count + short);
            }
        }
    }

    #[test]
    fn a_faulty_writer_is_found() {
        for (written, len) in [
            (8192, 10),
            (64, 100),
            (64, 5000),
            (65, 1),
            (64, SKIP),
            (4096, u32::MAX - 20),
        ] {
            let (writer, mut reader) = queue(4096);
            // SAFETY: inside the mapping.
            unsafe { writer.memory.data(0).cast::<u32>().write(len) };
            writer
                .memory
                .ends()
                .written
                .0
                .store(written, Ordering::Release);
            assert_eq!(
                reader.read(&mut |_| panic!("a datagram")),
                Err(Corrupt),
                "{written} {len}"
            );
        }
    }

    #[test]
    fn forked_children_have_no_copy() {
        let (writer, reader) = queue(4096);
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("reads");
        for memory in [&writer.memory, &reader.memory] {
            let start = format!("{:x}-", memory.start.as_ptr() as usize);
            let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
            let flags = lines.find(|line| line.starts_with("VmFlags:"));
            // Do not copy on fork, see proc_pid_smaps(5).
            let is_kept = flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "dc"));
            assert!(is_kept, "{flags:?}");
        }
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let fd = memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).expect("makes a file");
        ftruncate(&fd, 1 << 16).expect("sizes it");
        let open = || Writer::open(&fd, 4096).map(|_| ());
        assert_eq!(open(), Err(Errno::EINVAL));
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).expect("seals it");
        assert_eq!(open(), Ok(()));
        let longer = Writer::open(&fd, 1 << 16).map(|_| ());
        assert_eq!(longer, Err(Errno::EINVAL));
    }

    /// The reader sleeps whenever the queue is empty. A wake-up that is lost would end the test by its time limit.
    #[test]
    fn a_sleeping_reader_is_woken() {
        const COUNT: u32 = 200_000;
        let (mut writer, mut reader) = queue(1 << 16);
        let (wake, woken) = std::sync::mpsc::channel();
        let sender = std::thread::spawn(move || {
            for number in 0..COUNT {
                while !push(&mut writer, &number.to_le_bytes()) {
                    std::thread::yield_now();
                }
                if writer.must_wake() {
                    wake.send(()).expect("the reader is there");
                }
            }
        });
        let mut next = 0;
        while next < COUNT {
            let came = reader.read(&mut |it| {
                assert_eq!(it, next.to_le_bytes());
                next += 1;
            });
            if came == Ok(false) && reader.sleep() {
                woken.recv().expect("a wake-up");
            }
        }
        sender.join().expect("no panic");
    }
}
