//! Semel as a library: [`restore`], the restoration of a git worktree, and nothing else.
//!
//! Everything that `semel` does beyond that is a command; its faces are the command line, HTTP and MCP. What is public
//! here is stable: names, fields, and the names of refusals change only with a major version. Types that may learn
//! more are `non_exhaustive`.

pub mod restore;
