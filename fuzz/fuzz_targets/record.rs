//! Feeds bytes to the laws of `record`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::record(data));
