//! The kernel's tables of mounts, as far as every room reads them alike.

/// Gives back what the kernel writes as a backslash and three octal digits.
pub(crate) fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\');
        let byte = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() {
            after.get(3..).unwrap_or_default()
        } else {
            after
        };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_of_the_mount_table_are_read() {
        assert_eq!(unescaped(br"/a\040b\134c"), br"/a b\c");
        assert_eq!(unescaped(br"/a\04"), br"/a\04");
    }
}
