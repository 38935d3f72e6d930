//! P4Runtime v1: messages, tonic stubs, P4Info lookup by name
