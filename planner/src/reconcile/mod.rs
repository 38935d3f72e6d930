//! Reconciliation: the difference between a switch's entities and the desired ones.
//!
//! [`Held`] are either, by key and in canonical form, so that equal entities compare equal however
//! a server writes them. [`Diff`] is the difference as the fewest updates,
//! in an order that never admits a packet before it can be forwarded. [`describe`] prints entities
//! in the program's names.
//!
//! Counters are not reconciled: their values are not desired state.

mod describe;
mod diff;
mod held;
mod key;
#[cfg(test)]
mod tests;

pub use describe::{describe, name};
pub use diff::{Described, Diff, Difference, Room};
pub use held::{Held, Item};
pub use key::{Key, Match, Value, key_of};
