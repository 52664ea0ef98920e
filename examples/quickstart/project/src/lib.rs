//! Greets.

/// Gives the greeting of a name.
pub fn greet(name: &str) -> String {
    format!("Hello {name}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_greets_with_a_comma() {
        assert_eq!(super::greet("Ada"), "Hello, Ada");
    }
}
