//! Leaves out syncs of one kind: the kernel asks here before each, and hears "done" where nothing was.
//!
//! The product makes system calls of its own, which no library in front of it sees; a seccomp filter does.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
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

/// How many syncs there were of each kind.
pub(super) type Counts = BTreeMap<What, u64>;

/// What is left out, and how many syncs there were.
#[derive(Clone)]
pub(super) struct Hush {
    leaves_out: &'static [What],
    counts: Arc<Mutex<Counts>>,
}

const fn statement(code: u32, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Asks about `fsync` and `fdatasync`, and lets everything else pass.
fn filter() -> [libc::sock_filter; 5] {
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, (0, 0)),
        statement(equal, libc::SYS_fsync as u32, (2, 0)),
        statement(equal, libc::SYS_fdatasync as u32, (1, 0)),
        statement(answer, libc::SECCOMP_RET_ALLOW, (0, 0)),
        statement(answer, libc::SECCOMP_RET_USER_NOTIF, (0, 0)),
    ]
}

/// Makes the calling process one whose syncs are asked about; gives the number of the descriptor that asks.
fn ask_from_now_on() -> std::io::Result<i32> {
    let mut filter = filter();
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
    pub(super) fn new(leaves_out: &'static [What]) -> Self {
        Self {
            leaves_out,
            counts: Arc::default(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts.lock().unwrap().clone()
    }

    /// Lets a command be asked about, once it starts, and whatever it starts.
    pub(super) fn hear(&self, command: &mut Command) {
        let (mut told, tell) = std::io::pipe().unwrap();
        let (wait, mut go) = std::io::pipe().unwrap();
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
            let number = ask_from_now_on()?;
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
        let got =
            unsafe { libc::ioctl(asks.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) };
        // Whoever asked may have been killed meanwhile.
        if got != 0 {
            return;
        }
        let fd = format!("/proc/{}/fd/{}", asked.pid, asked.data.args[0]);
        let what = std::fs::read_link(fd).map(|place| What::of(&place));
        if let Ok(what) = what {
            *self.counts.lock().unwrap().entry(what).or_default() += 1;
        }
        let left_out = what.is_ok_and(|what| self.leaves_out.contains(&what));
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
            libc::ioctl(asks.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer);
        }
    }
}
