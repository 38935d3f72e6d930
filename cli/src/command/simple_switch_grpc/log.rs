//! The switch's log: standard output, or files of a limited size.

use std::fs::{self, File};
use std::io::{self, BufWriter, Stdout, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;
use tracing_subscriber::fmt::MakeWriter;
use ultima_console::input::name_of;
use ultima_console::units::counted;
use ultima_switch::trace::LogEntry;

/// The destination of the log, which packets and messages share.
#[derive(Clone)]
pub struct Log(Arc<Mutex<Output>>);

enum Output {
    Console(BufWriter<Stdout>),
    File(LogFile),
}

/// A log file. When it is full, the log continues in a new one, as with BMv2: FILE.txt becomes FILE.1.txt, FILE.1.txt becomes
/// FILE.2.txt.
struct LogFile {
    name: PathBuf,
    file: BufWriter<File>,
    size: u64,
    max_size: u64,
    max_files: u64,
}

impl Log {
    /// A log on standard output.
    pub fn console() -> Log {
        Log::to(Output::Console(BufWriter::new(io::stdout())))
    }

    /// A log in NAME.txt, after the text that it has. Older logs are kept in at most `max_files` files of about `max_size` bytes.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn file(name: &Path, max_size: u64, max_files: u64) -> Result<Log> {
        let path = numbered(name, 0);
        let open = File::options().create(true).append(true).open(&path);
        let file = open.with_context(|| name_of(&path))?;
        Ok(Log::to(Output::File(LogFile {
            name: name.to_owned(),
            size: file.metadata()?.len(),
            file: BufWriter::new(file),
            max_size,
            max_files,
        })))
    }

    fn to(output: Output) -> Log {
        Log(Arc::new(Mutex::new(output)))
    }

    /// Locks the output. After a panic elsewhere it is usable: at worst, a message is incomplete.
    fn lock(&self) -> MutexGuard<'_, Output> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes packets until the switch ends. `flush`: writes each packet to the file at once, not only when no other waits.
    pub fn follow(
        &self,
        mut packets: Receiver<LogEntry>,
        flush: bool,
    ) -> io::Result<JoinHandle<()>> {
        let log = self.clone();
        thread::Builder::new()
            .name("ultima-log".to_owned())
            .spawn(move || {
                loop {
                    let next = match packets.try_recv() {
                        Err(TryRecvError::Empty) => {
                            if log.lock().flush().is_err() {
                                return;
                            }
                            packets.blocking_recv()
                        }
                        received => received.ok(),
                    };
                    let Some(entry) = next else { break };
                    let written = log.lock().packet(&entry, flush);
                    if let Err(error) = written {
                        // The reader of standard output may have gone, as with `| head`.
                        eprintln!("warning: the packet log ends: {error}");
                        return;
                    }
                }
                // Nothing can be done about an error at the end.
                let _ = log.lock().flush();
            })
    }
}

impl Output {
    fn packet(&mut self, entry: &LogEntry, flush: bool) -> io::Result<()> {
        let mut page = String::new();
        if entry.missed > 0 {
            let missed = counted(entry.missed, "packet");
            page +=
                &format!("{missed} not logged: they entered faster than the log is written\n\n");
        }
        page += &format!("{} {}\n", time_of_day(entry.time), entry.trace);
        self.message(page.as_bytes())?;
        if flush { self.flush() } else { Ok(()) }
    }

    /// Writes a message as a whole to one file.
    fn message(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Output::Console(stdout) => stdout.write_all(text),
            Output::File(file) => file.message(text),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Output::Console(stdout) => stdout.flush(),
            Output::File(file) => file.file.flush(),
        }
    }
}

impl LogFile {
    fn message(&mut self, text: &[u8]) -> io::Result<()> {
        let length = text.len() as u64;
        if self.size > 0 && self.size + length > self.max_size {
            self.rotate()?;
        }
        self.size += length;
        self.file.write_all(text)
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.flush()?;
        for number in (1..=self.max_files).rev() {
            match fs::rename(
                numbered(&self.name, number - 1),
                numbered(&self.name, number),
            ) {
                // There are fewer files yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => renamed?,
            }
        }
        self.file = BufWriter::new(File::create(numbered(&self.name, 0))?);
        self.size = 0;
        Ok(())
    }
}

/// `NAME.txt`, `NAME.1.txt`, …
fn numbered(name: &Path, number: u64) -> PathBuf {
    let mut file = name.as_os_str().to_owned();
    match number {
        0 => file.push(".txt"),
        number => file.push(format!(".{number}.txt")),
    }
    file.into()
}

/// The time of day in UTC with milliseconds, such as `[12:00:59.123]`.
fn time_of_day(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs() % 86_400;
    format!(
        "[{:02}:{:02}:{:02}.{:03}]",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since_epoch.subsec_millis()
    )
}

/// Writes a message when it is dropped, so that messages and packets do not mix.
pub struct Message {
    log: Log,
    text: Vec<u8>,
}

impl Write for Message {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let mut output = self.log.lock();
        // A message that cannot be logged has no other place.
        let _ = output.message(&self.text).and_then(|()| output.flush());
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Message;

    fn make_writer(&'a self) -> Message {
        Message {
            log: self.clone(),
            text: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_becomes_the_first_of_the_older_ones() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("s1.log");
        let log = Log::file(&name, 10, 2).unwrap();
        for message in ["aaaa\n", "bbbb\n", "cc\n", "dddddddddddddd\n", "e\n"] {
            log.make_writer().write_all(message.as_bytes()).unwrap();
        }
        let read = |number| fs::read_to_string(numbered(&name, number)).ok();
        assert_eq!(read(0).as_deref(), Some("e\n"));
        assert_eq!(read(1).as_deref(), Some("dddddddddddddd\n"));
        assert_eq!(
            read(2).as_deref(),
            Some("cc\n"),
            "aaaa and bbbb were the oldest"
        );
        assert_eq!(read(3), None);
        assert!(name.with_file_name("s1.log.txt").exists());
        let alone = Log::file(&name, 3, 0).unwrap();
        for message in ["a\n", "bb\n"] {
            alone.make_writer().write_all(message.as_bytes()).unwrap();
        }
        assert_eq!(read(0).as_deref(), Some("bb\n"), "no older file is kept");
    }

    #[test]
    fn times_are_of_the_day() {
        let time = Duration::from_millis(86_400_000 * 20_000 + 45_296_007);
        assert_eq!(time_of_day(time), "[12:34:56.007]");
    }
}
