//! Lines of standard input and output, each on a thread of its own: what comes, and what is written whole.
//!
//! The same serves a child's output and input.

use crate::engine::host;
use crate::limits;
use semel_core::mcp::spool::Unsettled;
use semel_core::{Code, Refusal};
pub(crate) use semel_host::lines::Line;
use semel_host::lines::{self, Lines};
use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Reads lines on a thread of its own; the channel closes where no more come.
///
/// # Errors
/// `io_failed` where there is no thread for it.
pub(crate) fn reader(input: impl Read + Send + 'static) -> Result<mpsc::Receiver<Line>, Refusal> {
    let (give, taken) = mpsc::channel(16);
    let read = move || {
        let mut lines = Lines::new(input, limits::BRIDGE_LINE);
        while let Ok(Some(line)) = lines.take() {
            if give.blocking_send(line).is_err() {
                return;
            }
        }
    };
    thread("lines in", read)?;
    Ok(taken)
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Refusal> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started
        .map(drop)
        .map_err(|e| Refusal::new(Code::IoFailed, format!("no thread for lines: {e}")))
}

/// Is a line to write.
struct Out {
    line: Vec<u8>,
    of: Option<(u64, Option<Unsettled>)>,
    /// How many more may be read goes by how many are not written yet.
    _room: Option<OwnedSemaphorePermit>,
    end: Option<oneshot::Sender<()>>,
}

/// Says how far the writing of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// It begins.
    Begins,
    /// It was written whole; it may be none for good.
    Whole(Option<Unsettled>),
}

/// Is what was written so far.
#[derive(Default)]
struct Sent {
    bytes: u64,
    /// Where the answer to a request ends, of those that are not known to be read.
    answers: VecDeque<(u64, u64)>,
}

impl Sent {
    fn add(&mut self, line: u64, of: Option<u64>) {
        self.bytes += line;
        self.answers.extend(of.map(|request| (self.bytes, request)));
    }

    /// Takes the requests whose answers end before what nobody has read yet.
    fn take_read(&mut self, unread: u64) -> Vec<u64> {
        let read = self.bytes.saturating_sub(unread);
        let read = self.answers.iter().take_while(|(end, _)| *end <= read).count();
        self.answers.drain(..read).map(|(_, request)| request).collect()
    }
}

/// Is the way to whoever reads what is written.
#[derive(Clone)]
pub(crate) struct Output {
    way: mpsc::UnboundedSender<Out>,
    gone: Arc<AtomicBool>,
    sent: Arc<Mutex<Sent>>,
}

fn lock(sent: &Mutex<Sent>) -> std::sync::MutexGuard<'_, Sent> {
    sent.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Output {
    /// Writes lines on a thread of its own; `notes` is told of each request whose answer is being written, and was.
    ///
    /// # Errors
    /// `io_failed` where there is no thread for it.
    pub(crate) fn start(
        output: impl AsFd + Send + 'static,
        notes: impl Fn(u64, Writing) + Send + 'static,
    ) -> Result<Self, Refusal> {
        let (way, mut todo) = mpsc::unbounded_channel::<Out>();
        let gone = Arc::new(AtomicBool::new(false));
        let broken = gone.clone();
        let sent = Arc::new(Mutex::new(Sent::default()));
        let written = sent.clone();
        thread("lines out", move || {
            while let Some(out) = todo.blocking_recv() {
                if !out.line.is_empty() && !broken.load(Ordering::Acquire) {
                    if let Some((request, _)) = out.of {
                        notes(request, Writing::Begins);
                    }
                    match lines::write_line(&output, &out.line).map_err(host) {
                        Ok(()) => {
                            if let Some((request, unsettled)) = out.of {
                                notes(request, Writing::Whole(unsettled));
                            }
                            // With its line end. Read is only what was noted as written.
                            let request = out.of.map(|(request, _)| request);
                            lock(&written).add(out.line.len() as u64 + 1, request);
                        }
                        Err(_) => broken.store(true, Ordering::Release),
                    }
                }
                if let Some(end) = out.end {
                    end.send(()).ok();
                }
            }
        })?;
        Ok(Self { way, gone, sent })
    }

    /// Writes a line that answers nothing, such as of progress.
    pub(crate) fn tell(&self, line: Vec<u8>) {
        self.put(Out {
            line,
            of: None,
            _room: None,
            end: None,
        });
    }

    /// Writes the answer to a request.
    pub(crate) fn answer(
        &self,
        line: Vec<u8>,
        request: u64,
        unsettled: Option<Unsettled>,
        room: Option<OwnedSemaphorePermit>,
    ) {
        self.put(Out {
            line,
            of: Some((request, unsettled)),
            _room: room,
            end: None,
        });
    }

    /// Waits until all that was to be written is written, or cannot be.
    pub(crate) async fn written(&self) {
        let (tell, told) = oneshot::channel();
        self.put(Out {
            line: Vec::new(),
            of: None,
            _room: None,
            end: Some(tell),
        });
        drop(told.await);
    }

    /// Says whether nobody reads any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) || lines::reader_is_gone(std::io::stdout())
    }

    /// Says whether all that was written was read; `None` where the system does not say.
    pub(crate) fn is_read() -> Option<bool> {
        lines::unread(std::io::stdout()).map(|unread| unread == 0)
    }

    /// Takes the requests whose answers were read since it was asked last; `None` where the system does not say.
    pub(crate) fn take_read(&self) -> Option<Vec<u64>> {
        // What is written during the look counts as unread, never as read.
        let mut sent = lock(&self.sent);
        let unread = lines::unread(std::io::stdout());
        if unread.is_none() {
            sent.answers.clear();
        }
        unread.map(|unread| sent.take_read(unread))
    }

    fn put(&self, out: Out) {
        drop(self.way.send(out));
    }
}

#[cfg(test)]
mod tests {
    use super::Sent;

    #[test]
    fn an_answer_is_read_when_what_is_unread_begins_behind_it() {
        let mut sent = Sent::default();
        sent.add(10, Some(1));
        sent.add(5, None);
        sent.add(10, Some(2));
        assert!(sent.take_read(25).is_empty());
        assert!(sent.take_read(16).is_empty(), "its last byte is not read");
        assert_eq!(sent.take_read(15), [1]);
        assert!(sent.take_read(1).is_empty(), "once each");
        // Of a socket more may be told than was written.
        assert!(sent.take_read(4_096).is_empty());
        assert_eq!(sent.take_read(0), [2]);
    }
}
