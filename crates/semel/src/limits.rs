//! Every bound in one table; `docs/limits.md` is made from it.

use std::time::Duration;

/// Is one bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its value, with its unit.
    pub(crate) value: &'static str,
    /// What happens beyond it.
    pub(crate) beyond: &'static str,
}

macro_rules! limits {
    ($($name:ident: $ty:ty = $value:expr, $shown:literal, $beyond:literal;)*) => {
        $(
            #[doc = $beyond]
            pub(crate) const $name: $ty = $value;
        )*
        /// Lists every bound, in the order of the table.
        pub(crate) const ALL: &[Limit] = &[
            $(Limit { name: stringify!($name), value: $shown, beyond: $beyond }),*
        ];
    };
}

limits! {
    BODY: usize = 8 << 20, "8 MiB", "a request body: `too_large`";
    MESSAGE: usize = 9 << 20, "9 MiB", "a message at `/mcp`: `too_large`";
    RESULT: usize = 9 << 20, "9 MiB", "a result at `/mcp`, its text and its structure together: of a read, `too_large`; of a change, what is long is left out, and said so";
    EVENT: usize = 960 << 10, "960 KiB", "such a result in a stream: as there";
    TASK_AFTER: Duration = Duration::from_secs(2), "2 s", "a command at `/mcp` that runs longer is answered as a task, to a client that takes one";
    BRIDGE_LINE: usize = 64 << 20, "64 MiB", "a line at `semel mcp`; one beyond `MESSAGE` is `too_large`, one beyond this has an answer without an id";
    BRIDGE_REQUESTS: usize = 256, "256 requests", "at once at `semel mcp`, until their answers are written: the next one is not read";
    BRIDGE_FORWARDED: usize = 64, "64 requests", "at once from `semel mcp` to the gateway: the next one waits";
    BRIDGE_OPEN: usize = 4_096, "4,096 calls", "whose answers nobody is known to have, remembered by one `semel mcp`: the oldest is forgotten";
    BRIDGE_SPOOL: u64 = 4 << 20, "4 MiB", "a spool that is longer is written anew, with what is open";
    BRIDGE_KEPT: Duration = Duration::from_secs(30 * 86_400), "30 days", "a spool whose `semel mcp` ended so long ago is removed by the next one";
    BRIDGE_SPOOLS: usize = 256, "256 spools", "of ended `semel mcp` that are kept: the oldest goes";
    BRIDGE_PATIENCE: Duration = Duration::from_secs(600), "10 min", "a call at `semel mcp` whose gateway gives no answer at all for so long: `daemon_unreachable`; the same call has the same key";
    BRIDGE_CROWD: Duration = Duration::from_secs(30), "30 s", "a call at `semel mcp` that the gateway has no room for waits so long: `too_many`";
    BRIDGE_BACKOFF: Duration = Duration::from_millis(250), "250 ms", "the longest pause of `semel mcp` before it tries again";
    BRIDGE_LEAVES: Duration = Duration::from_millis(1500), "1.5 s", "`semel mcp` that is told to end waits so long for calls under way; then they stay spooled";
    UPSTREAM_LINE: usize = 32 << 20, "32 MiB", "a message of another server behind the gateway: its connection ends, and what was under way is `outcome_unknown`";
    UPSTREAM_RESULT: usize = 4 << 20, "4 MiB", "an answer of another server: of a change, that there was one is recorded and told, and it is left out; of a read, `too_large`";
    UPSTREAM_START: Duration = Duration::from_secs(30), "30 s", "another server that does not start, or list its tools, within that time: `io_failed`, reason `upstream_unavailable`";
    UPSTREAM_FIRST: Duration = Duration::from_secs(20), "20 s", "`tools/list` waits so long for another server that has listed none yet, as one that is fetched when it first starts; then it is left out";
    UPSTREAM_LISTS: Duration = Duration::from_secs(5), "5 s", "`tools/list` waits so long for another server, then it has what that one listed last";
    UPSTREAM_STEADY: Duration = Duration::from_secs(10), "10 s", "another server that ended sooner twice in a row is started again only after a pause, which doubles";
    UPSTREAM_BACKOFF: Duration = Duration::from_secs(30), "30 s", "the longest such pause";
    READ: u64 = 8 << 20, "8 MiB", "of a file in one answer: the whole is `too_large`; a part ends there, with `truncated`";
    DIGEST: u64 = semel_host::files::DIGEST_CAP, "64 MiB", "a larger file is not digested unless `digest` asks for it: `sha256` is null";
    DIGEST_ASKED: u64 = semel_host::files::DIGEST_MOST, "4 GiB", "a larger file is not digested at all; what is expected of it, by `expected_sha256`, is `too_large`";
    SCANNED: u64 = 4 << 30, "4 GiB", "lines that lie behind that much of a file: `too_large`; `byte_offset` reaches them";
    TAIL: u64 = 1_000_000, "1,000,000 lines", "asked for from the end of a file: `bad_input`";
    LISTED: usize = 10_000, "10,000 entries", "listed or found in one answer: it is `truncated`, and `after` goes on";
    FOUND: usize = 1_000, "1,000 entries", "found by `search_files` unless `max_results` asks for more";
    DIRECTORY: usize = 200_000, "200,000 entries", "of one directory: listed, `too_large`; met by a search, passed by and counted";
    VISITED: usize = 200_000, "200,000 entries", "looked at by one search or listing: it is `truncated`";
    MATCHES: usize = 1_000, "1,000 lines", "found by `grep` in one answer, 200 unless `max_results` asks for more: it is `truncated`";
    MATCHES_UNASKED: usize = 200, "200 lines", "found by `grep` unless `max_results` asks for more";
    ANSWER: usize = 4 << 20, "4 MiB", "of paths and lines in the answer to a search: it is `truncated`";
    CONTEXT: u64 = 20, "20 lines", "asked for before and behind each: `bad_input`";
    LINE_SHOWN: usize = 1_000, "1,000 bytes", "of a line that `grep` tells: it has `cut`";
    LINE_SEARCHED: usize = 256 << 10, "256 KiB", "a longer line is not searched, and counted";
    PART_NAME: usize = 60, "60 characters", "of the name that a narrower token is asked for with: `bad_input`";
    PATTERNS: usize = 64, "64 patterns", "in one argument: `bad_input`";
    SEARCH: Duration = Duration::from_secs(10), "10 s", "a search ends then, `truncated`";
    SEARCHES: usize = 4, "4 searches", "at once in the daemon: the next one waits";
    HEARD: Duration = Duration::from_secs(2), "2 s", "a command that reads the log waits so long for a daemon that runs to record what it heard, and one that tells it of counts until they are heard";
    IN_FLIGHT_WAIT: Duration = Duration::from_secs(10), "10 s", "a duplicate waits so long for the first one's receipt, then `call_in_flight`";
    IN_FLIGHT_WAIT_MOST: Duration = Duration::from_secs(60), "60 s", "the longest wait that `Prefer: wait=N` can ask for";
    DUPLICATE_ADVISORY: Duration = Duration::from_secs(600), "10 min", "the very same call under a new key within that time runs, and its answer has `possible_duplicate_of`";
    DUPLICATES_KNOWN: usize = 10_000, "10,000 calls", "that many calls are remembered for `possible_duplicate_of`";
    REEDITS: usize = 8, "8 times", "an edit whose file another process keeps saving is made anew so often, then `precondition_failed`, reason `changed_meanwhile`";
    APPROVAL_WAIT: Duration = Duration::from_secs(86_400), "24 h", "a call waits so long for a person, unless its rule says otherwise: `approval_expired`";
    APPROVAL_LASTS: Duration = Duration::from_secs(3600), "1 h", "a decision is good for so long, unless its rule says otherwise: `approval_expired`";
    APPROVALS_PENDING: u32 = 100, "100 calls", "calls of one generation that wait for a person: `too_many`, reason `approvals_pending`";
    POLICY: u64 = 1 << 20, "1 MiB", "the file of a policy: `bad_config`";
    POLICY_LOOKS: usize = 100_000, "100,000 entries", "a directory that is removed or moved is looked through so far; beyond it, the strictest rule that could match decides";
    IN_FLIGHT: usize = 128, "128 calls", "calls at once in the daemon: `too_many` with Retry-After";
    HANDS: usize = 64, "64 threads", "calls at once that work on files and sync them, or start a command; those that wait for the journal hold none, and the next one waits";
    QUICK_HANDS: usize = 8, "8 threads", "calls at once that work on files and sync none, in durability `process`; as `HANDS`";
    IN_FLIGHT_PER_TOKEN: usize = 96, "96 calls", "calls at once under one token, those that wait included: `too_many`, reason `token_share`, with Retry-After";
    CONNECTIONS: usize = 512, "512 connections", "connections at once on the app listener, or half as many as the process may open files: the next one waits to be accepted";
    OPERATOR_CONNECTIONS: usize = 64, "64 connections", "connections at once on the operator's socket, beside those of the app listener: the next one waits to be accepted";
    HEADER_TIMEOUT: Duration = Duration::from_secs(10), "10 s", "a client that does not finish its request head is disconnected";
    BODY_TIMEOUT: Duration = Duration::from_secs(30), "30 s", "a client that does not finish its request body: `bad_input`, reason `body_timeout`";
    HOLD_LEFT: Duration = Duration::from_secs(10), "10 s", "a job whose process was killed: a child that it was just starting is waited for so long, then `volume_busy`";
    DRAIN: Duration = Duration::from_secs(25), "25 s", "calls under way at shutdown get so long; then the process ends and recovery settles them";
    HEARTBEAT: Duration = Duration::from_secs(1), "1 s", "between two heartbeats of the daemon";
    HEARTBEAT_STALE: Duration = Duration::from_secs(5), "5 s", "a heartbeat older than that is no sign of life: `/livez` and `/readyz` answer 503";
    WRITER_STUCK: Duration = Duration::from_secs(30), "30 s", "a journal's writer that works longer at one commit: `/livez` and `/readyz` answer 503";
    VOLUMES_FREE: u64 = 32 << 20, "32 MiB", "free space where the volumes lie; below it nothing new begins: `io_failed`, reason `disk_full`";
    VOLUMES_FREE_FILES: u64 = 64, "64 files", "free inodes where the volumes lie; below it nothing new begins: `io_failed`, reason `disk_full`";
    REAP_LOOK: Duration = Duration::from_secs(5), "5 s", "the daemon looks so often for volumes that were put aside, and frees them";
    MEMORY_VOLUME: u64 = 1 << 30, "1 GiB", "a volume in memory (`tmpfs`) without a quota of its own: what does not fit is `quota_exceeded`";
    QUOTA_LOOK: Duration = Duration::from_secs(5), "5 s", "a volume that has a quota (`[quota]`) is looked at so often, or less where that takes long: over it, it ends dirty, reason `quota_exceeded`";
    PROBE_CONNECTIONS: usize = 32, "32 connections", "connections at once on the probe listener: the next one waits to be accepted";
    CHECKPOINT_ENTRIES: u64 = 10_000, "10,000 entries", "so many entries behind the last checkpoint of the log: the daemon signs another";
    CHECKPOINT_EVERY: Duration = Duration::from_secs(300), "5 min", "an entry that no checkpoint covers after so long: the daemon signs another";
    CHECKPOINTS_KEPT: usize = 1_000, "1,000 checkpoints", "kept in the state root: the oldest goes; the newest covers what it covered";
    UNAUTHORIZED_NOTES: u64 = 6, "6 notes", "of requests without a valid token in any minute: the rest is counted, and the count noted once a minute";
    FOLLOW_EVERY: Duration = Duration::from_millis(250), "250 ms", "between two looks of `semel log --follow`";
    FOLLOW_AT_ONCE: u64 = 1_000, "1,000 entries", "read in one look of `semel log --follow`, so that no read holds the journal up";
    TRANSIENT_IDLE: Duration = Duration::from_secs(10), "10 s", "a transient daemon without work and without an open volume ends";
    JOURNAL_ANSWER: Duration = Duration::from_secs(30), "30 s", "a command waits so long until the daemon has recorded something: `daemon_unreachable`";
    DAEMON_START: Duration = Duration::from_secs(20), "20 s", "a command waits so long for a daemon: `daemon_unreachable`";
    LOCK_WAIT: Duration = Duration::from_secs(60), "60 s", "a restoration waits so long for index.lock: `lock_timeout`";
    RETRY_WAIT: Duration = Duration::from_secs(60), "60 s", "`semel retry` waits so long for a lock to go before another try; then the failure stands";
    RETRY_TRIES: u32 = 3, "3 tries", "of a command by `semel retry` unless `--tries` asks for others";
    RETRY_TRIES_MOST: u32 = 100, "100 tries", "the most that `--tries` can ask for: `usage`";
    LOCK_STALE: Duration = Duration::from_secs(10), "10 s", "a lock of another program must be seen unchanged so long before its owner is looked for; with complete evidence that there is none it is adopted (`--stale-grace`)";
    LOCK_WAITS: usize = 1_000, "1,000 waits", "for a lock that the daemon shows at once: `too_many`, and the wait goes on";
    LOCK_WAIT_SILENT: Duration = Duration::from_secs(5), "5 s", "a wait for a lock of which nothing was heard for so long is not shown any more";
    GRACE: Duration = Duration::from_secs(5), "5 s", "between SIGTERM and SIGKILL of a process tree";
    AGENT_TIMEOUT: Duration = Duration::from_secs(1800), "30 min", "an agent command without `timeout` in its job: `timed_out`";
    CERTIFY_TIMEOUT: Duration = Duration::from_secs(900), "15 min", "each of fetch, install and test without `timeout` in its job: `timed_out`";
    COMMAND_TIMEOUT: Duration = Duration::from_secs(600), "10 min", "a command of `run_command` without `timeout_ms`: it is ended, and its answer says `timed_out`";
    COMMAND_TIMEOUT_MOST: Duration = Duration::from_secs(4 * 3600), "4 h", "the longest `timeout_ms` of a command: `bad_input`";
    COMMAND_LINE: usize = 96 << 10, "96 KiB", "a command with its variables: `too_large`";
    COMMANDS_PER_VOLUME: usize = 8, "8 commands", "commands at once in one volume: `too_many`, reason `commands_of_volume`, with Retry-After";
    COMMANDS: usize = 64, "64 commands", "commands at once in the daemon: `too_many`, reason `commands`, with Retry-After";
    COMMAND_HEAD: usize = 64 << 10, "64 KiB", "of the beginning of each output stream that an answer holds; the rest is left out and counted, and can be read from its execution";
    COMMAND_TAIL: usize = 64 << 10, "64 KiB", "of the end of each output stream that an answer holds, behind what was left out";
    OUTPUT_READ: usize = 256 << 10, "256 KiB", "of an output stream in one reading: `next_offset` says where it goes on";
    OUTPUT: u64 = 16 << 20, "16 MiB", "of each output stream of a stage or command that is kept; the rest is dropped and said so";
    PROPOSAL_ENTRIES: usize = 200_000, "200,000 entries", "a proposal: `proposal_refused`";
    PROPOSAL_BYTES: u64 = 4 << 30, "4 GiB", "a proposal: `proposal_refused`";
    QUARANTINE_AGE: Duration = Duration::from_secs(14 * 86_400), "14 days", "a quarantined volume older than that is freed by `semel gc`, and so is what calls older than that removed or replaced in open volumes: `undo_expired`";
    RECEIPTS_AGE: Duration = Duration::from_secs(90 * 86_400), "90 days", "receipts of a destroyed volume that ended longer ago expire by `semel gc`: `key_expired`";
}
