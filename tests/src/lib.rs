//! Helpers for Ultima's end-to-end tests
