//! Processes of a lab: how they are started, told apart, and stopped.

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

/// How long a process may take to end in order; then it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// How long the kernel may take to end a killed one.
const KILLED: Duration = Duration::from_secs(10);

/// A process, not to be mixed up with a later one of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since the machine did (proc_pid_stat(5), field 22).
    pub start: u64,
}

impl ProcessId {
    /// The process that has this number now.
    pub fn of(pid: i32) -> Option<ProcessId> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field, the command's name in parentheses, may hold anything; a state follows it.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        if fields.next()? == "Z" {
            return None;
        }
        let start = fields.nth(18)?.parse().ok()?;
        Some(ProcessId { pid, start })
    }

    /// Whether it still runs.
    pub fn runs(self) -> bool {
        ProcessId::of(self.pid) == Some(self)
    }
}

/// A process by descriptor, which stays this process's whoever gets its number.
struct Handle {
    pid: i32,
    descriptor: OwnedFd,
}

impl Handle {
    /// The process of this number if, once its descriptor is there, it is still `wanted`.
    fn open(pid: i32, wanted: impl Fn(i32) -> bool) -> Option<Handle> {
        let descriptor = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
        wanted(pid).then_some(Handle { pid, descriptor })
    }

    fn send(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.descriptor, signal) {
            // It has ended meanwhile.
            Err(rustix::io::Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Whether it ends by then.
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

/// Stops the processes in these namespaces, and those of `recorded` that still run: politely first. Returns how many.
///
/// # Errors
/// One that does not end.
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
    // A process that is being ended may have started another one.
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
        for (signal, patience) in [(Signal::TERM, GRACE), (Signal::KILL, KILLED)] {
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
            let deadline = Instant::now() + patience;
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

/// All processes that there are.
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
    fn a_process_is_its_number_and_its_start() {
        let own = ProcessId::of(std::process::id().cast_signed()).expect("this one runs");
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
        child.wait().expect("it was ours");
    }
}
