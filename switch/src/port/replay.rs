//! Ports on pcap files: frames of one file enter the switch, frames that leave are written to another.
//!
//! Frames enter as fast as the switch takes them, with pauses while queues are long, or at their times in the file, relative
//! to the first.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::sys::epoll::Epoll;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use pcap_file::pcap::{PcapReader, RawPcapPacket};
use pcap_file::{DataLink, PcapError, TsResolution};

use super::mmsg::{Frame, RxBatch};
use super::{Interest, PortIo, Received, Replay};
use crate::config::PcapFiles;
use crate::pcap::{self, Present, Trace};
use crate::tm::{BATCH, Departure, Medium};

/// libpcap's MAXIMUM_SNAPLEN: no record is longer.
const MAX_RECORD: u32 = 262_144;
/// Pause of a replay while queues are long.
const PAUSE: Duration = Duration::from_micros(100);
/// Shortest time of a timer, to ring at once: 0 would turn it off.
const AT_ONCE: Duration = Duration::from_nanos(1);

/// A port on pcap files.
pub(crate) struct ReplayPort {
    source: Option<Source>,
    sink: Option<Trace>,
    /// True if the port was opened with a file to replay.
    replays: bool,
    /// See [`ReplayPlan::decisive`].
    decisive: bool,
    failed: Option<String>,
}

/// Settings of all replays of a switch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReplayPlan {
    /// Time from opening a port to its first frame.
    pub(crate) after: Duration,
    /// True if a file that cannot be read to its end ends the switch with an error.
    pub(crate) decisive: bool,
}

/// The file whose frames enter.
struct Source {
    path: PathBuf,
    reader: PcapReader<File>,
    /// Readable when a frame can enter.
    timer: TimerFd,
    interest: Interest,
    /// Mapping of the file's times, for a timed replay.
    pace: Option<Pace>,
    /// A frame that was read before its time.
    early: Option<(Instant, Vec<u8>)>,
    records: u64,
}

/// Maps times in the file to instants.
struct Pace {
    start: Instant,
    first: Option<Duration>,
}

/// Why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("not a pcap file; pcapng becomes one by `editcap -F pcap`")]
    Format,
    #[error("frames of link type {0:?}, expected Ethernet")]
    LinkType(DataLink),
    #[error("record {0} is cut off: the file ends within it")]
    CutOff(u64),
    #[error(
        "record {record} has {bytes} bytes, expected at most {MAX_RECORD}: the file is damaged"
    )]
    TooLong { record: u64, bytes: u32 },
    #[error("record {record}: {source}")]
    Read { record: u64, source: io::Error },
}

impl From<Fault> for io::Error {
    fn from(fault: Fault) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, fault)
    }
}

impl ReplayPort {
    /// Opens the files.
    pub(crate) fn open(files: PcapFiles, plan: ReplayPlan) -> io::Result<Self> {
        let PcapFiles {
            input,
            output,
            timed,
            overwrite,
        } = files;
        let present = match overwrite {
            true => Present::Replaced,
            false => Present::Refused,
        };
        let source = input
            .map(|path| Source::open(path, timed, plan.after))
            .transpose()?;
        let sink = output.map(|path| Trace::open(path, present)).transpose()?;
        Ok(ReplayPort {
            replays: source.is_some(),
            source,
            sink,
            decisive: plan.decisive,
            failed: None,
        })
    }

    /// Ends the replay, at the end of the file or with a fault.
    fn end(&mut self, poller: &Epoll, fault: Option<Fault>) {
        let Some(mut source) = self.source.take() else {
            return;
        };
        if let Some(fault) = fault {
            let problem = format!("{}: {fault}", source.path.display());
            if !self.decisive {
                tracing::error!("{problem}; its replay ends here");
            }
            self.failed = Some(problem);
        }
        // The descriptor is closed now, which removes it from every poller.
        let _ = source.interest.remove(poller, source.timer.as_fd());
    }
}

impl Source {
    fn open(path: PathBuf, timed: bool, after: Duration) -> io::Result<Self> {
        let file = pcap::open_source(&path)?;
        let failed = |error: io::Error| pcap::of_file(&path, error);
        let reader = PcapReader::new(file).map_err(|error| match error {
            PcapError::IoError(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                failed(source)
            }
            _ => failed(Fault::Format.into()),
        })?;
        let link = reader.header().datalink;
        if link != DataLink::ETHERNET {
            return Err(failed(Fault::LinkType(link).into()));
        }
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let pace = timed.then(|| Pace {
            start: Instant::now() + after,
            first: None,
        });
        let source = Source {
            path,
            reader,
            timer,
            interest: Interest::in_frames(),
            pace,
            early: None,
            records: 0,
        };
        source.wait(after)?;
        Ok(source)
    }

    /// Sets the timer, which then stays readable.
    fn wait(&self, time: Duration) -> io::Result<()> {
        let time = TimeSpec::from_duration(time.max(AT_ONCE));
        let once = Expiration::OneShot(time);
        Ok(self.timer.set(once, TimerSetTimeFlags::empty())?)
    }

    /// Passes on the next frame if it is due. Returns `None` at the end of the file.
    fn next(&mut self, each: &mut dyn FnMut(Frame<'_>)) -> Result<Option<Received>, Fault> {
        let record = self.records;
        let failed = |source| Fault::Read { record, source };
        if let Some((due, frame)) = self.early.take() {
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                each(Frame::whole(&frame));
                return Ok(Some(Received::Frames));
            }
            self.early = Some((due, frame));
            self.wait(left).map_err(failed)?;
            return Ok(Some(Received::Empty));
        }
        let resolution = self.reader.header().ts_resolution;
        let record = self.records + 1;
        let Some(packet) = self.reader.next_raw_packet() else {
            return Ok(None);
        };
        let packet = packet.map_err(|error| match error {
            PcapError::IoError(source) if source.kind() != io::ErrorKind::UnexpectedEof => {
                Fault::Read { record, source }
            }
            _ => Fault::CutOff(record),
        })?;
        if packet.incl_len > MAX_RECORD {
            return Err(Fault::TooLong {
                record,
                bytes: packet.incl_len,
            });
        }
        self.records = record;
        match &mut self.pace {
            Some(pace) => {
                let due = pace.moment(time_of(&packet, resolution));
                self.early = Some((due, packet.data.into_owned()));
                self.next(each)
            }
            None => {
                each(Frame::whole(&packet.data));
                Ok(Some(Received::Frames))
            }
        }
    }
}

impl Pace {
    /// Returns the instant at which a frame with this time enters, at the earliest that of the first frame.
    fn moment(&mut self, time: Duration) -> Instant {
        let first = *self.first.get_or_insert(time);
        let after = time.saturating_sub(first);
        // Beyond what a clock can show: never, as far as anybody will notice.
        self.start.checked_add(after).unwrap_or(self.start)
    }
}

fn time_of(packet: &RawPcapPacket<'_>, resolution: TsResolution) -> Duration {
    let fraction = match resolution {
        TsResolution::MicroSecond => Duration::from_micros(packet.ts_frac.into()),
        TsResolution::NanoSecond => Duration::from_nanos(packet.ts_frac.into()),
    };
    Duration::from_secs(packet.ts_sec.into()) + fraction
}

impl PortIo for ReplayPort {
    fn begin(&mut self) -> io::Result<()> {
        self.sink.as_mut().map_or(Ok(()), Trace::begin)
    }

    fn register(&mut self, poller: &Epoll, token: u64) -> io::Result<()> {
        match &mut self.source {
            Some(source) => source.interest.add(poller, source.timer.as_fd(), token),
            None => Ok(()),
        }
    }

    fn want_writable(&mut self, _: &Epoll, _: u64, _: bool) -> io::Result<()> {
        // A file takes everything at once.
        Ok(())
    }

    fn receive(
        &mut self,
        poller: &Epoll,
        _: u64,
        _: &mut RxBatch,
        each: &mut dyn FnMut(Frame<'_>),
    ) -> Received {
        for _ in 0..BATCH {
            let Some(source) = &mut self.source else {
                return Received::Empty;
            };
            match source.next(each) {
                Ok(Some(Received::Frames)) => {}
                Ok(Some(Received::Empty)) => return Received::Empty,
                Ok(None) => self.end(poller, None),
                Err(fault) => self.end(poller, Some(fault)),
            }
        }
        Received::Frames
    }

    fn hold_back(&mut self) -> bool {
        match &self.source {
            // A timer that cannot be set keeps on ringing, and frames keep on coming.
            Some(source) if source.pace.is_none() => source.wait(PAUSE).is_ok(),
            _ => false,
        }
    }

    fn replay(&self) -> Replay<'_> {
        match (&self.source, &self.failed) {
            (Some(_), _) => Replay::Running,
            (None, Some(problem)) => Replay::Failed(problem),
            (None, None) if self.replays => Replay::Ended,
            (None, None) => Replay::None,
        }
    }

    fn connected(&self) -> bool {
        self.sink.is_some()
    }

    fn buffers(&self) -> bool {
        self.sink.is_some()
    }

    fn flush(&mut self) {
        Trace::end_on_error(&mut self.sink, Trace::flush);
    }
}

impl Medium for ReplayPort {
    fn send(&mut self, frames: &[&[u8]], reports: &mut Vec<Departure>) {
        // A clock before 1970 is nobody's.
        let time = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        for frame in frames {
            Trace::end_on_error(&mut self.sink, |sink| sink.record(time, frame));
            reports.push(match self.sink {
                Some(_) => Departure::Left,
                None => Departure::NoPeer,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frame_sets_the_time_and_none_comes_before_it() {
        let start = Instant::now();
        let mut pace = Pace { start, first: None };
        let (early, late) = (Duration::from_secs(100), Duration::from_secs(107));
        assert_eq!(pace.moment(late), start);
        assert_eq!(pace.moment(early), start, "a capture may go back in time");
        assert_eq!(
            pace.moment(late + Duration::from_micros(3)),
            start + Duration::from_micros(3)
        );
    }
}
