//! Pcap files as they are written: what a port saw is two of them, `PORT_in.pcap` and
//! `PORT_out.pcap`.
//!
//! The classic format, little-endian, with nanoseconds (draft-ietf-opsawg-pcap).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
/// Longest frame, in bytes; nothing is cut.
const SNAP_LENGTH: u32 = 65_535;

/// A direction, seen from the switch.
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

/// A pcap file that is being written.
#[derive(Debug)]
pub(crate) struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Capture {
    /// Creates both files in `dir`, which must exist.
    pub(crate) fn create(dir: &Path, port: u16) -> io::Result<Self> {
        let create = |name: String| Trace::create(dir.join(name), true).map(Some);
        Ok(Capture {
            input: create(format!("{port}_in.pcap"))?,
            output: create(format!("{port}_out.pcap"))?,
        })
    }

    /// Adds a frame seen at `time`, since the epoch.
    pub(crate) fn record(&mut self, direction: Direction, time: Duration, frame: &[u8]) {
        let trace = match direction {
            Direction::In => &mut self.input,
            Direction::Out => &mut self.output,
        };
        Trace::end_on_error(trace, |open| open.record(time, frame));
    }

    /// Writes out what is buffered.
    pub(crate) fn flush(&mut self) {
        for trace in [&mut self.input, &mut self.output] {
            Trace::end_on_error(trace, Trace::flush);
        }
    }
}

impl Trace {
    /// Creates the file; one that is there is replaced, or else an error.
    pub(crate) fn create(path: PathBuf, overwrite: bool) -> io::Result<Self> {
        let mut options = File::options();
        options.write(true);
        if overwrite {
            options.create(true).truncate(true);
        } else {
            options.create_new(true);
        }
        let mut file = BufWriter::new(options.open(&path)?);
        file.write_all(&MAGIC_NANOSECONDS.to_le_bytes())?;
        // Version 2.4, then two fields that are always zero.
        file.write_all(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0])?;
        file.write_all(&SNAP_LENGTH.to_le_bytes())?;
        file.write_all(&LINKTYPE_ETHERNET.to_le_bytes())?;
        Ok(Trace { path, file })
    }

    /// Does something with a file that is still good. One that cannot be written to any more is said
    /// so once and left as it is; the packets go on.
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

    /// Writes out what is buffered.
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

#[cfg(test)]
mod tests {
    use pcap_file::pcap::PcapReader;

    use super::*;

    #[test]
    fn another_implementation_reads_the_files() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let mut capture = Capture::create(dir.path(), 7).expect("create");
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
}
