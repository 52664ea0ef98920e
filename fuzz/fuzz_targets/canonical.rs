//! Feeds bytes to the laws of `canonical`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::canonical(data));
