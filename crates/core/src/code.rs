//! The error table: the one place where a refusal is defined.
//!
//! Every face of an error (CLI exit, HTTP problem, tool result, page in `docs/errors/`) is made from this
//! table. It does *not* know HTTP types, terminals or JSON; it is plain data.

use serde::{Deserialize, Serialize};

/// Says whether, and how, a refused call may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The same call will be refused again.
    Never,
    /// The work may be tried again, in a new generation.
    NewGeneration,
    /// A person has to settle it first.
    Operator,
    /// The same call with the same key.
    SameKey,
    /// Later, unchanged.
    Later,
    /// Later, unchanged, with the same key.
    LaterSameKey,
    /// A new call with a new key, after looking again.
    NewCall,
}

macro_rules! table {
    ($($variant:ident = $wire:literal, $exit:literal, $http:literal, $retry:ident, $meaning:literal, $next:literal;)*) => {
        /// Names a refusal.
        ///
        /// # Shape
        /// On the wire its [`wire`](Code::wire) name, such as `replay_conflict`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Code {
            $(
                #[doc = $meaning]
                #[serde(rename = $wire)]
                $variant,
            )*
        }

        impl Code {
            /// Lists every refusal, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$variant),*];

            /// Gives the name that travels on every wire.
            #[must_use]
            pub const fn wire(self) -> &'static str {
                match self { $(Code::$variant => $wire,)* }
            }

            /// Gives the exit status of a command that ends with this refusal.
            #[must_use]
            pub const fn exit(self) -> u8 {
                match self { $(Code::$variant => $exit,)* }
            }

            /// Gives the HTTP status of an answer that carries this refusal.
            #[must_use]
            pub const fn http(self) -> u16 {
                match self { $(Code::$variant => $http,)* }
            }

            /// Gives the number of an error of JSON-RPC that carries this refusal: HTTP status and exit status in one,
            /// such as 40912, outside of what JSON-RPC and the Model Context Protocol reserve.
            #[must_use]
            pub const fn rpc(self) -> i32 {
                self.http() as i32 * 100 + self.exit() as i32
            }

            /// Says whether the refused call may be sent again.
            #[must_use]
            pub const fn retry(self) -> Retry {
                match self { $(Code::$variant => Retry::$retry,)* }
            }

            /// Says in one clause what the refusal means.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Code::$variant => $meaning,)* }
            }

            /// Says in one clause what to do next.
            #[must_use]
            pub const fn next(self) -> &'static str {
                match self { $(Code::$variant => $next,)* }
            }

            /// Gives the page of `docs/errors/`; a missing page breaks the build.
            #[must_use]
            pub const fn page(self) -> &'static str {
                match self {
                    $(Code::$variant => include_str!(concat!("../../../docs/errors/", $wire, ".md")),)*
                }
            }

            /// Finds the refusal of a wire name.
            #[must_use]
            pub fn from_wire(name: &str) -> Option<Code> {
                match name { $($wire => Some(Code::$variant),)* _ => None }
            }
        }
    };
}

table! {
    MissingIdentity = "missing_identity", 2, 400, Never, "no generation or no attempt was given", "give both: a generation and an attempt; an empty value counts as none";
    DirtyVolume = "dirty_volume", 3, 423, NewGeneration, "an attempt on this volume did not end cleanly", "open a new generation; this one is kept for salvage and is never cleaned in place";
    NoLockfile = "no_lockfile", 4, 422, Never, "nothing binds the tree: it holds no lockfile", "add a lockfile of a supported format; contract and record also take one with --lock";
    GenerationReused = "generation_reused", 5, 409, NewGeneration, "this generation already belongs to another attempt", "start the new attempt on a new generation";
    LockfileDrift = "lockfile_drift", 6, 409, NewGeneration, "a lockfile changed, appeared or vanished inside one generation", "open a new generation and install from the new lock";
    UnknownState = "unknown_state", 7, 409, Operator, "state that must be there is missing, unreadable or of another shape", "look at the named file; do not repair it by hand, start a new generation";
    MissingIdempotencyKey = "missing_idempotency_key", 10, 400, Never, "a mutating call came without an idempotency key", "send the header Idempotency-Key, one new value for each intended effect";
    InvalidIdempotencyKey = "invalid_idempotency_key", 10, 400, Never, "the idempotency key is not 1 to 255 visible ASCII characters", "send a quoted string or a bare token of 1 to 255 visible ASCII characters";
    IdempotencyKeyMismatch = "idempotency_key_mismatch", 10, 400, Never, "two carriers of the idempotency key disagree", "send one key, or the same one in every carrier";
    EmptyBodyNotReplayable = "empty_body_not_replayable", 11, 400, Never, "the body holds no arguments, and an empty body never means 'the last call'", "send the whole call again: the same key and the same arguments";
    ReplayConflict = "replay_conflict", 12, 409, Never, "the key or the token belongs to another call", "use a new key for a new call; a call of an ended generation is over";
    CallInFlight = "call_in_flight", 13, 409, SameKey, "the first call with this key is still running", "wait Retry-After seconds and send the same call with the same key";
    PathEscapesRoot = "path_escapes_root", 14, 403, Never, "the path leads out of the root, or to a protected target", "name a path inside the root";
    PreconditionFailed = "precondition_failed", 15, 412, NewCall, "a stated or implied precondition does not hold", "read the current state and decide anew; a call needs a new key";
    OutcomeUnknown = "outcome_unknown", 16, 409, Operator, "an effect may or may not have happened", "look at what is named, then settle it with semel resolve; the call is never run again by itself";
    NotFound = "not_found", 17, 404, Never, "the named thing does not exist", "check the name";
    MethodNotAllowed = "method_not_allowed", 17, 405, Never, "the route exists, but not for this method", "use the method that Allow names";
    Denied = "denied", 18, 403, Never, "the policy denies this call", "ask the operator, or do it another way";
    ApprovalRequired = "approval_required", 18, 202, SameKey, "a person has to decide first", "wait for the decision, then send the same call with the same key";
    ApprovalExpired = "approval_expired", 18, 403, NewCall, "nobody decided, or used the approval, in time", "send a new call with a new key";
    KeyExpired = "key_expired", 19, 410, Operator, "the key is known to have been used; its receipt body is past retention", "do not run it again; look at the journal for what came of it";
    UndoExpired = "undo_expired", 19, 410, Operator, "what the call removed is past retention", "restore it from a proposal or from the repository";
    LockIncomplete = "lock_incomplete", 20, 422, Never, "a lockfile does not parse, is cut, lacks hashes, or does not close over its declared inputs", "lock again with the ecosystem's own tool and propose the whole file";
    TreeNotEmpty = "tree_not_empty", 21, 422, Never, "a leftover environment came with the input", "remove the named environment; an install starts from an empty tree";
    InstallFailed = "install_failed", 22, 422, NewGeneration, "the installer failed", "read its output; a retry starts in a new generation";
    TestsFailed = "tests_failed", 23, 422, NewGeneration, "the tests failed", "read the report; a retry starts in a new generation";
    TimedOut = "timed_out", 24, 422, NewGeneration, "the deadline passed; the whole process tree was ended", "raise the timeout or make the stage faster; a retry starts in a new generation";
    RecordMismatch = "record_mismatch", 25, 409, NewGeneration, "installed bytes, set, scaffold or modes differ from what the locks say", "start a new generation; the named file was changed after, or is not of, the install";
    RecordOutsideRoot = "record_outside_root", 26, 409, Never, "an editable install, .pth, shebang, symlink or import path leads out of this generation", "remove the named link; everything installed lies inside its generation";
    EvidenceForeign = "evidence_foreign", 27, 409, Never, "the evidence is of another generation, from a cache, or no test ran", "run the tests in this generation so that they write a fresh report";
    TreeMismatch = "tree_mismatch", 28, 409, Never, "the tree differs from the sealed or certified one", "certify the tree that is to be merged; a worktree is restored again";
    ProposalRefused = "proposal_refused", 29, 422, Never, "the archive is hostile or ambiguous, or exceeds a limit", "seal the proposal with semel seal";
    GateRefused = "gate_refused", 30, 422, Never, "the certificate does not cover exactly the tree to be merged", "read every failed check; certify the candidate again";
    SandboxUnavailable = "sandbox_unavailable", 31, 409, Operator, "the confinement that was asked for cannot be had here", "run semel doctor; it names what is missing";
    DurabilityUnavailable = "durability_unavailable", 31, 409, Operator, "this filesystem cannot keep what durability power promises", "use a journaled filesystem, or ask for process or power-best-effort";
    VolumeBusy = "volume_busy", 32, 409, Later, "the volume is open elsewhere", "wait for its owner to end it, or end it with semel volume end";
    DrillFailed = "drill_failed", 33, 422, Operator, "a guard did not hold, or was not shown to hold", "read the account; do not rely on what was tried until it is understood";
    LockTimeout = "lock_timeout", 40, 503, Later, "the bounded wait for index.lock ran out; nothing was changed", "see who holds the lock, then try again";
    LockUnsafe = "lock_unsafe", 41, 409, Never, "index.lock is not a plain file of ours, or cannot be created", "look at the named path; it is never removed for you";
    LockLost = "lock_lost", 42, 409, NewGeneration, "our lock was taken from us; the index is untouched", "find what removed index.lock; restore in a new generation";
    OtherLock = "other_lock", 43, 409, Later, "another lock of git is in the way", "see who holds the named lock; it is never removed for you";
    ObjectMissing = "object_missing", 44, 409, Never, "the tree cannot be read in full; nothing was written", "fetch the missing object";
    WorktreeRedirected = "worktree_redirected", 45, 409, Never, ".git, gitdir or worktree is not the pinned one", "look at what changed the worktree's identity";
    GitFailed = "git_failed", 46, 409, Never, "git failed for a reason of its own", "read git's own words above, where it had any";
    OwnershipTaken = "ownership_taken", 47, 409, Never, "something already owns the work", "do not run it again; follow the owner";
    StreamUnsafe = "stream_unsafe", 48, 409, Never, "the event stream is missing, a link, or was replaced", "give the path of the stream that the inner run writes";
    RestoreIncomplete = "restore_incomplete", 49, 409, Later, "a restoration broke off after it began; files may have been written or removed", "mend the cause, then restore again before the worktree is used";
    Usage = "usage", 64, 400, Never, "the command or its arguments are wrong", "see --help";
    BadInput = "bad_input", 65, 400, Never, "the input is malformed", "mend the named part of the input";
    BadConfig = "bad_config", 78, 400, Never, "the configuration is malformed, or comes from where it may not come", "mend the named setting";
    DaemonUnreachable = "daemon_unreachable", 69, 503, LaterSameKey, "no daemon answers, and none could be started", "see semel status, then send the same call with the same key";
    StoreUnavailable = "store_unavailable", 75, 503, LaterSameKey, "the journal cannot be read or written", "run semel check; then send the same call with the same key";
    Draining = "draining", 75, 503, LaterSameKey, "the daemon is shutting down", "send the same call with the same key to its successor";
    IoFailed = "io_failed", 74, 500, SameKey, "an operation of the system failed; it is proven not to have begun", "mend the cause, then send the same call with the same key";
    Unauthorized = "unauthorized", 77, 401, Never, "no token, an unknown token, or one without this authority", "use the token of this job; administration needs the operator's";
    TooLarge = "too_large", 79, 413, Never, "a part of the request exceeds its bound", "send less; see docs/limits.md";
    QuotaExceeded = "quota_exceeded", 79, 413, Never, "the volume is over its quota", "remove what is not needed, or raise the quota";
    TooMany = "too_many", 79, 429, Later, "too many calls at once", "wait Retry-After seconds";
    Internal = "internal", 70, 500, SameKey, "a bug in Semel", "please report it with the text above";
}

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.wire())
    }
}

/// Carries a named refusal with the facts of this one case.
///
/// # Shape
/// `{"code":"replay_conflict","reason":"body_mismatch","why":"…","names":["uv.lock"]}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// What was refused.
    pub code: Code,
    /// A finer, stable name inside the code, such as `stale_generation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is the case here: one clause, lower case, without a full stop.
    pub why: String,
    /// The files, variables, packages or ids that it is about.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(code: Code, why: impl Into<String>) -> Self {
        Self {
            code,
            reason: None,
            why: why.into(),
            names: Vec::new(),
        }
    }

    /// Adds the finer reason.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Adds one thing that the refusal is about.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Adds all things that the refusal is about.
    #[must_use]
    pub fn names<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }
}

/// Refuses a TOML text in one line, naming the line of the text.
#[must_use]
pub fn toml_refusal(code: Code, what: &str, text: &str, error: &toml::de::Error) -> Refusal {
    let message = crate::path::shown(error.message().as_bytes());
    let refusal = Refusal::new(code, format!("{what}: {message}"));
    match error.span().and_then(|span| text.get(..span.start)) {
        Some(before) => refusal.name(format!("line {}", before.matches('\n').count() + 1)),
        None => refusal,
    }
}

/// What to do next where the reason tells more than the code: what helps a command is another thing than what helps a call.
const NEXT: &[(Code, &[&str], &str)] = &[
    (
        Code::PreconditionFailed,
        &["exists"],
        "name a place where nothing is yet",
    ),
    (
        Code::PreconditionFailed,
        &["not_ours"],
        "remove it with git worktree remove, or take only its pin with --pin-only",
    ),
    (
        Code::PreconditionFailed,
        &[
            "dirty_worktree",
            "unreachable_commits",
            "operation_in_progress",
            "submodules",
        ],
        "keep the named work elsewhere, or say --discard to remove it, too",
    ),
    (
        Code::PreconditionFailed,
        &["locked"],
        "unlock it with git worktree unlock, or say --locked",
    ),
    (
        Code::LockUnsafe,
        &["denied"],
        "see that the git directory can be written, then ask again",
    ),
    (
        Code::PreconditionFailed,
        &["nested_repository"],
        "move the named repository away, or say --remove-nested to remove it",
    ),
    (
        Code::PreconditionFailed,
        &["mount"],
        "unmount what is mounted there",
    ),
    (
        Code::PreconditionFailed,
        &["gitdir_inside"],
        "move the repository out of what would be removed or written over",
    ),
    (
        Code::PreconditionFailed,
        &["kept", "residue_kept"],
        "take the named entries away, then ask again",
    ),
    (
        Code::PreconditionFailed,
        &["content_attribute"],
        "check the tree out with git itself: it needs a program, and none is run for it",
    ),
    (
        Code::PreconditionFailed,
        &["untracked_attributes"],
        "remove the named file, say --clean, or use git 2.43 or later",
    ),
    (
        Code::PreconditionFailed,
        &["sparse_checkout"],
        "say --verify tree, or leave the sparse checkout",
    ),
    (
        Code::PreconditionFailed,
        &["branch_exists"],
        "name another branch, or remove it",
    ),
    (
        Code::TreeMismatch,
        &["sealed_tree"],
        "certify again: the damaged tree is set aside, and unpacked anew from its archive; find out who wrote in the state root",
    ),
    (
        Code::TreeMismatch,
        &["touched"],
        "find what changed what is named; an install command keeps what it makes in a directory of its own",
    ),
    (
        Code::TreeMismatch,
        &["residue"],
        "say --clean to remove the named entries, or take them away",
    ),
    (
        Code::TreeMismatch,
        &["other_worktree", "other_tree"],
        "prepare the tree anew, and record it with --record",
    ),
    (
        Code::TreeMismatch,
        &["foreign_record"],
        "give the job a worktree of its own, or take this one's identity anew with semel worktree pin --anew",
    ),
    (
        Code::WorktreeRedirected,
        &["not_pinned"],
        "pin it with semel worktree pin, while it is what you think it is",
    ),
    (
        Code::WorktreeRedirected,
        &["other_owner"],
        "run it as the owner of the repository",
    ),
    (
        Code::ReplayConflict,
        &["possible_duplicate"],
        "look at what came of it; to run the call again all the same, send it with an idempotency_key of your own",
    ),
    (
        Code::UnknownState,
        &["spool_damaged"],
        "see which calls the log has, then move the named spool away",
    ),
    (
        Code::DaemonUnreachable,
        &["target_unusable"],
        "see what it said, start it by hand, then check it again",
    ),
    (
        Code::StoreUnavailable,
        &["owned_elsewhere"],
        "use the daemon that runs, or end it by SIGTERM; one that a command started gives way to semel serve by itself",
    ),
    (
        Code::DirtyVolume,
        &["marked", "mark_removed", "marked_meanwhile"],
        "take an empty disk for the new generation, or have semel contract wipe make this one so",
    ),
    (
        Code::NotFound,
        &["nothing_begun"],
        "name another state root with --state, or begin with semel run or semel volume open",
    ),
    (
        Code::NotFound,
        &["no_executable"],
        "install it, or name the directory in which it lies in path of the configuration",
    ),
    (
        Code::VolumeBusy,
        &["living_owner"],
        "wait for its owner, or end the work of its job with semel cancel",
    ),
    (
        Code::VolumeBusy,
        &["being_opened"],
        "wait until it is open, or whoever opens it has given up",
    ),
    (
        Code::QuotaExceeded,
        &["processes", "memory", "file_size"],
        "have it need less, or raise the limit in [limits] of the operator's file, and of the job where that says less",
    ),
    (
        Code::QuotaExceeded,
        &["machine_memory"],
        "run less at once on this machine, or bound what each may hold by memory_bytes in [limits]",
    ),
    (
        Code::QuotaExceeded,
        &["disk_full"],
        "make room, by semel gc or by destroying volumes that are named, then do the same again",
    ),
    (
        Code::InstallFailed,
        &["artifact_digest"],
        "find out whether lock or index is wrong, then lock again; a retry fetches the same bytes",
    ),
    (
        Code::InstallFailed,
        &["no_wheel"],
        "lock versions that have a wheel for this machine",
    ),
    (
        Code::InstallFailed,
        &["nothing_installed"],
        "let the command install into the tree, or leave it out of the job",
    ),
    (
        Code::GateRefused,
        &["unbound_install"],
        "read what the command installed; then let the policy accept it, or install with a known installer",
    ),
    (
        Code::NotFound,
        &["test_program"],
        "see that the lock holds it, in a group or extra that install_args selects; or name the program by its path",
    ),
    (
        Code::IoFailed,
        &["disk_full"],
        "make room, by semel gc or by destroying volumes that are named, then do the same again; a call with the same key",
    ),
    (
        Code::PreconditionFailed,
        &["ended_otherwise"],
        "see with semel volume show how it ended; nothing is left to end",
    ),
    (
        Code::PreconditionFailed,
        &["key_exists"],
        "use the signing key that is there, or move its file away first",
    ),
    (
        Code::MissingIdentity,
        &["workspace"],
        "name the disk by an absolute path of 8 characters or more, as --workspace or WORKSPACE",
    ),
    (
        Code::UnknownState,
        &["journal_faulty", "checkpoint_mismatch"],
        "keep the journal as it is, and see with a backup or a checkpoint which entries can be trusted",
    ),
    (
        Code::BadConfig,
        &["no_signing_key"],
        "make a signing key with semel key new",
    ),
    (
        Code::BadConfig,
        &["no_trusted_keys"],
        "name the certifier's key in the policy, or trust it on this host with semel key trust",
    ),
    (
        Code::EvidenceForeign,
        &["no_test_ran"],
        "read what the test command printed; see that its arguments select tests",
    ),
    (
        Code::EvidenceForeign,
        &["too_few_tests"],
        "see what keeps tests from running, or demand fewer with min_tests",
    ),
    (
        Code::EvidenceForeign,
        &["not_fresh"],
        "take the named file out of the tree; the tests write it",
    ),
    (
        Code::EvidenceForeign,
        &["cached_result"],
        "have the runner run its tests, not tell of an earlier run",
    ),
    (
        Code::EvidenceForeign,
        &["other_generation"],
        "install in this generation, and write the record anew with semel record write",
    ),
    (
        Code::EvidenceForeign,
        &["environment"],
        "leave the named variable out of the job, or write it into the test command",
    ),
    (
        Code::EvidenceForeign,
        &["ancestor", "ancestor_home"],
        "name another state root with --state, or run where mount namespaces are allowed",
    ),
    (
        Code::EvidenceForeign,
        &["toolchain_writable"],
        "use a toolchain that no job can write",
    ),
    (
        Code::GateRefused,
        &["key_trusted", "key_revoked"],
        "decide whose key is right, and name it in the policy: in a base commit, never in the tree under test",
    ),
    (
        Code::GateRefused,
        &["recipe", "toolchain"],
        "decide which is right; certify as the policy says, or change the policy in a base commit",
    ),
    (
        Code::GateRefused,
        &["confinement"],
        "certify where the sandbox stands in full; semel doctor says what is missing",
    ),
    (
        Code::GateRefused,
        &["weak"],
        "bind what is named, or allow it by name (weak_allowed) in a base commit",
    ),
    (
        Code::GateRefused,
        &["attempts"],
        "look at the earlier attempts that the certificate lists; certifying once more adds one more",
    ),
    (
        Code::GateRefused,
        &["record_verdict"],
        "give with --record the install record of this very certificate, or none",
    ),
    (
        Code::GateRefused,
        &["test_surface"],
        "certify the base, then the candidate with --base, and give the gate the same --base",
    ),
    (
        Code::GateRefused,
        &["consumption"],
        "ask at the step that merges, with --consume --target; what was used for one merge is for no other",
    ),
];

/// The reason of whatever ended because it was told to.
const CANCELLED: &str = "cancelled";

impl Refusal {
    /// Says in one clause what the refusal means.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        match (self.code, self.reason.as_deref()) {
            (_, Some(CANCELLED)) => "it was told to end",
            (Code::MissingIdentity, Some("workspace")) => "the disk was not named so that it can be no other",
            (Code::QuotaExceeded, Some("processes" | "memory" | "file_size")) => {
                "what ran met one of its limits"
            }
            (Code::QuotaExceeded, Some("machine_memory")) => "the memory of the machine was nearly used up",
            (Code::QuotaExceeded, Some("disk_full")) => "the disk of the volumes is full",
            (code, _) => code.meaning(),
        }
    }

    /// Says in one clause what to do next: by the reason where that tells more, else by the code.
    #[must_use]
    pub fn next(&self) -> &'static str {
        if self.reason.as_deref() == Some(CANCELLED) {
            return "do it again when it may go on";
        }
        let by_reason = self.reason.as_deref().and_then(|reason| {
            let found =
                |(code, reasons, _): &&(Code, &[&str], _)| *code == self.code && reasons.contains(&reason);
            NEXT.iter().find(found)
        });
        by_reason.map_or(self.code.next(), |(_, _, next)| next)
    }
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.why)?;
        if !self.names.is_empty() {
            write!(f, ": {}", self.names.join(", "))?;
        }
        Ok(())
    }
}

impl core::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every face of every refusal is there, and the faces fit each other.
    #[test]
    fn every_code_has_every_face() {
        for code in Code::ALL {
            assert_eq!(Code::from_wire(code.wire()), Some(*code));
            assert!((2..=79).contains(&code.exit()), "{code}");
            assert!(code.http() == 202 || (400..=599).contains(&code.http()), "{code}");
            assert!(!code.meaning().is_empty() && !code.next().is_empty(), "{code}");
            assert_eq!(code.rpc(), i32::from(code.http()) * 100 + i32::from(code.exit()));
            let page = code.page();
            assert!(
                page.starts_with(&format!("# `{code}`\n")),
                "{code}: title of its page"
            );
            assert!(
                page.contains(&format!("Exit {}", code.exit())),
                "{code}: exit on its page"
            );
            assert!(
                page.contains(&format!("HTTP {}", code.http())),
                "{code}: status on its page"
            );
            let wire = serde_json::to_string(code).unwrap();
            assert_eq!(wire, format!("\"{code}\""));
        }
    }

    /// A page tells of each reason that has a word of its own.
    #[test]
    fn what_to_do_next_is_told_by_reason() {
        for (code, reasons, next) in NEXT {
            for reason in *reasons {
                let page = code.page();
                assert!(page.contains(&format!("`{reason}`")), "{code}: {reason}");
                let refusal = Refusal::new(*code, "x").reason(*reason);
                assert_eq!(refusal.next(), *next);
            }
            assert_eq!(Refusal::new(*code, "x").reason("none such").next(), code.next());
            assert_eq!(Refusal::new(*code, "x").next(), code.next());
        }
    }

    #[test]
    fn the_frozen_exits_of_the_contract() {
        let frozen = [
            (Code::MissingIdentity, 2),
            (Code::DirtyVolume, 3),
            (Code::NoLockfile, 4),
            (Code::GenerationReused, 5),
            (Code::LockfileDrift, 6),
            (Code::UnknownState, 7),
            (Code::Usage, 64),
        ];
        for (code, exit) in frozen {
            assert_eq!(code.exit(), exit);
        }
    }
}
