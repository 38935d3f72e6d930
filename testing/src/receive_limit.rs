//! The machine's limit of sockets' receive buffers, and a user to whom it applies.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use nix::libc;

const RMEM_MAX: &str = "/proc/sys/net/core/rmem_max";
/// The user id of `nobody`, a user without privileges.
const NOBODY: u32 = 65534;

/// A temporary value of net.core.rmem_max. Restored on drop and when this process ends, even by SIGKILL.
pub struct ReceiveLimit {
    /// Restores the limit when its standard input ends.
    guard: Child,
}

impl ReceiveLimit {
    /// Sets the limit. Returns `None` if this process may not set it, or does not see it, as in some containers.
    ///
    /// # Panics
    /// If `sh` is missing.
    pub fn set(bytes: u32) -> Option<Self> {
        let before = fs::read_to_string(RMEM_MAX).ok()?;
        fs::write(RMEM_MAX, &before).ok()?;
        // In its own process group, so that a signal to the test's group does not reach it.
        let guard = Command::new("sh")
            .args(["-c", "cat; echo $1 > $2", "sh", before.trim(), RMEM_MAX])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .expect("starts sh");
        let limit = Self { guard };
        fs::write(RMEM_MAX, bytes.to_string()).expect("sets the limit");
        Some(limit)
    }
}

impl Drop for ReceiveLimit {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // A panic here would hide an earlier panic.
        match self.guard.wait() {
            Ok(status) if status.success() => {}
            ended => eprintln!("{RMEM_MAX} is not restored: {ended:?}"),
        }
    }
}

/// Gives the calling thread, and threads that it starts, an unprivileged user, who cannot exceed the limit.
///
/// # Panics
/// If the thread does not run as root.
pub fn become_ordinary() {
    // SAFETY: changes the credentials of this thread only, unlike the function of the C library.
    let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
    assert_eq!(changed, 0, "setresuid needs root");
}
