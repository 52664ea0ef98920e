//! Events as a server sends them in a stream, of which only the data is read.

/// Reads events.
#[derive(Debug, Default)]
pub(super) struct Events {
    held: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

impl Events {
    /// Takes a piece; gives the data of the events that are whole with it.
    pub(super) fn take(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        self.held.extend_from_slice(piece);
        let mut events = Vec::new();
        let mut from = 0;
        while let Some(end) = self.held[from..].iter().position(|b| *b == b'\n') {
            let line = &self.held[from..from + end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if std::mem::take(&mut self.has_data) {
                    events.push(std::mem::take(&mut self.data));
                }
            } else if let Some(data) = line.strip_prefix(b"data:") {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push(b'\n');
                }
                self.data
                    .extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
            from += end + 1;
        }
        self.held.drain(..from);
        events
    }

    /// Says how much is held of what is not whole.
    pub(super) fn held(&self) -> usize {
        self.held.len() + self.data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_they_are_cut() {
        let stream =
            b"id: 1\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n: kept alive\n\nevent: message\ndata:x\n\ndata: cut";
        for piece in [1, 2, 3, 7, 1000] {
            let mut events = Events::default();
            let all: Vec<Vec<u8>> = stream
                .chunks(piece)
                .flat_map(|piece| events.take(piece))
                .collect();
            assert_eq!(
                all,
                [b"{\"a\":\n1}".to_vec(), b"x".to_vec()],
                "in pieces of {piece}"
            );
            assert_eq!(events.held(), 9);
        }
    }
}
