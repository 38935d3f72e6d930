//! `ultima.switch.v1`: the port statistics and the traffic manager's service.
#![allow(missing_docs)] // The services' modules, which tonic generates without comments.
tonic::include_proto!("ultima.switch.v1");
