//! Translation between P4Runtime's messages and the engine's types.
//!
//! gRPC's threads translate. The forwarding thread applies an [`Edit`] and runs a [`Query`], and sees no messages.

mod action;
mod arrays;
mod digests;
mod direct;
mod edit;
mod error;
mod filter;
mod packet;
mod profile;
pub(crate) mod query;
mod read;
mod replication;
pub(crate) mod statistics;
mod table_entry;
mod value_set;
mod write;

pub(crate) use edit::apply_all;
pub(crate) use error::batch_status;
pub(crate) use packet::{event, packet_in, packet_out};
pub(crate) use query::{Query, Row};
pub(crate) use read::{entity, query};
pub(crate) use write::{apply, translate};
