//! What a switch should hold against what it holds.
//!
//! [`Held`] is either: by key, in one canonical form, so that equal things are equal however a server writes them.
//! [`read`] asks a switch; [`Diff`] is what one lacks of the other, as the fewest updates, in an order that never admits
//! a packet that could not be carried to its end; [`describe`] says it in the program's names.
//!
//! Counters are not looked at: what they have counted is nobody's wish.

mod describe;
mod diff;
mod held;
mod key;
mod read;
#[cfg(test)]
mod tests;

pub use describe::{describe, name};
pub use diff::{Described, Diff, Difference, Room};
pub use held::{Held, Item};
pub use key::{Key, Match, Value};
pub use read::read;
