//! The capabilities and limits of a switch's target. No other module distinguishes targets.
//!
//! [`Target`] is one value for each kind of switch that a fabric may name. Planning, reconciliation
//! and the fabric's file read it. Sizes of tables, counters and meters come from the program's
//! P4Info instead.

mod board;
mod ethernet;
mod ports;
mod tofino;
mod v1model;

use std::fmt;

pub use board::{BOARDS, Board};
pub use ethernet::{Fec, Speed};
pub use ports::{FrontPanelPorts, Ports};
pub use tofino::{TOFINO, TOFINO2};
use ultima_p4runtime::tofino::pipe_of;
use ultima_p4runtime::v1::{MeterConfig, digest_entry};
pub use v1model::V1MODEL;

/// A port's number on its switch, as in P4Runtime and the program: nine bits on every target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNumber(pub u16);

impl PortNumber {
    /// The port's pipe, on a chip with several.
    pub const fn pipe(self) -> u16 {
        pipe_of(self.0)
    }
}

impl fmt::Display for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A kind of switch.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// The name in fabric files.
    pub name: &'static str,
    /// The program that the target runs, and its form.
    pub program: ProgramForm,
    /// The numbering of ports, and the ports that links may use.
    pub ports: Ports,
    /// The limits of the packet replication engine (PRE).
    pub limits: Limits,
    /// The precision of meters.
    pub meters: MeterGrain,
    /// The limits of digests.
    pub digests: Digests,
    /// The highest clone or mirror session id; ids start at 1.
    pub sessions: u32,
    /// The egress port of the clone session that carries loss reports.
    pub loss_session: PortNumber,
    /// The truncation length of the loss session, if the target needs one. A Tofino mirror session
    /// needs a maximum packet length, and Stratum passes a 0 through
    /// (`BfSdeWrapper::WriteCloneSession`).
    pub loss_bytes: Option<u16>,
    /// The default of `line_rate_queues`: true if the ports' queues drain at their links' rates.
    pub line_rate_queues: bool,
}

/// The form of a target's `p4_device_config`, which selects the compiled program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProgramForm {
    /// The output of p4c's BMv2 backend.
    Bmv2,
    /// The Tofino compiler's binary, context and BfRt schema in one message.
    Tofino,
    /// The same for Tofino 2.
    Tofino2,
}

impl fmt::Display for ProgramForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgramForm::Bmv2 => "v1model",
            ProgramForm::Tofino => "tofino",
            ProgramForm::Tofino2 => "tofino2",
        })
    }
}

/// The limits of a switch's packet replication engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Multicast groups. Their ids have 16 bits everywhere.
    pub groups: u32,
    /// Replicas (port and RID) of one group.
    pub group_replicas: u32,
    /// Nodes over all groups. A node is one RID of one group, whatever the number of its ports.
    pub nodes: u32,
}

/// The rounding of a meter's rates and bursts in the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterGrain {
    /// The granularity in bytes, or bytes per second.
    pub step: u32,
    /// The relative error of a rate that is read back, at most 2 to the minus this.
    pub rate_bits: u32,
    /// The same for a burst; none if bursts are exact.
    pub burst_bits: Option<u32>,
}

impl MeterGrain {
    /// True if a meter that reads back `held` was configured as `wanted`.
    pub fn keeps(&self, wanted: &MeterConfig, held: &MeterConfig) -> bool {
        let near = |held: i64, wanted: i64, bits: Option<u32>| match bits {
            None => held == wanted,
            Some(bits) => {
                let off = u64::from(self.step) + (wanted.unsigned_abs() >> bits);
                held.abs_diff(wanted) <= off
            }
        };
        let rate = Some(self.rate_bits);
        near(held.cir, wanted.cir, rate)
            && near(held.pir, wanted.pir, rate)
            && near(held.cburst, wanted.cburst, self.burst_bits)
            && near(held.pburst, wanted.pburst, self.burst_bits)
    }
}

/// The limits of a target's digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// The most bits of all members together, each rounded up to whole bytes; none if unlimited.
    pub max_bits: Option<u32>,
    /// True if a subscription reads back all of its fields, not only the maximum timeout.
    pub keeps_list_and_ack: bool,
}

impl Digests {
    /// True if a subscription that reads back `held` was configured as `wanted`.
    pub fn keeps(&self, wanted: &digest_entry::Config, held: &digest_entry::Config) -> bool {
        held.max_timeout_ns == wanted.max_timeout_ns && (!self.keeps_list_and_ack || held == wanted)
    }
}

/// All targets.
pub const TARGETS: &[&Target] = &[&V1MODEL, &TOFINO, &TOFINO2];

impl Target {
    /// Finds a target by name.
    pub fn by_name(name: &str) -> Option<&'static Target> {
        TARGETS.iter().copied().find(|target| target.name == name)
    }
}
