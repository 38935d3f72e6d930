//! Namespaces and links, by iproute2. Its batches create a lab with a few processes, its errors are the
//! kernel's, and users can inspect the result with the same commands.

use std::io::{self, Write as _};
use std::process::{Command, Stdio};

use crate::error::LabError;
use crate::folder::Lock;
use crate::plan::{HOST_INTERFACE, Interface, Plan, PlannedHost, PlannedLink};

/// Hosts' multicast route: all of IPv4's groups (RFC 5771).
const GROUPS: &str = "224.0.0.0/4";

/// Creates the plan's namespaces, empty.
pub fn add_namespaces(plan: &Plan, lock: &Lock) -> Result<(), LabError> {
    for namespace in plan.namespaces() {
        run(&["netns", "add", namespace], "", lock)?;
    }
    Ok(())
}

/// Removes a namespace's name. The namespace ends with its last process.
pub fn delete_namespace(namespace: &str, lock: &Lock) -> Result<(), LabError> {
    run(&["netns", "delete", namespace], "", lock)
}

/// Creates the plan's links with each end in its namespace and up, and sets hosts' addresses.
pub fn add_links(plan: &Plan, lock: &Lock) -> Result<(), LabError> {
    let script: String = plan.links.iter().map(|link| veths(plan, link)).collect();
    run(&["-batch", "-"], &script, lock)?;
    let mut script = String::from("link set dev lo up\n");
    for name in switch_side(plan) {
        script += &format!("link set dev {name} up\n");
    }
    run(&["-n", &plan.namespace, "-batch", "-"], &script, lock)?;
    for host in &plan.hosts {
        run(
            &["-n", &host.namespace, "-batch", "-"],
            &addresses(host),
            lock,
        )?;
    }
    Ok(())
}

/// An interface of a namespace, other than loopback, that is not up yet.
pub fn not_up(namespace: &str) -> Result<Option<String>, LabError> {
    // `2: eth0@if2: … state UP …`: IFLA_OPERSTATE (RFC 2863), which changes when the kernel attaches a queue
    // to the interface.
    let output = Command::new("ip")
        .args(["-n", namespace, "-o", "link", "show"])
        .output()
        .map_err(cannot_run)?;
    let links = String::from_utf8_lossy(&output.stdout);
    let waited_for = |line: &&str| !line.contains(" state UP ") && !line.contains("LOOPBACK");
    let link = links.lines().find(waited_for);
    Ok(link.map(|line| line.split(": ").nth(1).unwrap_or(line).to_owned()))
}

/// The interfaces in the switches' namespace.
pub fn switch_side(plan: &Plan) -> impl Iterator<Item = &str> {
    let ports = plan.switches.iter().flat_map(|switch| &switch.ports);
    let wires = plan.links.iter().filter_map(|link| link.wire.as_ref());
    let wires = wires.flat_map(|wire| &wire.interfaces);
    ports
        .map(|(_, name)| name.as_str())
        .chain(wires.map(String::as_str))
}

/// One pair, or two with a wire: A and the wire's near end, the wire's far end and B.
fn veths(plan: &Plan, link: &PlannedLink) -> String {
    let mtu = link.mtu;
    let pair = |one: &Interface, other: &Interface| {
        // Hosts accept GSO frames. Between switches and wires they are slow, so limit frames to the MTU.
        let gso = match one.namespace == other.namespace {
            true => format!(" gso_max_size {mtu}"),
            false => String::new(),
        };
        let end = |interface: &Interface| {
            let Interface {
                namespace,
                name,
                mac,
            } = interface;
            let mac = mac
                .as_ref()
                .map_or(String::new(), |mac| format!(" address {mac}"));
            format!("name {name}{mac} mtu {mtu}{gso} netns {namespace}")
        };
        format!("link add {} type veth peer {}\n", end(one), end(other))
    };
    let [a, b] = &link.interfaces;
    match &link.wire {
        None => pair(a, b),
        Some(wire) => {
            let [near, far] = wire.interfaces.clone().map(|name| Interface {
                namespace: plan.namespace.clone(),
                name,
                mac: None,
            });
            pair(a, &near) + &pair(&far, b)
        }
    }
}

/// A host address (/32) and a route to the others, so that no address, .0 and .255 included, counts as a
/// network or broadcast address.
fn addresses(host: &PlannedHost) -> String {
    let PlannedHost { ip, network, .. } = host;
    let dev = HOST_INTERFACE;
    format!(
        "link set dev lo up\n\
         link set dev {dev} up\n\
         address add {ip}/32 dev {dev}\n\
         route add {network} dev {dev} src {ip}\n\
         route add {GROUPS} dev {dev} src {ip}\n"
    )
}

/// Runs `ip`, which holds the lock through its standard output: if this process is killed, no other command
/// removes the lab before `ip` has ended.
fn run(arguments: &[&str], script: &str, lock: &Lock) -> Result<(), LabError> {
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(lock.share()?)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot_run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If `ip` ends early, its output has the reason.
        let _ = stdin.write_all(script.as_bytes());
    }
    let output = child.wait_with_output().map_err(cannot_run)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // `Command failed -:3` follows the reason: a line number in a script that the user does not see.
    let line = said
        .rsplit_once("Command failed -:")
        .and_then(|(_, number)| number.trim().parse::<usize>().ok())
        .and_then(|number| script.lines().nth(number.checked_sub(1)?));
    let first = said.lines().next().unwrap_or("ip ended without a message");
    Err(LabError::Ip {
        said: match line {
            Some(line) => format!("{line}: {first}"),
            None => format!("{}: {first}", arguments.join(" ")),
        },
    })
}

fn cannot_run(error: io::Error) -> LabError {
    match error.kind() {
        io::ErrorKind::NotFound => LabError::NoProgram {
            program: "ip",
            hint: "install iproute2",
        },
        _ => LabError::Ip {
            said: error.to_string(),
        },
    }
}
