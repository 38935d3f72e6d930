//! P4Info in text format.

#![cfg_attr(fuzzing, no_main)]

ultima_fuzz::target!(p4info);
