//! The client `clients/read_counter.py`, with PyPI's `p4runtime`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ultima_tests::counters::{Cell, Count};
use ultima_tests::fabric::device_id;
use ultima_tests::needs;

/// The exit code of a script whose package is missing.
pub const NOT_INSTALLED: i32 = 3;

/// A running client that reads one cell of a counter array. Dropping it ends the process.
pub struct CounterClient {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl CounterClient {
    /// Starts the client. If Python or a package is missing, reports a skipped test and returns `None`.
    ///
    /// # Panics
    /// If Python or a package is missing and `ULTIMA_REQUIRE_PYTHON=1`.
    pub fn start(grpc: SocketAddr, cell: Cell) -> Option<Self> {
        let python = needs::python();
        let started = Command::new(&python)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/clients/read_counter.py"
            ))
            .args([&grpc.to_string(), &device_id(cell.switch).to_string()])
            .args([cell.array, &cell.index.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = match started {
            Ok(process) => process,
            Err(error) => {
                needs::python_missing(&format!("cannot run {python}: {error}"));
                return None;
            }
        };
        let requests = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut client = Self {
            process,
            requests,
            answers,
        };
        // The first answer shows that all packages are installed.
        if client.request().is_none() {
            let status = client.process.wait().expect("a child process");
            assert_eq!(status.code(), Some(NOT_INSTALLED), "the client failed");
            needs::python_missing("PyPI's p4runtime and grpcio are not installed");
            return None;
        }
        Some(client)
    }

    /// Reads the cell.
    ///
    /// # Panics
    /// If the client has ended.
    pub fn read(&mut self) -> Count {
        self.request().expect("the client answers")
    }

    fn request(&mut self) -> Option<Count> {
        // Without its packages the client ends, which closes its input.
        self.requests.write_all(b"\n").ok()?;
        let mut line = String::new();
        self.answers
            .read_line(&mut line)
            .expect("the client writes text");
        let mut numbers = line
            .split_whitespace()
            .map(|word| word.parse().expect("a number"));
        Some(Count {
            packets: numbers.next()?,
            bytes: numbers.next()?,
        })
    }
}

impl Drop for CounterClient {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
