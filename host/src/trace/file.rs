//! The trace file: a thread formats records and writes them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;

use super::Sink;
use super::lines::{self, Head};
use super::record::{Happened, Record};

/// Records per batch to the writer, so that the threads rarely wake each other.
const BATCH: usize = 512;
/// Batches that may wait for the writer: about 12 MiB of records, for all sinks of a file.
const WAITING: usize = 256;

/// Behaviour of a sink when the writer is too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Drops records, and writes their number to the trace. For real time.
    Drop,
    /// Waits. For simulated time.
    Wait,
}

/// The counters of a finished trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Records in the file.
    pub records: u64,
    /// Dropped records.
    pub dropped: u64,
}

/// A trace file while it is written.
pub struct TraceFile {
    queue: SyncSender<Vec<Record>>,
    when_full: WhenFull,
    writer: JoinHandle<io::Result<Written>>,
}

impl TraceFile {
    /// Creates or truncates the file and writes its first line.
    ///
    /// # Errors
    /// The file cannot be written, or the thread cannot be started.
    pub fn create(path: &Path, head: &Head, when_full: WhenFull) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        lines::write(&mut file, head)?;
        file.flush()?;
        Self::write_to(file, when_full, WAITING)
    }

    fn write_to<W: Write + Send + 'static>(
        file: W,
        when_full: WhenFull,
        waiting: usize,
    ) -> io::Result<Self> {
        let (queue, batches) = sync_channel(waiting);
        let writer = std::thread::Builder::new()
            .name("ultima-trace".into())
            .spawn(move || write(file, &batches))?;
        Ok(Self {
            queue,
            when_full,
            writer,
        })
    }

    /// Creates a sink for one core's records.
    pub fn sink(&self) -> FileSink {
        FileSink {
            batch: Vec::with_capacity(BATCH),
            queue: self.queue.clone(),
            when_full: self.when_full,
            gap: None,
        }
    }

    /// Waits until the last sink is dropped and all records are written.
    ///
    /// # Errors
    /// A write failed.
    pub fn finish(self) -> io::Result<Written> {
        let TraceFile { queue, writer, .. } = self;
        drop(queue);
        writer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Passes one core's records to a [`TraceFile`]: in batches, at an operation's end, and when it is dropped.
pub struct FileSink {
    batch: Vec<Record>,
    queue: SyncSender<Vec<Record>>,
    when_full: WhenFull,
    /// Reports the records that were dropped since the last batch.
    gap: Option<Record>,
}

impl FileSink {
    fn hand_over(&mut self, when_full: WhenFull) {
        if let Some(gap) = self.gap {
            self.batch.insert(0, gap);
        }
        if self.batch.is_empty() {
            return;
        }
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        let refused = match when_full {
            WhenFull::Wait => self.queue.send(batch).err().map(|refused| refused.0),
            WhenFull::Drop => match self.queue.try_send(batch) {
                Ok(()) => None,
                Err(TrySendError::Full(batch) | TrySendError::Disconnected(batch)) => Some(batch),
            },
        };
        match refused {
            None => self.gap = None,
            Some(batch) => {
                let lost = |record: &Record| match record.happened {
                    Happened::Dropped { records } => records,
                    _ => 1,
                };
                let happened = Happened::Dropped {
                    records: batch.iter().map(lost).sum(),
                };
                self.gap = Some(Record {
                    happened,
                    ..batch[0]
                });
                self.batch = batch;
                self.batch.clear();
            }
        }
    }
}

impl Sink for FileSink {
    fn record(&mut self, record: &Record) {
        self.batch.push(*record);
        // One less than there is room for: a gap record may follow.
        if self.batch.len() >= BATCH - 1 || matches!(record.happened, Happened::Ended { .. }) {
            self.hand_over(self.when_full);
        }
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        // No packets wait for this thread any more.
        self.hand_over(WhenFull::Wait);
    }
}

fn write<W: Write>(mut file: W, batches: &Receiver<Vec<Record>>) -> io::Result<Written> {
    let mut written = Written::default();
    loop {
        let batch = match batches.try_recv() {
            Ok(batch) => batch,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                // For readers of a growing trace.
                file.flush()?;
                let Ok(batch) = batches.recv() else { break };
                batch
            }
        };
        for record in batch {
            lines::write(&mut file, &record)?;
            match record.happened {
                Happened::Dropped { records } => written.dropped += records,
                _ => written.records += 1,
            }
        }
    }
    file.flush()?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::time::Time;
    use crate::trace::Timer;

    /// A file that blocks until the test releases it.
    struct Slow {
        bytes: Arc<Mutex<Vec<u8>>>,
        go: Receiver<()>,
        held: bool,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::take(&mut self.held) {
                self.go.recv().expect("the test sends");
            }
            self.bytes
                .lock()
                .expect("no panic")
                .extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Slow, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let (send, go) = channel();
        let bytes = Arc::<Mutex<Vec<u8>>>::default();
        let slow = Slow {
            bytes: bytes.clone(),
            go,
            held: true,
        };
        (slow, send, bytes)
    }

    fn record(at: u64) -> Record {
        Record {
            time: Time::from_nanos(at),
            rank: 0,
            step: 0,
            bucket: 0,
            happened: Happened::Timer {
                timer: Timer::Flush,
            },
        }
    }

    /// Writes this many records while the file is blocked.
    fn hold_up(all: u64) {
        let (file, go, bytes) = slow();
        let trace = TraceFile::write_to(file, WhenFull::Drop, 2).expect("a thread");
        let mut sink = trace.sink();
        (0..all).for_each(|at| sink.record(&record(at)));
        go.send(()).expect("it waits");
        drop(sink);
        let written = trace.finish().expect("memory takes it");
        assert_eq!(written.records + written.dropped, all);
        // One batch at the writer, two in the queue, one more if the writer started late, and the rest at the
        // end.
        assert!(written.records <= 5 * BATCH as u64, "{written:?}");
        let text = String::from_utf8(bytes.lock().expect("no panic").clone()).expect("text");
        // In one gap, or in two if the writer took its first batch after the first drops.
        let lines = text.lines().skip(1).map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            (line["event"] == "dropped").then(|| line["records"].as_u64().expect("a number"))
        });
        let gaps: Vec<u64> = lines.flatten().collect();
        assert!((1..=2).contains(&gaps.len()), "{gaps:?}");
        assert_eq!(gaps.iter().sum::<u64>(), written.dropped);
    }

    #[test]
    fn a_writer_that_does_not_keep_up_costs_records_and_they_are_counted() {
        hold_up(100 * BATCH as u64);
        // Only the gap is left at the end.
        hold_up(100 * (BATCH as u64 - 1));
    }

    #[test]
    fn a_sink_that_waits_loses_nothing() {
        let (file, go, bytes) = slow();
        let trace = TraceFile::write_to(file, WhenFull::Wait, 1).expect("a thread");
        let mut sink = trace.sink();
        go.send(()).expect("it waits");
        let all = 20 * BATCH as u64 + 3;
        (0..all).for_each(|at| sink.record(&record(at)));
        drop(sink);
        let written = trace.finish().expect("memory takes it");
        assert_eq!((written.records, written.dropped), (all, 0));
        let lines = bytes.lock().expect("no panic");
        assert_eq!(
            lines.iter().filter(|byte| **byte == b'\n').count() as u64,
            all
        );
    }

    #[test]
    fn a_full_disk_is_reported_at_the_end_and_stops_no_rank() {
        let Ok(full) = File::options().write(true).open("/dev/full") else {
            panic!("Linux has /dev/full");
        };
        let trace = TraceFile::write_to(full, WhenFull::Wait, 1).expect("a thread");
        let mut sink = trace.sink();
        (0..10 * BATCH as u64).for_each(|at| sink.record(&record(at)));
        drop(sink);
        let error = trace.finish().expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
