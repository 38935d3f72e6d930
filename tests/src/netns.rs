//! Network namespaces of a test's own: what it does to interfaces touches nothing else, and goes with it.

use std::process::Command;
use std::{panic, thread};

use nix::sched::{CloneFlags, unshare};

/// Runs `test` on a thread in a new network namespace with loopback up. Threads and processes that it
/// starts are in there too; the namespace ends with the last of them. A panic is passed on.
///
/// # Panics
/// If the kernel refuses (see [`crate::needs::root`]), or `test` does.
pub fn within<T: Send>(test: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("root can make a network namespace");
            ip(&["link", "set", "lo", "up"]);
            test()
        });
        inside
            .join()
            .unwrap_or_else(|cause| panic::resume_unwind(cause))
    })
}

/// Runs iproute2's `ip` in the caller's namespace.
///
/// # Panics
/// If it fails: there is no test without its interfaces.
pub(crate) fn ip(args: &[&str]) {
    let output = Command::new("ip")
        .args(args)
        .output()
        .expect("ip (iproute2) is installed");
    assert!(
        output.status.success(),
        "ip {}: {}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Makes a pair of connected interfaces, both up. They hold whole jumbo frames, and no stack of the
/// kernel speaks on them: there are no IPv4 addresses, nor those that IPv6 makes by itself.
pub(crate) fn veth(one: &str, other: &str) {
    let mtu = MTU.to_string();
    ip(&[
        "link", "add", one, "mtu", &mtu, "type", "veth", "peer", "name", other, "mtu", &mtu,
    ]);
    for end in [one, other] {
        ip(&["link", "set", end, "addrgenmode", "none"]);
        ip(&["link", "set", end, "up"]);
    }
}

/// Bytes of the largest IPv4 packet that the interfaces carry.
pub const MTU: usize = 9000;
