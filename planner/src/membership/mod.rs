//! Membership epochs: a job's members change while it runs, and all remaining members agree on the
//! first operation of the new epoch.
//!
//! This module has no clock, network or switches. [`Succession`] maps the members of one epoch to
//! the next, [`Change`] is the controller's side of a change, [`ultima_api::operation_gate`] a member's. A change has
//! these phases:
//!
//! 1. *Gathering.* The new epoch is on the switches next to the old one, under another id in
//!    packets. New members join it; the old epoch goes on.
//! 2. *Asking.* Each surviving member prepares and acknowledges: it names an operation that it will
//!    not begin in the old epoch before the decision. It goes on with earlier operations.
//! 3. *Decided.* When all have acknowledged, the latest named operation is the first of the new
//!    epoch, K. It is committed before any member learns it. Operations before K belong to the old
//!    epoch on all ranks, K and later ones to the new epoch.
//! 4. When all survivors have switched, or a timeout has passed, the old epoch is removed from the
//!    switches.
//!
//! A change can be cancelled until it is decided: acknowledgements are void, and no member has
//! begun an operation in the new epoch. A decided change is never cancelled. A member that
//! acknowledged and does not learn the decision waits, because it cannot know the outcome.

mod change;
mod eviction;
mod origin;
mod succession;
mod suspicion;
#[cfg(test)]
mod tests;
mod timers;

pub use change::{Change, ChangeAction, ChangeOptions, Lost, Phase, SessionId, View};
pub use eviction::Eviction;
pub use origin::Origin;
pub use succession::Succession;
pub use suspicion::{Seen, Suspicion, SuspicionChange};
pub use timers::MemberTimers;
