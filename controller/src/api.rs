//! The control API's messages and stubs, generated from `proto/ultima/control/v1`.

#![allow(missing_docs)] // tonic's own items carry no comments.

tonic::include_proto!("ultima.control.v1");
