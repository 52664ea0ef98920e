//! Feeds bytes to the laws of `lock_json`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::lock_json(data));
