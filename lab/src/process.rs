//! Processes of a lab: identity and termination.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::name::LabName;
use crate::namespace::{self, Identity};

/// Time for a process to end after a request; then it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Time for the kernel to end a killed process.
const KILLED: Duration = Duration::from_secs(10);

/// A process's identity, which a later process with the same number does not share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process id.
    pub pid: i32,
    /// Its start time in clock ticks since boot (proc_pid_stat(5), field 22).
    pub start: u64,
}

impl ProcessId {
    /// The process with this id now.
    pub fn of(pid: i32) -> Option<ProcessId> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field, the command's name in parentheses, may contain anything; the state follows it.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        if fields.next()? == "Z" {
            return None;
        }
        let start = fields.nth(18)?.parse().ok()?;
        Some(ProcessId { pid, start })
    }

    /// True if it still runs.
    pub fn runs(self) -> bool {
        ProcessId::of(self.pid) == Some(self)
    }
}

/// A process's descriptor, which refers to the same process even if its id is reused.
struct Handle {
    pid: i32,
    descriptor: OwnedFd,
}

impl Handle {
    /// Opens the process `pid` if, with its descriptor open, it is still `wanted`.
    fn open(pid: i32, wanted: impl Fn(i32) -> bool) -> Option<Handle> {
        let descriptor = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        wanted(pid).then_some(Handle { pid, descriptor })
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.descriptor, signal) {
            // It has ended already.
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Waits for its end until `deadline`. Returns true if it has ended.
    fn ended(&self, deadline: Instant) -> io::Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut waited = [PollFd::new(self.descriptor.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waited, timeout) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Stops the processes in these namespaces, and those of `recorded` that still run: first by request, then by
/// force. Returns their number.
///
/// # Errors
/// A process does not end.
pub fn stop(
    name: &LabName,
    namespaces: &[Identity],
    recorded: &[ProcessId],
) -> Result<usize, LabError> {
    let own = std::process::id().cast_signed();
    let inside = |pid: i32| {
        namespace::identity(Path::new(&format!("/proc/{pid}/ns/net")))
            .is_some_and(|found| namespaces.contains(&found))
    };
    let recorded = recorded.iter().filter_map(|process| {
        Handle::open(process.pid, |pid| ProcessId::of(pid) == Some(*process))
    });
    let mut handles: Vec<Handle> = recorded.collect();
    // A process that is being stopped may have started another one.
    let mut stopped = 0;
    loop {
        for pid in pids()? {
            let known = handles.iter().any(|handle| handle.pid == pid);
            if pid != own && !known && inside(pid) {
                handles.extend(Handle::open(pid, inside));
            }
        }
        if handles.is_empty() {
            return Ok(stopped);
        }
        stopped += handles.len();
        for (signal, timeout) in [(Signal::TERM, GRACE), (Signal::KILL, KILLED)] {
            let failed = |pid| {
                move |source| LabError::Stop {
                    name: name.clone(),
                    pid,
                    source,
                }
            };
            for handle in &handles {
                handle.send(signal).map_err(failed(handle.pid))?;
            }
            let deadline = Instant::now() + timeout;
            let mut left = Vec::new();
            for handle in handles {
                if !handle.ended(deadline).map_err(failed(handle.pid))? {
                    left.push(handle);
                }
            }
            handles = left;
        }
        if let Some(handle) = handles.first() {
            return Err(LabError::Stop {
                name: name.clone(),
                pid: handle.pid,
                source: io::ErrorKind::TimedOut.into(),
            });
        }
    }
}

/// All process ids.
fn pids() -> Result<Vec<i32>, LabError> {
    let entries = fs::read_dir("/proc").map_err(LabError::file("/proc"))?;
    let pid = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    Ok(entries.filter_map(pid).collect())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_identified_by_its_id_and_start_time() {
        let own = ProcessId::of(std::process::id().cast_signed()).expect("this process runs");
        assert!(own.runs());
        let earlier = ProcessId {
            start: own.start - 1,
            ..own
        };
        assert!(!earlier.runs());
    }

    #[test]
    fn only_the_recorded_process_is_stopped() {
        let name: LabName = "x".parse().expect("a name");
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let process = ProcessId::of(child.id().cast_signed()).expect("it runs");
        let another = ProcessId {
            start: process.start + 1,
            ..process
        };
        assert_eq!(stop(&name, &[], &[another]).expect("nothing to do"), 0);
        assert!(process.runs());
        assert_eq!(stop(&name, &[], &[process]).expect("it ends"), 1);
        assert!(!process.runs());
        child.wait().expect("a child of this process");
    }
}
