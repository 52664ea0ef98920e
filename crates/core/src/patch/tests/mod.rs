//! Tables of cases, and laws against a plain model.

mod edits;
