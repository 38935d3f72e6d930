//! Writes pcap files: captures of a port, `NAME_in.pcap` and `NAME_out.pcap`, and output of replays.
//!
//! The format is the classic one, little-endian, with nanoseconds (draft-ietf-opsawg-pcap).
//!
//! A writer locks its file (flock(2)), which also covers other names of the file and other processes. The file stays
//! unchanged until [`Trace::begin`], so that an error before that destroys no capture.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
/// Snap length: the longest frame in bytes.
const SNAP_LENGTH: u32 = 65_535;

/// A direction, from the switch's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Frames received.
    In,
    /// Frames that left.
    Out,
}

/// The two files of a port.
#[derive(Debug)]
pub(crate) struct Capture {
    input: Option<Trace>,
    output: Option<Trace>,
}

/// What to do if the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    /// Fail.
    Refused,
    /// Replace the contents.
    Replaced,
    /// Append.
    Continued,
}

/// A pcap file that is being written.
#[derive(Debug)]
pub(crate) struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The file is new.
    Created,
    /// The file existed.
    Found(Present),
    Begun,
}

impl Capture {
    /// Opens both files in `dir`, which must exist. `name` is the port's.
    pub(crate) fn open(dir: &Path, name: &str, present: Present) -> io::Result<Self> {
        let open = |file: String| Trace::open(dir.join(file), present).map(Some);
        Ok(Capture {
            input: open(format!("{name}_in.pcap"))?,
            output: open(format!("{name}_out.pcap"))?,
        })
    }

    /// Prepares both files for frames.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        let traces = [&mut self.input, &mut self.output];
        traces.into_iter().flatten().try_for_each(Trace::begin)
    }

    /// Adds a frame seen at `time`, since the epoch.
    pub(crate) fn record(&mut self, direction: Direction, time: Duration, frame: &[u8]) {
        let trace = match direction {
            Direction::In => &mut self.input,
            Direction::Out => &mut self.output,
        };
        Trace::end_on_error(trace, |open| open.record(time, frame));
    }

    /// Flushes buffers.
    pub(crate) fn flush(&mut self) {
        for trace in [&mut self.input, &mut self.output] {
            Trace::end_on_error(trace, Trace::flush);
        }
    }
}

impl Trace {
    /// Opens or creates the file for exclusive use. Dropping the trace before [`Trace::begin`] leaves everything unchanged.
    ///
    /// # Errors
    /// With the file's name: an error of the system, a file that is in use, or a pipe or the like, whose reader could block
    /// the switch.
    pub(crate) fn open(path: PathBuf, present: Present) -> io::Result<Self> {
        Self::open_file(&path, present)
            .map(|(file, state)| Trace {
                file: BufWriter::new(file),
                state,
                path: path.clone(),
            })
            .map_err(|error| of_file(&path, error))
    }

    fn open_file(path: &Path, present: Present) -> io::Result<(File, State)> {
        let mut options = File::options();
        // Without the flag, opening a pipe would wait for its reader.
        options.write(true).custom_flags(libc::O_NONBLOCK);
        let (file, state) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, State::Created),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if present == Present::Refused {
                    return Err(error);
                }
                // Created where a symbolic link leads to nothing yet.
                match options.create(true).open(path) {
                    Ok(file) => (file, State::Found(present)),
                    // A pipe that nobody reads.
                    Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                        return Err(no_regular_file());
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        let kind = file.metadata()?.file_type();
        if kind.is_file() {
            refuse_if_held(file.try_lock(), "it is replayed or written to already")?;
        } else if !kind.is_char_device() {
            // A device such as /dev/null takes everything at once.
            return Err(no_regular_file());
        }
        Ok((file, state))
    }

    /// Prepares the file for frames.
    pub(crate) fn begin(&mut self) -> io::Result<()> {
        self.try_begin().map_err(|error| of_file(&self.path, error))
    }

    fn try_begin(&mut self) -> io::Result<()> {
        let file = self.file.get_mut();
        let state = std::mem::replace(&mut self.state, State::Begun);
        let is_file = file.metadata()?.is_file();
        if is_file && state == State::Found(Present::Replaced) {
            file.set_len(0)?;
        }
        if is_file && file.seek(SeekFrom::End(0))? > 0 {
            return Ok(());
        }
        self.file.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        // Version 2.4, then two fields that are always zero.
        self.file.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        self.file.write_all(&SNAP_LENGTH.to_le_bytes())?;
        self.file.write_all(&LINKTYPE_ETHERNET.to_le_bytes())
    }

    /// Writes to a file that has not failed. A failure is logged once and ends the capture; forwarding continues.
    pub(crate) fn end_on_error(
        trace: &mut Option<Trace>,
        action: impl FnOnce(&mut Trace) -> io::Result<()>,
    ) {
        let Some(open) = trace else { return };
        if let Err(error) = action(open) {
            tracing::warn!("{}: capture ends: {error}", open.path.display());
            *trace = None;
        }
    }

    /// Flushes buffers.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }

    /// Adds a frame.
    pub(crate) fn record(&mut self, time: Duration, frame: &[u8]) -> io::Result<()> {
        // The format has 32 bits for seconds: until 2106. A frame is at most 65,535 bytes.
        let words = [
            time.as_secs() as u32,
            time.subsec_nanos(),
            frame.len() as u32,
            frame.len() as u32,
        ];
        for word in words {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(frame)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.state == State::Created {
            // Best effort: it is empty, whatever becomes of it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens a file for reading and locks it against writers.
///
/// # Errors
/// As for [`Trace::open`].
pub(crate) fn open_source(path: &Path) -> io::Result<File> {
    let open = || {
        // As above, for a pipe without a writer.
        let nonblocking = libc::O_NONBLOCK;
        let file = File::options()
            .read(true)
            .custom_flags(nonblocking)
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(no_regular_file());
        }
        refuse_if_held(file.try_lock_shared(), "it is written to")?;
        Ok(file)
    };
    open().map_err(|error| of_file(path, error))
}

fn no_regular_file() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "expected a regular file")
}

fn refuse_if_held(locked: Result<(), TryLockError>, why: &str) -> io::Result<()> {
    match locked {
        Err(TryLockError::WouldBlock) => {
            let text = format!("{why} by a port of this switch or by another; give another file");
            Err(io::Error::new(ErrorKind::ResourceBusy, text))
        }
        // There are file systems without locks; files on them are as safe as their names differ.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Returns the error with the file's name.
pub(crate) fn of_file(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;

    use super::*;

    #[test]
    fn another_implementation_reads_the_files() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let mut capture = Capture::open(dir.path(), "7", Present::Replaced).expect("open");
        capture.begin().expect("begin");
        let time = Duration::new(1_700_000_000, 123_456_789);
        capture.record(Direction::In, time, &[1; 60]);
        capture.record(Direction::In, time, &[]);
        capture.record(Direction::Out, time, &[2; 65_535]);
        capture.flush();
        let read = |name: &str| {
            let file = File::open(dir.path().join(name)).expect("the file is there");
            let mut reader = PcapReader::new(file).expect("a pcap header");
            assert_eq!(reader.header().datalink, pcap_file::DataLink::ETHERNET);
            let mut packets = Vec::new();
            while let Some(packet) = reader.next_packet() {
                let packet = packet.expect("a packet");
                assert_eq!(packet.timestamp, time);
                packets.push(packet.data.into_owned());
            }
            packets
        };
        assert_eq!(read("7_in.pcap"), [vec![1; 60], vec![]]);
        assert_eq!(read("7_out.pcap"), [vec![2; 65_535]]);
    }

    #[test]
    fn nothing_changes_before_it_begins() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "somebody's").expect("written");
        for path in [&old, &new] {
            drop(Trace::open(path.clone(), Present::Replaced).expect("opened"));
        }
        assert_eq!(fs::read(&old).expect("there"), b"somebody's");
        assert!(!new.exists());
        let mut trace = Trace::open(old.clone(), Present::Replaced).expect("opened");
        trace.begin().expect("begun");
        drop(trace);
        let header = fs::read(&old).expect("there");
        assert_eq!(header.len(), 24);
        let mut trace = Trace::open(old.clone(), Present::Continued).expect("opened");
        trace.begin().expect("begun");
        trace.record(Duration::ZERO, &[7; 60]).expect("written");
        drop(trace);
        assert_eq!(fs::read(&old).expect("there").len(), 24 + 16 + 60);
    }

    #[test]
    fn a_file_has_one_writer_and_none_while_it_is_read() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let (path, alias) = (dir.path().join("file"), dir.path().join("alias"));
        fs::write(&path, "frames").expect("written");
        std::os::unix::fs::symlink(&path, &alias).expect("linked");
        let busy = |result: io::Result<()>| {
            let error = result.expect_err("it is in use");
            assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
            assert!(error.to_string().contains("alias: it is "), "{error}");
        };
        let write = |path: &Path| Trace::open(path.to_owned(), Present::Replaced);
        let writer = write(&path).expect("opened");
        busy(write(&alias).map(drop));
        busy(open_source(&alias).map(drop));
        drop(writer);
        let readers = [&path, &alias].map(|path| open_source(path).expect("opened"));
        busy(write(&alias).map(drop));
        drop(readers);
        write(&alias).expect("opened");
        assert_eq!(fs::read(&path).expect("there"), b"frames");
    }

    #[test]
    fn pipes_are_refused_without_waiting() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let texts = [
            open_source(&path).map(drop),
            Trace::open(path.clone(), Present::Replaced).map(drop),
            open_source(dir.path()).map(drop),
        ]
        .map(|result| result.expect_err("no file").to_string());
        for text in texts {
            assert!(text.ends_with("expected a regular file"), "{text}");
        }
        Trace::open("/dev/null".into(), Present::Replaced)
            .expect("a device")
            .begin()
            .expect("takes everything");
    }
}
