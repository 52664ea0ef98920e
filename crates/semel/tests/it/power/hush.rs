//! Leaves out syncs of one kind: the kernel asks here before each, and hears "done" where nothing was.
//!
//! The product makes system calls of its own, which no library in front of it sees; a seccomp filter does. Where it is
//! asked for, the changes of names and permissions are heard of, too, in their order.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// What is synced, by its place below the state root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    /// The write-ahead log of the journal.
    Log,
    /// The file of the journal itself, when the log is checkpointed.
    Journal,
    /// A file or directory in `staging/`, before it takes its name.
    Staged,
    /// `staging/` itself.
    Staging,
    /// `trash/` itself.
    Trash,
    /// A directory of the tree, which lost or won a name.
    Parent,
    /// A file of the tree, whose permissions were set.
    File,
    /// What a volume is made of, and known by.
    Volume,
    /// Small files of the state root.
    Root,
}

impl What {
    fn of(place: &Path) -> Self {
        let text = place.to_string_lossy();
        let text = text.trim_end_matches(" (deleted)");
        let within = |dir: &str| text.contains(&format!("/vol/{dir}/"));
        if text.ends_with("/journal.db-wal") {
            Self::Log
        } else if text.ends_with("/journal.db") {
            Self::Journal
        } else if within("staging") {
            Self::Staged
        } else if text.ends_with("/vol/staging") {
            Self::Staging
        } else if text.ends_with("/vol/trash") {
            Self::Trash
        } else if within("tree") || text.ends_with("/vol/tree") {
            match place.is_dir() {
                true => Self::Parent,
                false => Self::File,
            }
        } else if text.contains("/volumes") {
            Self::Volume
        } else {
            Self::Root
        }
    }
}

/// A file or directory, by device and number.
pub(super) type Thing = (u64, u64);

/// What is about to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A name in each of these directories, or the permissions of this file.
    Changes(Vec<(What, Thing)>),
    Syncs(What, Thing),
}

/// What is heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hears {
    Syncs,
    Everything,
}

/// Leaves syncs out, and keeps what it hears.
#[derive(Clone)]
pub(super) struct Hush {
    leaves_out: &'static [What],
    hears: Hears,
    events: Arc<Mutex<Vec<Event>>>,
    left_out: Arc<Mutex<u64>>,
}

const SYNCS: &[libc::c_long] = &[libc::SYS_fsync, libc::SYS_fdatasync];
const CHANGES: &[libc::c_long] = &[
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_fchmodat,
];

const fn statement(code: u32, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Asks about these calls, and lets everything else pass.
fn filter(calls: &[libc::c_long]) -> Vec<libc::sock_filter> {
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, (0, 0))];
    for (n, call) in calls.iter().enumerate() {
        filter.push(statement(equal, *call as u32, ((calls.len() - n) as u8, 0)));
    }
    filter.push(statement(answer, libc::SECCOMP_RET_ALLOW, (0, 0)));
    filter.push(statement(answer, libc::SECCOMP_RET_USER_NOTIF, (0, 0)));
    filter
}

/// Makes the calling process one whose syncs are asked about; gives the number of the descriptor that asks.
fn ask_from_now_on(filter: &mut [libc::sock_filter]) -> std::io::Result<i32> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: a plain system call; the program outlives it.
    #[expect(unsafe_code, reason = "std has no seccomp")]
    let fd = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    i32::try_from(fd)
        .ok()
        .filter(|fd| *fd >= 0)
        .ok_or_else(std::io::Error::last_os_error)
}

/// Takes a descriptor over from another process.
fn taken_from(pid: i32, number: i32) -> std::io::Result<OwnedFd> {
    let own = |answer: i64| match answer {
        -1 => Err(std::io::Error::last_os_error()),
        // SAFETY: the kernel just gave this descriptor to us, and nobody else knows it.
        #[expect(unsafe_code, reason = "a descriptor from a system call")]
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
    };
    // SAFETY: plain system calls on numbers.
    #[expect(unsafe_code, reason = "std has no pidfd_open")]
    let process = own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: as above.
    #[expect(unsafe_code, reason = "std has no pidfd_getfd")]
    own(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

impl Hush {
    pub(super) fn new(leaves_out: &'static [What], hears: Hears) -> Self {
        Self {
            leaves_out,
            hears,
            events: Arc::default(),
            left_out: Arc::default(),
        }
    }

    /// Gives what was heard since it was asked last.
    pub(super) fn heard(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// Gives how many syncs were left out.
    pub(super) fn left_out(&self) -> u64 {
        *self.left_out.lock().unwrap()
    }

    /// Lets a command be asked about, once it starts, and whatever it starts.
    pub(super) fn hear(&self, command: &mut Command) {
        let (mut told, tell) = std::io::pipe().unwrap();
        let (wait, mut go) = std::io::pipe().unwrap();
        let calls = match self.hears {
            Hears::Syncs => SYNCS.to_vec(),
            Hears::Everything => [SYNCS, CHANGES].concat(),
        };
        let mut filter = filter(&calls);
        let hush = self.clone();
        std::thread::spawn(move || {
            let mut words = [0; 8];
            if told.read_exact(&mut words).is_err() {
                return;
            }
            let word = |at: usize| i32::from_ne_bytes(words[at..at + 4].try_into().expect("four bytes"));
            let asks = taken_from(word(0), word(4)).expect("the descriptor of the filter");
            go.write_all(b"g").unwrap();
            hush.answer(&asks);
        });
        let begin = move || {
            let number = ask_from_now_on(&mut filter)?;
            let pid = i32::try_from(std::process::id()).unwrap_or_default();
            let words = [pid.to_ne_bytes(), number.to_ne_bytes()].concat();
            (&tell).write_all(&words)?;
            (&wait).read_exact(&mut [0])
        };
        // SAFETY: between fork and exec it makes system calls, and allocates eight bytes, in a process whose
        // allocator is the C library's, which can do so after a fork.
        #[expect(unsafe_code, reason = "a filter is set by the process itself")]
        unsafe {
            command.pre_exec(begin);
        }
    }

    /// Answers until nobody is left who could ask.
    fn answer(&self, asks: &OwnedFd) {
        loop {
            let mut poll = libc::pollfd {
                fd: asks.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one entry, which outlives the call.
            #[expect(unsafe_code, reason = "std has no poll")]
            unsafe {
                libc::poll(&raw mut poll, 1, -1);
            }
            if poll.revents & libc::POLLIN == 0 {
                return;
            }
            self.answer_one(asks);
        }
    }

    fn answer_one(&self, asks: &OwnedFd) {
        // SAFETY: all of these are numbers, of which zero is one.
        #[expect(unsafe_code, reason = "the kernel wants it zeroed")]
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the request fills the structure, which outlives the call.
        #[expect(unsafe_code, reason = "std has no ioctl")]
        let got = unsafe { libc::ioctl(asks.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) };
        // Whoever asked may have been killed meanwhile.
        if got != 0 {
            return;
        }
        let left_out = self.keep(&asked);
        let answer = libc::seccomp_notif_resp {
            id: asked.id,
            val: 0,
            error: 0,
            flags: match left_out {
                true => 0,
                false => libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
            },
        };
        // SAFETY: the request reads the structure, which outlives the call.
        #[expect(unsafe_code, reason = "std has no ioctl")]
        unsafe {
            libc::ioctl(
                asks.as_raw_fd(),
                libc::SECCOMP_IOCTL_NOTIF_SEND,
                &raw const answer,
            );
        }
    }
    /// Keeps what is about to be done; says whether it is left out.
    fn keep(&self, asked: &libc::seccomp_notif) -> bool {
        let call = libc::c_long::from(asked.data.nr);
        let number = |at: usize| asked.data.args[at].to_string();
        let thing = |fd: &str| {
            let way = PathBuf::from(format!("/proc/{}/fd/{fd}", asked.pid));
            let (place, facts) = (way.read_link().ok()?, way.metadata().ok()?);
            Some((What::of(&place), (facts.dev(), facts.ino())))
        };
        if SYNCS.contains(&call) {
            let Some((what, thing)) = thing(&number(0)) else {
                return false;
            };
            let left_out = self.leaves_out.contains(&what);
            *self.left_out.lock().unwrap() += u64::from(left_out);
            if !left_out {
                self.events.lock().unwrap().push(Event::Syncs(what, thing));
            }
            return left_out;
        }
        let changed = match call {
            libc::SYS_renameat | libc::SYS_renameat2 => vec![thing(&number(0)), thing(&number(2))],
            libc::SYS_linkat => vec![thing(&number(2))],
            libc::SYS_fchmodat => vec![named(asked).and_then(|fd| thing(&fd))],
            _ => vec![thing(&number(0))],
        };
        let changed = changed.into_iter().flatten().collect();
        self.events.lock().unwrap().push(Event::Changes(changed));
        false
    }
}

/// Gives the descriptor that a path of the form `/proc/self/fd/N` in the memory of whoever asks names.
fn named(asked: &libc::seccomp_notif) -> Option<String> {
    use std::os::unix::fs::FileExt as _;
    let memory = std::fs::File::open(format!("/proc/{}/mem", asked.pid)).ok()?;
    let mut bytes = [0; 64];
    let got = memory.read_at(&mut bytes, asked.data.args[1]).ok()?;
    let text = bytes[..got].split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).ok()?;
    Some(text.strip_prefix("/proc/self/fd/")?.to_owned())
}
