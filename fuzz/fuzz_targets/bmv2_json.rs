#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ultima_fuzz::bmv2_json(data));
