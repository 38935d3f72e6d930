//! What a process's threads have computed.

use std::fs;
use std::time::Duration;

/// Time on a CPU of those threads of a process, by its number in `/proc`, whose names are `wanted`.
/// What the kernel does for them in system calls and soft interrupts is part of it.
///
/// # Panics
/// If there is no such process.
pub(crate) fn cpu_time(process: &str, wanted: impl Fn(&str) -> bool) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let nanos = threads.filter_map(|thread| {
        // A thread may end at any time.
        let path = thread.ok()?.path();
        let name = fs::read_to_string(path.join("comm")).ok()?;
        // Nanoseconds on a CPU come first (Documentation/scheduler/sched-stats.rst).
        let stat = fs::read_to_string(path.join("schedstat")).ok()?;
        let nanos: u64 = stat.split_whitespace().next()?.parse().ok()?;
        wanted(name.trim_end()).then_some(nanos)
    });
    Duration::from_nanos(nanos.sum())
}
