//! Signals to the processes of a test.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Time limit for a process to stop.
const STOP: Duration = Duration::from_secs(30);

/// Sends a signal to the process `id`. After SIGSTOP, waits until all threads have stopped. On a busy machine, threads
/// continue until the kernel next schedules one of them.
///
/// # Panics
/// The process does not run, or does not stop within 30 s.
pub fn signal(id: u32, signal: Signal) {
    kill(Pid::from_raw(id.cast_signed()), signal).expect("the process runs");
    let start = Instant::now();
    while signal == Signal::SIGSTOP && !is_stopped(id) {
        assert!(start.elapsed() < STOP, "process {id} does not stop");
        sleep(Duration::from_millis(1));
    }
}

/// True if all threads of a process have stopped or ended.
fn is_stopped(id: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{id}/task")).expect("the process runs");
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat"));
        // The state follows the name, which is in parentheses.
        let state = stat
            .ok()
            .and_then(|it| Some(it.rsplit_once(") ")?.1.chars().next()));
        matches!(state, None | Some(Some('T' | 't' | 'X' | 'Z')))
    })
}
