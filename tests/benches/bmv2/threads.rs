//! The CPU time of a switch's threads.

use std::fs;
use std::process;
use std::time::Duration;

/// The CPU time of switches' processes. Of this process, the forwarding threads of embedded switches count. It includes
/// what the kernel does for a thread in system calls and soft interrupts.
///
/// # Panics
/// If a process has ended.
pub fn cpu_time(switches: &[u32]) -> Duration {
    switches.iter().copied().map(of_process).sum()
}

fn of_process(id: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{id}/task")).expect("the process runs");
    let nanos = threads.filter_map(|thread| {
        // A thread may end at any time.
        let path = thread.ok()?.path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        // The first number is nanoseconds on a CPU (Documentation/scheduler/sched-stats.rst).
        let stat = fs::read_to_string(path.join("schedstat")).ok()?;
        let nanos: u64 = stat.split_whitespace().next()?.parse().ok()?;
        let forwards = id != process::id() || name.starts_with("ultima-forward");
        forwards.then_some(nanos)
    });
    Duration::from_nanos(nanos.sum())
}
