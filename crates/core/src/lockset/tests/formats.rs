//! What holds for single formats.

use super::*;
