//! Network namespaces, which isolate a test's interfaces and end with the test.

use std::path::Path;
use std::process::Command;
use std::{panic, thread};

use nix::sched::{CloneFlags, unshare};

/// Bytes of the largest IPv4 packet that the interfaces carry.
pub const MTU: usize = 9000;

/// Runs `test` on a thread in a new network namespace with loopback up, which its threads and processes inherit. The namespace
/// ends with the last of them. Resumes a panic of `test`.
///
/// # Panics
/// If the kernel rejects the namespace (see [`crate::needs::interfaces`]), or `test` panics.
pub fn within<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    on_a_thread(|| {
        enter().unwrap_or_else(|problem| panic!("{problem}"));
        test()
    })
}

/// Checks that this process can make namespaces with interfaces.
///
/// # Errors
/// The missing permission or program, in a few words.
pub(crate) fn check() -> Result<(), String> {
    on_a_thread(|| {
        enter()?;
        try_ip(&[
            "link", "add", "one", "type", "veth", "peer", "name", "other",
        ])
    })
}

/// Runs `work` on a new thread: a namespace belongs to a thread.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or_else(|cause| panic::resume_unwind(cause))
    })
}

fn enter() -> Result<(), String> {
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
        format!(
            "needs root that may make network namespaces (CAP_SYS_ADMIN): {}",
            errno.desc()
        )
    })?;
    try_ip(&["link", "set", "lo", "up"])
}

/// Runs iproute2's `ip` in the caller's namespace.
///
/// # Panics
/// If `ip` fails.
fn ip(args: &[&str]) {
    try_ip(args).unwrap_or_else(|problem| panic!("{problem}"));
}

fn try_ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(args)
        .output()
        .map_err(|error| format!("ip (iproute2) cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let problem = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {}: {}", args.join(" "), problem.trim()))
}

/// Creates a pair of connected interfaces, both up, with a large MTU. They have no IPv4 or IPv6 addresses, so the kernel does not
/// send packets.
pub(crate) fn veth(one: &str, other: &str) {
    let mtu = MTU.to_string();
    ip(&[
        "link", "add", one, "mtu", &mtu, "type", "veth", "peer", "name", other, "mtu", &mtu,
    ]);
    let ipv6 = Path::new("/proc/net/if_inet6").exists();
    for end in [one, other] {
        if ipv6 {
            ip(&["link", "set", end, "addrgenmode", "none"]);
        }
        ip(&["link", "set", end, "up"]);
    }
}
