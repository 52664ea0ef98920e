//! The doors of Semel.

fn main() {}
