//! The conventions of Ultima's command lines: output formats and tables, quantities, policy names, input files, errors in
//! one line. It owns no command, and no exit code but 2 (invalid input).

pub mod error_line;
pub mod input;
pub mod output;
pub mod policies;
pub mod units;
