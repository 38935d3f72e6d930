//! Network namespaces of a test's own: what it does to interfaces touches nothing else, and goes with it.

use std::path::Path;
use std::process::Command;
use std::{panic, thread};

use nix::sched::{CloneFlags, unshare};

/// Bytes of the largest IPv4 packet that the interfaces carry.
pub const MTU: usize = 9000;

/// Runs `test` on a thread in a new network namespace with loopback up. Threads and processes that it
/// starts are in there too; the namespace ends with the last of them. A panic is passed on.
///
/// # Panics
/// If the kernel refuses (see [`crate::needs::interfaces`]), or `test` does.
pub fn within<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    on_a_thread(|| {
        enter().unwrap_or_else(|problem| panic!("{problem}"));
        test()
    })
}

/// Whether this process may make namespaces with interfaces in them; if not, why.
///
/// # Errors
/// What is missing, in a few words.
pub(crate) fn check() -> Result<(), String> {
    on_a_thread(|| {
        enter()?;
        try_ip(&[
            "link", "add", "one", "type", "veth", "peer", "name", "other",
        ])
    })
}

/// A namespace is a thread's; the caller's stays what it is.
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
/// If it fails: there is no test without its interfaces.
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

/// Makes a pair of connected interfaces, both up. They hold whole jumbo frames, and no stack of the
/// kernel speaks on them: there are no IPv4 addresses, nor those that IPv6 makes by itself.
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
