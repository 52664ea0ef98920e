//! Feeds bytes to the laws of `patch`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::patch(data));
