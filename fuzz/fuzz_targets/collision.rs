//! Feeds bytes to the laws of `collision`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::collision(data));
