//! Feeds bytes to the laws of `edit`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| laws::edit_file(data));
