//! Feeds bytes to the laws of `lock_toml`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::lock_toml(data));
