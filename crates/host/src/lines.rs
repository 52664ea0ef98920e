//! Messages on lines: of this process's own standard input and output, or of a child's.
//!
//! It does *not* know what a line says. Reading and writing block: whoever uses it has a thread for each.

use crate::error::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd as _};

/// Is a line without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The whole of it.
    Whole(Vec<u8>),
    /// It was longer than is kept; so many bytes were passed by.
    TooLong(u64),
}

/// Reads lines.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    most: usize,
    held: Vec<u8>,
    /// How far what is held was looked through.
    looked: usize,
    passed: u64,
    over: bool,
}

const PIECE: usize = 64 << 10;

impl<R: Read> Lines<R> {
    /// Reads lines of at most so many bytes.
    pub fn new(input: R, most: usize) -> Self {
        Self {
            input,
            most,
            held: Vec::new(),
            looked: 0,
            passed: 0,
            over: false,
        }
    }

    /// Gives the next line; `None` at the end. What stands behind the last line end is a line, too.
    ///
    /// # Errors
    /// `io_failed`.
    pub fn take(&mut self) -> Result<Option<Line>> {
        loop {
            if let Some(end) = self.held[self.looked..].iter().position(|b| *b == b'\n') {
                let end = self.looked + end;
                let rest = self.held.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.held, rest);
                line.pop();
                return Ok(Some(self.finished(line)));
            }
            self.looked = self.held.len();
            if self.held.len() > self.most {
                self.passed += self.held.len() as u64;
                self.held = Vec::new();
                self.looked = 0;
            }
            if self.over {
                if self.held.is_empty() && self.passed == 0 {
                    return Ok(None);
                }
                let line = std::mem::take(&mut self.held);
                return Ok(Some(self.finished(line)));
            }
            let room = self.held.len();
            self.held.resize(room + PIECE, 0);
            let read = match self.input.read(&mut self.held[room..]) {
                Ok(read) => read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {
                    self.held.truncate(room);
                    continue;
                }
                Err(e) => return Err(Error::io("read", "a line", e)),
            };
            self.held.truncate(room + read);
            self.over = read == 0;
        }
    }

    fn finished(&mut self, line: Vec<u8>) -> Line {
        self.looked = 0;
        match std::mem::take(&mut self.passed) {
            0 if line.len() <= self.most => Line::Whole(line),
            passed => Line::TooLong(passed + line.len() as u64),
        }
    }
}

/// Writes one line, whole, to whoever reads at the other end.
///
/// # Errors
/// `io_failed`, also where nobody reads any more; then less than a line may have been written.
pub fn write_line(output: impl AsFd, line: &[u8]) -> Result<()> {
    let whole = [line, b"\n"].concat();
    let mut rest = whole.as_slice();
    while !rest.is_empty() {
        match rustix::io::write(&output, rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            // Whoever made the pipe may have made it so.
            Err(Errno::AGAIN) => wait_for_room(&output)?,
            Err(errno) => return Err(Error::io("write", "a line", errno)),
        }
    }
    Ok(())
}

fn wait_for_room(output: &impl AsFd) -> Result<()> {
    let mut fds = [PollFd::new(output, PollFlags::OUT)];
    match poll(&mut fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::io("wait", "poll", errno)),
    }
}

/// Says how much of what was written nobody has read yet; `None` where the system does not say.
///
/// Of a pipe it is exact, also when nobody reads any more. Of a socket it is at least that much, and nothing is said once
/// its other end is closed: what lay there unread went with it.
pub fn unread(output: impl AsFd) -> Option<u64> {
    let fd = output.as_fd();
    let mode = rustix::fs::fstat(fd).ok()?.st_mode;
    match FileType::from_raw_mode(mode) {
        FileType::Fifo => rustix::io::ioctl_fionread(fd).ok(),
        FileType::Socket => {
            let mut count: libc::c_int = 0;
            #[expect(unsafe_code, reason = "SIOCOUTQ has no safe wrapper here")]
            // SAFETY: the descriptor is open, and the kernel writes one int to `count`.
            let asked = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
            let count = (asked == 0).then(|| u64::try_from(count).ok()).flatten();
            // Only a look behind the count tells that the count was of an end that was open.
            count.filter(|_| !reader_is_gone(fd))
        }
        _ => None,
    }
}

/// Says whether nobody can read any more what would be written.
pub fn reader_is_gone(output: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&output, PollFlags::empty())];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut fds, Some(&at_once)), Ok(1..))
        && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Gives its input in pieces of such a length.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let length = self.1.min(self.0.len()).min(buffer.len());
            let (piece, rest) = self.0.split_at(length);
            buffer[..length].copy_from_slice(piece);
            self.0 = rest;
            Ok(length)
        }
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        for piece in [1, 2, 3, 7, 1000] {
            let mut lines = Lines::new(Pieces(b"a\n\nbcd\nabcde\nabcdefghij\nxy", piece), 4);
            let mut all = Vec::new();
            while let Some(line) = lines.take().unwrap() {
                all.push(line);
            }
            let wanted = [
                whole("a"),
                whole(""),
                whole("bcd"),
                Line::TooLong(5),
                Line::TooLong(10),
                whole("xy"),
            ];
            assert_eq!(all, wanted, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_not_read_yet_is_known_of_pipes_and_sockets() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        write_line(&writer, b"ab").unwrap();
        assert_eq!(unread(&writer), Some(3));
        assert!(!reader_is_gone(&writer));
        reader.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(unread(&writer), Some(0));
        drop(reader);
        assert!(reader_is_gone(&writer));
        assert!(write_line(&writer, b"x").is_err());
        let (mut one, other) = UnixStream::pair().unwrap();
        other.set_nonblocking(true).unwrap();
        write_line(&other, b"ab").unwrap();
        assert!(unread(&other).unwrap() > 0);
        one.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(unread(&other), Some(0));
        assert_eq!(unread(tempfile::tempfile().unwrap()), None);
        // More than fits, to a reader that is slow.
        let long = vec![b'x'; 1 << 20];
        let reading = std::thread::spawn(move || {
            let mut lines = Lines::new(one, 2 << 20);
            lines.take().unwrap()
        });
        write_line(&other, &long).unwrap();
        assert_eq!(reading.join().unwrap(), Some(Line::Whole(long)));
    }
}
