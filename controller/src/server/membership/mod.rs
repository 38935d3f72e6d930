//! Changes of a job's members while it runs.
//!
//! `change` has the requests to resize and evict, and commits the next epoch; `follow` carries it out; `member_messages`
//! exchanges messages with members; `preparation` is the longest exchange; `departure` reports members that
//! left or were refused to the others; `suspects` evicts failed members; `cancel`
//! cancels changes; `events` notifies watchers.

pub mod cancel;
pub mod change;
pub mod departure;
pub mod events;
pub mod follow;
pub mod member_messages;
pub mod preparation;
pub mod suspects;
