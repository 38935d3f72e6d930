//! Membership epochs: a job gets other members while it runs, and all who stay agree which operation is the first of the new epoch.
//!
//! Nothing here knows a clock, a network or a switch. [`Succession`] says what becomes of the members, [`Change`] is the controller's
//! side of one change, [`Turns`] a member's. The parts of it:
//!
//! 1. *Gathering.* The new epoch is on the switches beside the old one, under another number in packets. Newcomers join it; the old
//!    epoch goes on meanwhile.
//! 2. *Asking.* Each member that stays opens what it needs and pledges: it names an operation that it will not begin in the old epoch
//!    before it is told. It goes on with those before.
//! 3. *Decided.* When all have pledged, the latest operation that anybody has named is the first of the new epoch, K. It is kept before
//!    anybody is told. Operations before K are of the old epoch for everybody, K and those after of the new one.
//! 4. When all who stay have gone over, or a bound has passed, the old epoch is taken off the switches.
//!
//! A change that is not decided can be called off at any time: pledges are void, and nobody has begun anything in the new epoch. One
//! that is decided is never called off. Who has pledged and is not told waits: it cannot know which of both has happened.

mod change;
mod eviction;
mod origin;
mod succession;
mod suspicion;
#[cfg(test)]
mod tests;
mod turns;

pub use change::{Attendance, Change, Lost, PLEDGED, Phase, Step, Terms, View};
pub use eviction::Eviction;
pub use origin::Origin;
pub use succession::Succession;
pub use suspicion::{Seen, Suspicion, Turned};
pub use turns::{Turn, Turns};
