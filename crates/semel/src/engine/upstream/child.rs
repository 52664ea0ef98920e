//! A server that is a program: messages are lines, many requests are under way at once, and when it ends it is known of
//! each whether the program can have had it.
//!
//! What the program had is known by the pipe: once nobody can read it any more, what is left in it was read by nobody.

use super::link::{Came, Hears, Wanted};
use crate::limits;
use semel_core::mcp::rpc;
use semel_core::upstream::Said;
use semel_host::daemon::StateRoot;
use semel_host::lines::{Line, Lines, reader_is_gone, unread, write_line};
use semel_host::process::talk::{Talk, Talker, talk};
use semel_host::sandbox::resolve_program;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;

/// Is the program, with what is under way.
#[derive(Debug)]
pub(super) struct Child {
    desk: Arc<Desk>,
    next: AtomicU64,
}

/// Is what the threads that read and write share with those who ask.
struct Desk {
    talk: Talk,
    lines: mpsc::Sender<Outgoing>,
    state: Mutex<State>,
    /// The writer ended a line, or failed to.
    wrote: Condvar,
    /// It said that what it lists is another by now.
    stale: Arc<AtomicBool>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Desk").field(&self.talk.pid()).finish()
    }
}

struct Outgoing {
    id: Option<u64>,
    line: Vec<u8>,
}

#[derive(Default)]
struct State {
    over: bool,
    waiting: HashMap<u64, Waiting>,
    /// How many bytes of whole lines were written.
    written: u64,
    /// How long the line is that is being written.
    writing: u64,
    failed: bool,
}

struct Waiting {
    tell: oneshot::Sender<Came>,
    hears: Option<Hears>,
    at: At,
}

/// Says how far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// No byte of it was written.
    Queued,
    /// It is being written.
    Writing,
    /// All of it was written; its last byte, before the end of its line, is the so-manieth.
    Written(u64),
}

/// Is what is known of a pipe whose program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pipe {
    /// Whether anybody could still read it.
    gone: bool,
    /// How many bytes are at most read.
    read: u64,
    /// Whether the writer writes no more.
    still: bool,
}

/// Says whether a program can have had a request whole.
fn had(at: At, pipe: Pipe) -> bool {
    match at {
        At::Queued => false,
        At::Writing => !(pipe.gone && pipe.still),
        At::Written(end) => !(pipe.gone && pipe.still && pipe.read < end),
    }
}

impl Child {
    /// Starts the program.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) fn start(
        command: &[String],
        env: BTreeMap<OsString, OsString>,
        path: &[PathBuf],
        (home, cwd): (&Path, Option<&Path>),
        stale: Arc<AtomicBool>,
    ) -> Result<Self, String> {
        let told = |e: semel_host::Error| e.to_string();
        let (program, args) = command.split_first().ok_or("it has no command")?;
        let program = resolve_program(OsStr::new(program), path).map_err(told)?;
        StateRoot::make(home).map_err(told)?;
        let mut whole: BTreeMap<OsString, OsString> =
            BTreeMap::from([("HOME".into(), home.into()), ("LANG".into(), "C.UTF-8".into())]);
        if let Ok(path) = std::env::join_paths(path) {
            whole.insert("PATH".into(), path);
        }
        whole.extend(env);
        let (talk, output) = talk(&Talker {
            program,
            args: args.iter().map(OsString::from).collect(),
            env: whole,
            cwd: cwd.unwrap_or(home).to_owned(),
        })
        .map_err(told)?;
        let (lines, todo) = mpsc::channel();
        let desk = Arc::new(Desk {
            talk,
            lines,
            state: Mutex::default(),
            wrote: Condvar::new(),
            stale,
        });
        let (writes, reads) = (desk.clone(), desk.clone());
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let writing = thread("upstream writer").spawn(move || writes.write(&todo));
        let reading = thread("upstream reader").spawn(move || {
            let mut lines = Lines::new(Bounded::new(output), limits::UPSTREAM_LINE);
            loop {
                match lines.take() {
                    Ok(Some(Line::Whole(line))) => reads.hear(&line),
                    Ok(None) => return reads.end("it has ended"),
                    Ok(Some(Line::TooLong(_))) | Err(_) => {
                        let most = limits::UPSTREAM_LINE;
                        return reads.end(&format!("it sent a message of more than {most} bytes"));
                    }
                }
            }
        });
        match writing.and(reading) {
            Ok(_) => Ok(Self {
                desk,
                next: AtomicU64::new(1),
            }),
            Err(e) => {
                desk.end("no thread for it");
                Err(format!("cannot start a thread: {e}"))
            }
        }
    }

    pub(super) fn lives(&self) -> bool {
        !self.desk.state().over
    }

    pub(super) fn end(&self, why: &str) {
        self.desk.end(why);
    }

    pub(super) fn last_words(&self) -> String {
        self.desk.talk.last_words()
    }

    /// Sends what wants no answer.
    pub(super) fn tell(&self, message: Value) {
        let line = message.to_string().into_bytes();
        drop(self.desk.lines.send(Outgoing { id: None, line }));
    }

    /// Sends a request, and waits for its answer.
    pub(super) async fn request(&self, mut wanted: Wanted<'_>) -> Came {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if wanted.hears.is_some() {
            let meta = wanted.params.entry("_meta").or_insert(json!({}));
            meta["progressToken"] = json!(id);
        }
        let message = json!({"jsonrpc": "2.0", "id": id, "method": wanted.method, "params": wanted.params});
        let (tell, came) = oneshot::channel();
        {
            let mut state = self.desk.state();
            if state.over {
                return Came::Never("it has ended".to_owned());
            }
            let hears = wanted.hears.take();
            let at = At::Queued;
            state.waiting.insert(id, Waiting { tell, hears, at });
        }
        let line = message.to_string().into_bytes();
        drop(self.desk.lines.send(Outgoing { id: Some(id), line }));
        let forgets = Forgets { desk: &self.desk, id };
        let waited = tokio::time::timeout(wanted.timeout, came).await;
        match waited {
            Ok(Ok(came)) => came,
            // Nobody drops it untold.
            Ok(Err(_)) => Came::Perhaps("it has ended".to_owned()),
            Err(_) => {
                let why = format!("it gave no answer within {} s", wanted.timeout.as_secs_f32());
                match forgets.at() {
                    Some(At::Queued) => Came::Never(why),
                    Some(At::Writing | At::Written(_)) | None => {
                        // It need not heed it; what it says later is heard by nobody.
                        let params = json!({"requestId": id, "reason": "timeout"});
                        self.tell(rpc::notification("notifications/cancelled", params));
                        Came::Perhaps(why)
                    }
                }
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.desk.end("it was ended");
    }
}

/// Reads until a line is longer than any message: nobody waits for the end of one that has none.
struct Bounded<R> {
    input: R,
    line: usize,
}

impl<R: Read> Bounded<R> {
    fn new(input: R) -> Self {
        Self { input, line: 0 }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.input.read(buffer)?;
        let piece = buffer.get(..read).unwrap_or_default();
        self.line = match piece.iter().rposition(|b| *b == b'\n') {
            Some(end) => read - end - 1,
            None => self.line + read,
        };
        if self.line > limits::UPSTREAM_LINE {
            return Err(std::io::Error::other("a message without end"));
        }
        Ok(read)
    }
}

/// Takes a request from the desk once nobody waits for it: one that was not written by then never is.
struct Forgets<'a> {
    desk: &'a Desk,
    id: u64,
}

impl Forgets<'_> {
    fn at(&self) -> Option<At> {
        self.desk
            .state()
            .waiting
            .remove(&self.id)
            .map(|waiting| waiting.at)
    }
}

impl Drop for Forgets<'_> {
    fn drop(&mut self) {
        self.at();
    }
}

impl Desk {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, todo: &mpsc::Receiver<Outgoing>) {
        while let Ok(Outgoing { id, line }) = todo.recv() {
            let length = line.len() as u64 + 1;
            {
                let mut state = self.state();
                if state.over {
                    return;
                }
                if let Some(id) = id {
                    // Whoever gave it up was told that it was never written.
                    let Some(waiting) = state.waiting.get_mut(&id) else {
                        continue;
                    };
                    waiting.at = At::Writing;
                }
                state.writing = length;
            }
            let written = write_line(&self.talk.input, &line);
            let mut state = self.state();
            match written {
                Ok(()) => {
                    state.written += length;
                    state.writing = 0;
                    let end = state.written - 1;
                    if let Some(waiting) = id.and_then(|id| state.waiting.get_mut(&id)) {
                        waiting.at = At::Written(end);
                    }
                    self.wrote.notify_all();
                }
                Err(_) => {
                    state.failed = true;
                    self.wrote.notify_all();
                    drop(state);
                    return self.end("it reads no more");
                }
            }
        }
    }

    /// Hears a line. What is no message, and an answer to nothing that was asked, is passed by: a server may write what
    /// it likes, and only an answer with the id of a request answers it, once.
    fn hear(&self, line: &[u8]) {
        match serde_json::from_slice::<Value>(line) {
            Ok(Value::Array(messages)) => messages.into_iter().for_each(|message| self.message(message)),
            Ok(message) => self.message(message),
            Err(_) => {}
        }
    }

    fn message(&self, mut message: Value) {
        let method = message["method"].as_str().map(str::to_owned);
        match (method, message.get("id")) {
            (Some(method), Some(id)) => {
                // It may ask whether anybody is there; nothing else is done for it.
                let answer = if method == "ping" {
                    json!({"jsonrpc": "2.0", "id": id, "result": {}})
                } else {
                    let error = json!({"code": rpc::METHOD_NOT_FOUND, "message": "nothing is done for a server here"});
                    json!({"jsonrpc": "2.0", "id": id, "error": error})
                };
                let line = answer.to_string().into_bytes();
                drop(self.lines.send(Outgoing { id: None, line }));
            }
            (Some(method), None) => self.notified(&method, &message["params"]),
            (None, Some(id)) => {
                let Some(id) = id.as_u64() else { return };
                let answer = match (message.get("result").is_some(), message.get("error").is_some()) {
                    (true, false) => Came::Answer(Said::Result, message["result"].take()),
                    (false, true) => Came::Answer(Said::Error, message["error"].take()),
                    (true, true) | (false, false) => return,
                };
                let mut state = self.state();
                // What was not asked yet cannot be answered.
                if state
                    .waiting
                    .get(&id)
                    .is_some_and(|waiting| waiting.at != At::Queued)
                    && let Some(waiting) = state.waiting.remove(&id)
                {
                    drop(waiting.tell.send(answer));
                }
            }
            (None, None) => {}
        }
    }

    fn notified(&self, method: &str, params: &Value) {
        match method {
            "notifications/tools/list_changed" => self.stale.store(true, Ordering::Release),
            "notifications/progress" => {
                let id = params["progressToken"].as_u64().unwrap_or_default();
                let hears = self
                    .state()
                    .waiting
                    .get(&id)
                    .and_then(|waiting| waiting.hears.clone());
                if let Some(hears) = hears {
                    progress(&hears, params);
                }
            }
            // Log messages and the like are the server's own.
            _ => {}
        }
    }

    /// Kills the program, and tells everybody who waits what it can have had. It blocks for a moment.
    fn end(&self, why: &str) {
        if std::mem::replace(&mut self.state().over, true) {
            return;
        }
        self.talk.end();
        // Lines that wait are written by nobody any more.
        drop(self.lines.send(Outgoing {
            id: None,
            line: Vec::new(),
        }));
        let gone = reader_is_gone(&self.talk.input);
        let mut state = self.state();
        if gone {
            // A write to a pipe that nobody reads fails at once.
            let busy = |state: &mut State| state.writing > 0 && !state.failed;
            let waited = self.wrote.wait_timeout_while(state, Duration::from_secs(2), busy);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let still = state.writing == 0 || state.failed;
        let left = unread(&self.talk.input).unwrap_or(0);
        let pipe = Pipe {
            gone,
            read: (state.written + state.writing).saturating_sub(left),
            still,
        };
        for (_, waiting) in state.waiting.drain() {
            let came = if had(waiting.at, pipe) {
                Came::Perhaps(why.to_owned())
            } else {
                Came::Never(why.to_owned())
            };
            drop(waiting.tell.send(came));
        }
    }
}

/// Tells on how a request goes on.
pub(super) fn progress(hears: &Hears, params: &Value) {
    let whole = |value: &Value| {
        value
            .as_u64()
            .or_else(|| value.as_f64().map(|number| number.max(0.0) as u64))
    };
    let so_far = whole(&params["progress"]).unwrap_or_default();
    let message = params["message"].as_str().unwrap_or_default();
    let message: String = message.chars().take(1000).collect();
    hears(so_far, whole(&params["total"]), &message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_can_have_had_is_known_by_what_it_left() {
        let ended = Pipe {
            gone: true,
            read: 10,
            still: true,
        };
        assert!(!had(At::Queued, ended));
        assert!(!had(At::Writing, ended), "a line that was not written whole");
        assert!(had(At::Written(10), ended));
        assert!(!had(At::Written(11), ended), "its last byte was read by nobody");
        for unsure in [
            Pipe { gone: false, ..ended },
            Pipe {
                still: false,
                ..ended
            },
        ] {
            assert!(!had(At::Queued, unsure));
            assert!(
                had(At::Writing, unsure) && had(At::Written(11), unsure),
                "{unsure:?}"
            );
        }
    }

    /// Starts a script, with a home that goes with the test.
    fn python(script: &str) -> (Child, tempfile::TempDir) {
        let home = tempfile::tempdir().unwrap();
        let command = ["python3", "-u", "-c", script].map(str::to_owned);
        let path = crate::config::search_path();
        let child = Child::start(
            &command,
            BTreeMap::new(),
            &path,
            (home.path(), None),
            Arc::default(),
        )
        .unwrap();
        (child, home)
    }

    fn ask(method: &str) -> Wanted<'_> {
        Wanted {
            method,
            params: serde_json::Map::new(),
            headers: Vec::new(),
            timeout: Duration::from_secs(60),
            hears: None,
        }
    }

    fn block_on<T>(what: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(what)
    }

    /// It answers with garbage around it, under a wrong id, and twice: one answer is heard, the right one.
    #[test]
    fn only_the_answer_with_the_id_is_heard_and_once() {
        let (child, _home) = python(
            "import sys, json\n\
             for line in sys.stdin:\n\
             \x20 i = json.loads(line)['id']\n\
             \x20 print('garbage'); print('[1, null, {}]'); print(json.dumps({'id': i + 1000, 'result': 'wrong'}))\n\
             \x20 print(json.dumps({'id': str(i), 'result': 'text'})); print(json.dumps({'id': i, 'result': 1, 'error': 2}))\n\
             \x20 print(json.dumps({'id': i, 'result': i})); print(json.dumps({'id': i, 'result': 'again'}))",
        );
        for n in 1..=3_u64 {
            let came = block_on(child.request(ask("m")));
            assert_eq!(came, Came::Answer(Said::Result, json!(n)));
        }
    }

    /// It ends having read one request: what it read it may have done, what it did not read it never had.
    #[test]
    fn what_it_did_not_read_it_never_had() {
        let (child, _home) = python(
            "import os, sys\n\
             line = b''\n\
             while not line.endswith(b'\\n'): line += os.read(0, 1)\n\
             while not os.path.exists('/proc/self/fd/0'): pass\n\
             import fcntl, array, termios\n\
             left = array.array('i', [0])\n\
             while left[0] == 0: fcntl.ioctl(0, termios.FIONREAD, left)\n\
             os._exit(1)",
        );
        let (first, second) =
            block_on(async { tokio::join!(child.request(ask("first")), child.request(ask("second"))) });
        assert!(matches!(first, Came::Perhaps(_)), "{first:?}");
        assert!(matches!(second, Came::Never(_)), "{second:?}");
        assert!(!child.lives());
        assert!(matches!(block_on(child.request(ask("third"))), Came::Never(_)));
    }

    #[test]
    fn a_message_without_end_ends_it() {
        let (child, _home) =
            python("import sys\nsys.stdin.readline()\nwhile True: sys.stdout.write('x' * 1000000)");
        let came = block_on(child.request(ask("m")));
        assert!(matches!(came, Came::Perhaps(_)), "{came:?}");
    }

    #[test]
    fn who_gives_no_answer_may_have_done_it() {
        let (child, _home) = python("import time\nwhile True: time.sleep(1000)");
        let wanted = Wanted {
            timeout: Duration::from_millis(20),
            ..ask("m")
        };
        let came = block_on(child.request(wanted));
        assert!(matches!(came, Came::Perhaps(_) | Came::Never(_)), "{came:?}");
        assert!(child.lives());
    }
}
