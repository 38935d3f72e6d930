//! What a switch's target can and cannot do: the one place where targets differ for the controller.
//!
//! [`Target`] is one value for each kind of switch that a fabric may name; planning, reconciliation and the fabric's
//! file read it, and none of them asks what a switch is called. Table, counter and meter sizes are not here: they are the
//! program's, and its P4Info says them.

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

/// A port's number on its switch, as P4Runtime and the program have it: nine bits on every target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortNumber(pub u16);

impl PortNumber {
    /// The pipe that it is in, on a chip that has several.
    pub const fn pipe(self) -> u16 {
        pipe_of(self.0)
    }
}

impl fmt::Display for PortNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a target can do.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// The name that fabric files use.
    pub name: &'static str,
    /// Which program it runs, and in which form it takes it.
    pub program: ProgramForm,
    /// How its ports are numbered, and which of them links may use.
    pub ports: Ports,
    /// What the packet replication engine (PRE) holds.
    pub limits: Limits,
    /// How exactly meters keep what they are told.
    pub meters: MeterGrain,
    /// What digests can carry, and what of a subscription is kept.
    pub digests: Digests,
    /// Clone or mirror sessions, from 1.
    pub sessions: u32,
    /// Where the clone session leads by which egress tells of losses.
    pub loss_session: PortNumber,
    /// Bytes that it keeps, where it has to be told: none where a session without a number keeps all. A mirror session of a Tofino is
    /// told how long its packets are at most, and Stratum passes on a 0 as it is (`BfSdeWrapper::WriteCloneSession`).
    pub loss_bytes: Option<u16>,
    /// Whether its ports' queues drain at their links' rates by themselves, unless the fabric says otherwise.
    pub line_rate_queues: bool,
}

/// The form of a target's `p4_device_config`, and so which of the compiled programs it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProgramForm {
    /// What p4c's BMv2 backend prints.
    Bmv2,
    /// What the compiler for Tofino prints: binary, context and BfRt schema in one message.
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

/// What a switch's packet replication engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Multicast groups. Their ids have 16 bits everywhere.
    pub groups: u32,
    /// Replicas (port and RID) of one group.
    pub group_replicas: u32,
    /// Nodes over all groups. A node is one RID of one group, whatever the number of its ports.
    pub nodes: u32,
}

/// What becomes of a meter's rates and bursts on the way into the chip and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterGrain {
    /// Bytes, or bytes per second, in steps of which it is told.
    pub step: u32,
    /// Of a rate, what is read back is within this part of what was written: 2 to the minus so many.
    pub rate_bits: u32,
    /// The same of a burst; none where it is read back as it was written.
    pub burst_bits: Option<u32>,
}

impl MeterGrain {
    /// Whether a meter that says `held` has been told `wanted`.
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

/// What a target does with digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// Bits that members may have together, each rounded up to whole bytes; none where there is no bound.
    pub max_bits: Option<u32>,
    /// Whether a subscription that is read back says more than how long digests wait for others.
    pub keeps_list_and_ack: bool,
}

impl Digests {
    /// Whether a subscription that says `held` is as `wanted` says.
    pub fn keeps(&self, wanted: &digest_entry::Config, held: &digest_entry::Config) -> bool {
        held.max_timeout_ns == wanted.max_timeout_ns && (!self.keeps_list_and_ack || held == wanted)
    }
}

/// All targets that a fabric may name.
pub const TARGETS: &[&Target] = &[&V1MODEL, &TOFINO, &TOFINO2];

impl Target {
    /// The target called `name`.
    pub fn by_name(name: &str) -> Option<&'static Target> {
        TARGETS.iter().copied().find(|target| target.name == name)
    }
}
