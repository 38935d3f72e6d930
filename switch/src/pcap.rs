//! Writes pcap files: captures of a port, `NAME_in.pcap` and `NAME_out.pcap`.
//!
//! The format is the classic one, little-endian, with nanoseconds (draft-ietf-opsawg-pcap).

use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
/// Snap length: the longest frame in bytes.
const SNAP_LENGTH: u32 = 65_535;

/// A direction, from the switch's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

/// The two files of a port. A file is closed at its first error.
#[derive(Debug)]
pub(crate) struct Capture {
    input: Option<Trace>,
    output: Option<Trace>,
}

/// A pcap file that is being written, locked against other writers (flock(2)).
#[derive(Debug)]
struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Capture {
    /// Opens both files in `dir`, which must exist, and appends to them or replaces their content. `name` is the port's.
    ///
    /// # Errors
    /// With the file's name: an error of the system, a file that is in use, or a pipe or the like, whose reader could block
    /// the switch.
    pub(crate) fn open(dir: &Path, name: &str, append: bool) -> io::Result<Self> {
        let open = |file: String| {
            let path = dir.join(file);
            let named = |error: io::Error| {
                io::Error::new(error.kind(), format!("{}: {error}", path.display()))
            };
            let file = open_file(&path, append).map_err(named)?;
            let path = path.clone();
            Ok::<_, io::Error>(Some(Trace { path, file }))
        };
        Ok(Capture {
            input: open(format!("{name}_in.pcap"))?,
            output: open(format!("{name}_out.pcap"))?,
        })
    }

    /// Adds a frame seen at `time`, since the epoch.
    pub(crate) fn record(&mut self, direction: Direction, time: Duration, frame: &[u8]) {
        let trace = match direction {
            Direction::In => &mut self.input,
            Direction::Out => &mut self.output,
        };
        end_on_error(trace, |file| record(file, time, frame));
    }

    pub(crate) fn flush(&mut self) {
        for trace in [&mut self.input, &mut self.output] {
            end_on_error(trace, BufWriter::flush);
        }
    }
}

/// Opens and locks a file, and writes the header if the file is empty.
fn open_file(path: &Path, append: bool) -> io::Result<BufWriter<File>> {
    let no_regular_file = || io::Error::new(ErrorKind::InvalidInput, "expected a regular file");
    let mut options = File::options();
    // Without the flag, opening a pipe would wait for its reader.
    let options = options.write(true).custom_flags(libc::O_NONBLOCK);
    let mut file = match options.create(true).open(path) {
        // A pipe without a reader.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Err(no_regular_file()),
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(no_regular_file());
    }
    // There are file systems without locks; files on them are as safe as their names differ.
    if let Err(TryLockError::WouldBlock) = file.try_lock() {
        let text = "a port of this switch or of another writes it already; give another folder";
        return Err(io::Error::new(ErrorKind::ResourceBusy, text));
    }
    if !append {
        file.set_len(0)?;
    }
    let is_empty = file.seek(SeekFrom::End(0))? == 0;
    let mut file = BufWriter::new(file);
    if is_empty {
        file.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        // Version 2.4, then two fields that are always zero.
        file.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        file.write_all(&SNAP_LENGTH.to_le_bytes())?;
        file.write_all(&LINKTYPE_ETHERNET.to_le_bytes())?;
    }
    Ok(file)
}

/// Writes to a file that has not failed. A failure is logged once and ends the capture; forwarding continues.
fn end_on_error(
    trace: &mut Option<Trace>,
    action: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) {
    let Some(open) = trace else { return };
    if let Err(error) = action(&mut open.file) {
        tracing::warn!("{}: capture ends: {error}", open.path.display());
        *trace = None;
    }
}

fn record(file: &mut BufWriter<File>, time: Duration, frame: &[u8]) -> io::Result<()> {
    // The format has 32 bits for seconds: until 2106. A frame is at most 65,535 bytes.
    let words = [
        time.as_secs() as u32,
        time.subsec_nanos(),
        frame.len() as u32,
        frame.len() as u32,
    ];
    for word in words {
        file.write_all(&word.to_le_bytes())?;
    }
    file.write_all(frame)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use pcap_file::pcap::PcapReader;

    use super::*;

    #[test]
    fn another_implementation_reads_the_files() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let mut capture = Capture::open(dir.path(), "7", false).expect("open");
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
    fn a_capture_replaces_or_continues_its_files() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("7_in.pcap");
        fs::write(&path, "an earlier run's").expect("written");
        for (append, length) in [(false, 24), (true, 24 + 16 + 60)] {
            let mut capture = Capture::open(dir.path(), "7", append).expect("opened");
            if append {
                capture.record(Direction::In, Duration::ZERO, &[7; 60]);
            }
            drop(capture);
            assert_eq!(fs::read(&path).expect("there").len(), length);
        }
    }

    #[test]
    fn a_file_has_one_writer() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let alias = dir.path().join("8_in.pcap");
        std::os::unix::fs::symlink(dir.path().join("7_in.pcap"), &alias).expect("linked");
        let first = Capture::open(dir.path(), "7", false).expect("opened");
        let error = Capture::open(dir.path(), "8", false).expect_err("it is in use");
        assert_eq!(error.kind(), ErrorKind::ResourceBusy, "{error}");
        assert!(
            error.to_string().contains("8_in.pcap: a port of "),
            "{error}"
        );
        drop(first);
        Capture::open(dir.path(), "8", false).expect("opened");
    }

    #[test]
    fn pipes_are_refused_without_waiting() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let path = dir.path().join("7_in.pcap");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        let error = Capture::open(dir.path(), "7", false).expect_err("no file");
        assert!(
            error.to_string().ends_with("expected a regular file"),
            "{error}"
        );
    }
}
