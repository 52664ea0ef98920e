//! Feeds bytes to the laws of `path`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::path(data));
