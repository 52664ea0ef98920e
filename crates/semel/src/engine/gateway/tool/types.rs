//! The types that the values of forms have.

use super::Form;

/// Says of what type the values of a form are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::gateway) enum Type {
    Text,
    Texts,
    /// One text, or a list of them.
    TextOrTexts,
    Flag,
    Whole,
    /// Two whole numbers.
    Pair,
    Objects,
    /// Texts by name.
    Named,
}

impl Form {
    /// Gives the type of its values.
    pub(in crate::engine::gateway) const fn of_type(self) -> Type {
        match self {
            Self::Text
            | Self::Word
            | Self::Path
            | Self::After
            | Self::PathBase64
            | Self::Base64
            | Self::Expression
            | Self::Patch
            | Self::Key
            | Self::Present
            | Self::Digest
            | Self::Mode
            | Self::Choice(_) => Type::Text,
            Self::Texts => Type::Texts,
            Self::Patterns | Self::SomePatterns => Type::TextOrTexts,
            Self::Flag => Type::Flag,
            Self::Count { .. } => Type::Whole,
            Self::Lines => Type::Pair,
            Self::Edits => Type::Objects,
            Self::Digests | Self::Variables => Type::Named,
        }
    }
}
