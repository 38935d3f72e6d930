#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ultima_fuzz::p4info(data));
