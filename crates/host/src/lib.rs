//! The hands of Semel.
