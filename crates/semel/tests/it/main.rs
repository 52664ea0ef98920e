//! Tests of the binary as people and machines meet it.
