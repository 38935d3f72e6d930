//! Packet tests in the Simple Test Framework's language, run over P4Runtime and a target's ports.
//!
//! [`case`] finds tests and runs one; [`script`] is the language; [`session`] does what the lines
//! say; [`target`] is what they are run on; [`report`] counts.

pub mod case;
mod client;
mod cursor;
mod ends;
mod entry;
mod interface;
mod literal;
mod lookup;
#[path = "../../../src/port/packet_socket.rs"]
#[allow(dead_code, reason = "the switch uses more of it")]
mod packet_socket;
mod pattern;
mod replication;
pub mod report;
mod script;
mod session;
pub mod target;
