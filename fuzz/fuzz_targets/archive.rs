//! Feeds bytes to the laws of archives, on a filesystem in memory where there is one.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

#[path = "laws_of_archives.rs"]
mod laws;

static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let place = if memory.is_dir() {
        memory
    } else {
        std::env::temp_dir()
    };
    let place = place.join(format!("semel-fuzz-{}", std::process::id()));
    std::fs::create_dir(&place).expect("a new directory");
    place
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    laws::archive(data, &SCRATCH);
});
