//! Labs: a fabric with real hosts on one machine. Hosts are network namespaces with the kernel's own stack,
//! links are veth pairs, switches are processes.
//!
//! - [`Plan`] maps a fabric to namespaces, interfaces, addresses and processes. It is a pure function.
//! - [`up()`] creates a lab, [`down()`] removes it, [`status()`] inspects it, [`enter`] runs a command in it.
//!
//! A lab `NAME` consists of namespaces called `ultima:NAME` (switches, wires, controller) and
//! `ultima:NAME:HOST`, and of the folder `/run/ultima/labs/NAME` with its state, logs, and the controller's
//! socket. All interfaces are in these namespaces, so labs are separate from each other and from the
//! machine's own network. Removing the namespaces and their processes removes a lab completely, whatever its
//! folder says.

mod down;
mod error;
mod exec;
pub mod flow;
mod folder;
mod ip;
mod name;
mod namespace;
mod offload;
mod plan;
mod process;
mod state;
mod status;
mod switch_kind;
mod sysctl;
mod up;

pub use down::{Removed, down};
pub use error::LabError;
pub use exec::enter;
pub use folder::{controller_address, names};
pub use name::{LabName, ParseNameError};
pub use offload::turn_off as turn_offloads_off;
pub use plan::{Plan, PlannedHost, PlannedLink, PlannedSwitch, PlannedWire};
pub use state::State;
pub use status::{ProcessStatus, Status, status};
pub use switch_kind::SwitchKind;
pub use sysctl::accept_local;
pub use up::{Cancel, Programs, up};
