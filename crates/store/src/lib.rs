//! The memory of Semel.
