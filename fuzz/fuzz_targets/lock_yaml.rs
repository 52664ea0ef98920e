//! Feeds bytes to the laws of `lock_yaml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::lock_yaml(data));
