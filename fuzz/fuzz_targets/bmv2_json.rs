//! BMv2 JSON.

#![cfg_attr(fuzzing, no_main)]

ultima_fuzz::target!(bmv2_json);
