//! Lines of standard input and output, each on a thread of its own: what comes, and what is written whole.
//!
//! The same serves a child's output and input.

use crate::engine::host;
use crate::limits;
use semel_core::mcp::spool::Unsettled;
use semel_core::{Code, Refusal};
pub(crate) use semel_host::lines::Line;
use semel_host::lines::{self, Lines};
use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Is the way to whoever reads what is written.
#[derive(Clone)]
pub(crate) struct Output {
    way: mpsc::UnboundedSender<Out>,
    gone: Arc<AtomicBool>,
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
                        }
                        Err(_) => broken.store(true, Ordering::Release),
                    }
                }
                if let Some(end) = out.end {
                    end.send(()).ok();
                }
            }
        })?;
        Ok(Self { way, gone })
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

    fn put(&self, out: Out) {
        drop(self.way.send(out));
    }
}
