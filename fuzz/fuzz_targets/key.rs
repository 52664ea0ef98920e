//! Feeds bytes to the laws of `key`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::key(data));
