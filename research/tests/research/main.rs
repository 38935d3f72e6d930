//! The binary `ultima-research`, run as a user runs it.

mod sim;
mod study;
