//! Entering a lab's namespaces.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::sethostname;

use crate::error::LabError;
use crate::folder::{self, Folder};
use crate::name::LabName;
use crate::{namespace, status};

/// Moves the calling thread, and its future children, to a host or switch of a lab: into its network
/// namespace, with its host name and with the lab's hosts in /etc/hosts. Programs that look up their own
/// name, such as Gloo, then get their address in the fabric.
///
/// # Errors
/// The lab does not exist, or has no such host or switch.
pub fn enter(lab: &LabName, node: &str) -> Result<(), LabError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    let known = folder::names()?;
    if !known.contains(lab) {
        let name = lab.clone();
        return Err(LabError::NoLab { name, known });
    }
    let plan = status::plan(lab)?;
    let namespace = plan.namespace_of(node).ok_or_else(|| {
        let hosts = plan.hosts.iter().map(|host| host.name.as_str());
        let switches = plan.switches.iter().map(|switch| switch.name.as_str());
        LabError::NoNode {
            lab: lab.clone(),
            name: node.to_owned(),
            nodes: hosts.chain(switches).collect::<Vec<_>>().join(", "),
        }
    })?;
    if !namespace::exists(namespace) {
        let (lab, node) = (lab.clone(), node.to_owned());
        return Err(LabError::Gone { lab, node });
    }
    let file = namespace::open(namespace)?;
    namespace::enter(&file, namespace)?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .map_err(LabError::system("cannot create a mount namespace"))?;
    sethostname(node).map_err(LabError::system("cannot set the host's name"))?;
    const NONE: Option<&str> = None;
    // Mounts stay in this namespace.
    mount(NONE, "/", NONE, MsFlags::MS_SLAVE | MsFlags::MS_REC, NONE)
        .map_err(LabError::system("cannot make mounts private"))?;
    let hosts = Folder::of(lab).hosts();
    mount(Some(&hosts), "/etc/hosts", NONE, MsFlags::MS_BIND, NONE).map_err(LabError::system(
        "cannot put the lab's hosts into /etc/hosts",
    ))?;
    // /sys/class/net then shows this namespace. Containers may forbid it, and few programs need it.
    let _ = mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), NONE);
    Ok(())
}
