//! Finds every place of a sequence in another, in linear time whatever the two hold.

/// Lists where `needle` lies in `hay`, overlapping places too; an empty needle lies nowhere.
///
/// # Limits
/// At most two comparisons for each element of both.
///
/// # Source
/// Knuth, Morris, Pratt: Fast pattern matching in strings (1977).
pub(super) struct Places<'a, T> {
    needle: &'a [T],
    hay: &'a [T],
    /// For each prefix of the needle: how long its longest proper border is.
    borders: Vec<usize>,
    at: usize,
    matched: usize,
}

impl<'a, T: PartialEq> Places<'a, T> {
    /// Prepares the search.
    pub(super) fn of(needle: &'a [T], hay: &'a [T]) -> Self {
        Self {
            needle,
            hay,
            borders: borders(needle),
            at: 0,
            matched: 0,
        }
    }
}

impl<T: PartialEq> Iterator for Places<'_, T> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.needle.is_empty() {
            return None;
        }
        while self.at < self.hay.len() {
            if self.matched == 0 {
                // Most of a haystack holds no beginning: this is the loop that is worth being short.
                let skipped = self.hay[self.at..].iter().position(|x| *x == self.needle[0]);
                self.at = skipped.map_or(self.hay.len(), |n| self.at + n + 1);
                self.matched = usize::from(skipped.is_some());
            } else if self.matched < self.needle.len() && self.hay[self.at] == self.needle[self.matched] {
                self.at += 1;
                self.matched += 1;
            } else {
                self.matched = self.borders[self.matched - 1];
                continue;
            }
            if self.matched == self.needle.len() {
                self.matched = self.borders[self.matched - 1];
                return Some(self.at - self.needle.len());
            }
        }
        None
    }
}

fn borders<T: PartialEq>(needle: &[T]) -> Vec<usize> {
    let mut borders = vec![0; needle.len()];
    let mut length = 0;
    for at in 1..needle.len() {
        while length > 0 && needle[at] != needle[length] {
            length = borders[length - 1];
        }
        if needle[at] == needle[length] {
            length += 1;
        }
        borders[at] = length;
    }
    borders
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn finds_what_a_plain_search_finds(
            needle in proptest::collection::vec(0u8..2, 0..6),
            hay in proptest::collection::vec(0u8..2, 0..40),
        ) {
            let plain: Vec<usize> = (0..hay.len())
                .filter(|at| !needle.is_empty() && hay[*at..].starts_with(&needle))
                .collect();
            prop_assert_eq!(Places::of(&needle, &hay).collect::<Vec<_>>(), plain);
        }
    }
}
