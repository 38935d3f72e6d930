//! Requests to a switch's gRPC server.

#![cfg_attr(fuzzing, no_main)]

ultima_fuzz::target!(p4runtime);
