//! Ultima's packet format: the one place in Rust that knows the header
