//! `RECORD`: the list of files of an installed Python distribution.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};

/// Holds one row of a `RECORD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The path, relative to the directory that holds the `.dist-info`.
    pub(super) path: String,
    /// The SHA-256, where one is given.
    pub(super) sha256: Option<[u8; 32]>,
    /// The size in bytes, where one is given.
    pub(super) size: Option<u64>,
}

/// Parses a `RECORD`; `Err` with the line where one is not understood.
///
/// # Source
/// PyPA, "Recording installed projects": CSV of path, `algorithm=urlsafe-base64-without-padding`, size.
pub(super) fn parse(text: &str) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (number, fields) in csv(text)
        .ok_or("a quote that is not closed")?
        .into_iter()
        .enumerate()
    {
        let wrong = || format!("row {} is not understood", number + 1);
        let mut fields = fields.into_iter();
        let (path, hash, size) = (fields.next(), fields.next(), fields.next());
        let path = path.filter(|p| !p.is_empty()).ok_or_else(wrong)?;
        let sha256 = match hash.as_deref() {
            None | Some("") => None,
            Some(hash) => {
                let coded = hash.strip_prefix("sha256=").ok_or_else(wrong)?;
                let bytes = BASE64_URL_SAFE_NO_PAD
                    .decode(coded.trim_end_matches('='))
                    .map_err(|_| wrong())?;
                Some(bytes.try_into().map_err(|_| wrong())?)
            }
        };
        let size = match size.as_deref() {
            None | Some("") => None,
            Some(size) => Some(size.parse().map_err(|_| wrong())?),
        };
        rows.push(Row { path, sha256, size });
    }
    Ok(rows)
}

/// Splits comma-separated values with quotes; `None` where a quote stays open.
fn csv(text: &str) -> Option<Vec<Vec<String>>> {
    let mut rows = Vec::new();
    let mut row: Vec<String> = Vec::new();
    let mut field = String::new();
    let mut quoted = false;
    // A row of one empty text in quotes is a row; only a line that holds nothing is none.
    let mut quotes = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        quotes |= c == '"';
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(core::mem::take(&mut field)),
            '\r' if !quoted && chars.peek() == Some(&'\n') => {}
            '\n' if !quoted => {
                if core::mem::take(&mut quotes) || !row.is_empty() || !field.is_empty() {
                    row.push(core::mem::take(&mut field));
                    rows.push(core::mem::take(&mut row));
                }
            }
            other => field.push(other),
        }
    }
    if quotes || !row.is_empty() || !field.is_empty() {
        row.push(field);
        rows.push(row);
    }
    (!quoted).then_some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_with_and_without_quotes() {
        let digest = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        let text = format!("a.py,sha256={digest},0\r\n\"b,\"\"c.py\",,\nRECORD,,\n");
        let rows = parse(&text).unwrap();
        assert_eq!(rows.len(), 3);
        assert_eq!(
            rows[0].sha256.unwrap(),
            *crate::digest::Sha256::of(b"").as_bytes()
        );
        assert_eq!(rows[1].path, "b,\"c.py");
        assert_eq!((rows[2].sha256, rows[2].size), (None, None));
        for bad in [
            "a.py,md5=xx,1\n",
            "a.py,sha256=x,1\n",
            "\"a.py,,\n",
            ",,\n",
            "a,,x\n",
            "RECORD,,\n\"\"\n",
            "RECORD,,\n\"\"",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
