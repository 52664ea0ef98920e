//! Opening the database: is it one that we may write, and is its schema ours?
//!
//! Migrations are numbered, hashed and forward-only. A database that is newer, foreign, or whose migrations read
//! otherwise is refused; nothing is repaired here.

use super::{fault, int};
use crate::error::{Error, Result};
use crate::owner::OwnerLock;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _};
use semel_core::{Code, Refusal, Sha256};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

/// Is one step of the schema.
struct Migration {
    number: u32,
    name: &'static str,
    sql: &'static str,
}

const MIGRATIONS: &[Migration] = &[
    Migration {
        number: 1,
        name: "journal",
        sql: include_str!("../../migrations/0001_journal.sql"),
    },
    Migration {
        number: 2,
        name: "approvals",
        sql: include_str!("../../migrations/0002_approvals.sql"),
    },
    Migration {
        number: 3,
        name: "preparations",
        sql: include_str!("../../migrations/0003_preparations.sql"),
    },
];

/// Marks the database as a journal of Semel: "Semj".
const APPLICATION_ID: i32 = 0x5365_6d6a;

/// The oldest SQLite that may write: older ones can lose a checkpoint that races with a commit in WAL mode.
///
/// # Source
/// <https://sqlite.org/wal.html>, "The WAL-reset bug"; mended in 3.51.3.
const OLDEST_SQLITE: i32 = 3_051_003;

/// Names the database in the state root; only SQLite opens it.
pub const FILE: &str = "journal.db";

const BUSY: Duration = Duration::from_secs(5);

/// Filesystems on which neither locks nor shared memory hold between hosts.
///
/// # Source
/// statfs(2), linux/magic.h.
const NETWORK: &[(u32, &str)] = &[
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb2"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "afs"),
    (0x7375_7245, "coda"),
    (0x564c, "ncp"),
    (0x0bd0_0bd0, "lustre"),
    (0x0116_1970, "gfs2"),
    (0x7461_636f, "ocfs2"),
    (0x1983_0326, "fhgfs"),
    (0x4750_4653, "gpfs"),
];

/// What FUSE calls itself: it may lie on a network or not.
const FUSE: u32 = 0x6573_5546;

/// The names of FUSE filesystems that lie on a network.
const NETWORK_FUSE: &[&str] = &[
    "sshfs", "s3", "gcsfuse", "gluster", "rclone", "curlftp", "davfs", "ceph", "juicefs", "blobfuse",
    "goofys", "nfs", "smb", "moosefs", "mfs", "lizardfs", "beegfs", "seaweed", "alluxio", "hdfs",
];

fn refused(reason: &str, why: impl Into<String>) -> Error {
    Error::Refused(Refusal::new(Code::StoreUnavailable, why).reason(reason))
}

/// Refuses a directory on a network filesystem.
pub(super) fn on_local_disk(dir: &Path) -> Result<()> {
    let disk = rustix::fs::statfs(dir).map_err(|e| {
        refused(
            "state_unreadable",
            format!("the state directory cannot be read ({e})"),
        )
    })?;
    // The field is signed on some targets; the magic numbers have 32 bits.
    let magic = (disk.f_type as u64 & 0xffff_ffff) as u32;
    if let Some((_, name)) = NETWORK.iter().find(|(known, _)| *known == magic) {
        return Err(refused(
            "network_filesystem",
            format!("the state directory lies on {name}, where locks do not hold"),
        ));
    }
    if magic == FUSE {
        let kind = fuse_kind(dir)?;
        if NETWORK_FUSE.iter().any(|known| kind.contains(known)) {
            return Err(refused(
                "network_filesystem",
                format!("the state directory lies on {kind}, where locks do not hold"),
            ));
        }
    }
    Ok(())
}

/// Asks the kernel's mount table which FUSE filesystem a directory lies on.
fn fuse_kind(dir: &Path) -> Result<String> {
    let unreadable = |what: String| refused("state_unreadable", what);
    let device = rustix::fs::stat(dir)
        .map_err(|e| unreadable(format!("the state directory cannot be read ({e})")))?
        .st_dev;
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = std::fs::read("/proc/self/mountinfo")
        .map_err(|e| unreadable(format!("the mount table cannot be read ({e})")))?;
    let kind = mounts.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        let found = fields.nth(2)? == device.as_bytes();
        let kind = fields.skip_while(|f| *f != b"-").nth(1)?;
        found.then(|| kind.escape_ascii().to_string())
    });
    kind.ok_or_else(|| {
        unreadable("the mount table does not name the state directory's filesystem".to_owned())
    })
}

/// Opens the database for its one writer, makes or migrates its schema.
pub(super) fn open_writer(lock: &OwnerLock) -> Result<Connection> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(refused(
            "engine_too_old",
            format!("SQLite {} is older than 3.51.3", rusqlite::version()),
        ));
    }
    on_local_disk(lock.dir())?;
    // `modeof`: SQLite makes the database (and its WAL after it) with the mode of owner.lock, 0600.
    let uri = format!(
        "{}?mode=rwc&modeof={}",
        uri(&lock.dir().join(FILE)),
        escaped(lock.file())
    );
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(uri, flags).map_err(fault("open the journal"))?;
    settle(&conn)?;
    ours(&conn)?;
    let mode: String = conn
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(fault("turn the write-ahead log on"))?;
    if mode != "wal" {
        return Err(refused("no_wal", format!("the journal mode is {mode}, not wal")));
    }
    // The writer checkpoints by itself, after its answers are sent. The log is kept at its size, so that commits
    // overwrite it: an append costs up to twice as much.
    conn.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = -1;
         PRAGMA cache_size = -16384;",
    )
    .map_err(fault("set the writer up"))?;
    // Never at the close: after a failed sync the log may not say what its pages in memory say. A sound end
    // checkpoints by itself.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(fault("set the writer up"))?;
    migrate(&mut conn)?;
    Ok(conn)
}

/// Opens the database for reading alone, with every file that a read needs: what is open already is not refused for want
/// of descriptors later. SQLite opens the write-ahead log at the first read.
pub(super) fn open_reader(dir: &Path) -> Result<Connection> {
    let uri = format!("{}?mode=ro", uri(&dir.join(FILE)));
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(uri, flags).map_err(fault("open the journal to read"))?;
    settle(&conn)?;
    conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| {
        row.get::<_, i64>(0)
    })
    .map_err(fault("open the journal to read"))?;
    Ok(conn)
}

/// Opens a copy of a journal for reading alone.
///
/// Without a write-ahead log beside it, it is read as it lies, and nothing is made beside it. A log that holds
/// anything is read too, which needs a directory that can be written.
pub(super) fn open_copy(path: &Path) -> Result<Connection> {
    if !path.exists() {
        let shown = path.display().to_string();
        return Err(Refusal::new(Code::NotFound, "there is no such file")
            .name(shown)
            .into());
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let alone = Path::new(&log).metadata().map_or(0, |log| log.len()) == 0;
    let how = if alone { "immutable=1" } else { "mode=ro" };
    let uri = format!("{}?{how}", uri(path));
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(uri, flags).map_err(fault("open the copy to read"))?;
    settle(&conn)?;
    Ok(conn)
}

/// Says how the tables differ from those that this build makes; the guards against changes belong to them.
pub(super) fn differences(conn: &Connection) -> Result<Vec<String>> {
    let mut fresh = Connection::open_in_memory().map_err(fault("make the tables anew"))?;
    migrate(&mut fresh)?;
    let (must, is) = (objects(&fresh)?, objects(conn)?);
    let missing = must
        .difference(&is)
        .map(|(kind, name, _)| format!("the {kind} {name} is missing or another"));
    let added = is
        .difference(&must)
        .map(|(kind, name, _)| format!("the {kind} {name} is not one of ours"));
    Ok(missing.chain(added).collect())
}

type Object = (String, String, Option<String>);

fn objects(conn: &Connection) -> Result<BTreeSet<Object>> {
    conn.prepare("SELECT type, name, sql FROM sqlite_schema")
        .and_then(|mut s| {
            s.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
                .collect()
        })
        .map_err(fault("read the schema"))
}

/// Refuses a journal that this build does not know; migrates nothing.
pub(super) fn known(conn: &Connection) -> Result<()> {
    ours(conn)?;
    let applied = applied(conn)?;
    if applied.len() < MIGRATIONS.len() {
        return Err(refused(
            "older_schema",
            "the schema is older than this build; the daemon migrates it",
        ));
    }
    Ok(())
}

fn settle(conn: &Connection) -> Result<()> {
    conn.set_prepared_statement_cache_capacity(128);
    conn.busy_timeout(BUSY).map_err(fault("set the connection up"))?;
    // Plans do not depend on bound values: otherwise each new value has its cached statement prepared again, since
    // the planner looks whether the value would let it use a partial index.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(fault("set the connection up"))?;
    // In memory: a temporary file that cannot be opened, for want of descriptors, would fail a verb halfway.
    conn.execute_batch(
        "PRAGMA foreign_keys = ON; PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(fault("set the connection up"))
}

fn ours(conn: &Connection) -> Result<()> {
    let id: i32 = conn
        .query_row("PRAGMA application_id", [], |row| row.get(0))
        .map_err(fault("read the journal's mark"))?;
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(fault("read the schema"))?;
    if id == APPLICATION_ID || (id == 0 && tables == 0) {
        Ok(())
    } else {
        Err(refused(
            "foreign_database",
            "journal.db is not a journal of Semel",
        ))
    }
}

/// Reads which migrations were applied, and holds each against the one that this build has.
fn applied(conn: &Connection) -> Result<Vec<u32>> {
    let doing = "read the migrations";
    let there: Option<i64> = conn
        .query_row(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'",
            [],
            |row| row.get(0),
        )
        .optional()
        .map_err(fault(doing))?;
    if there.is_none() {
        return Ok(Vec::new());
    }
    let mut rows = conn
        .prepare("SELECT number, sha256 FROM schema_migrations ORDER BY number")
        .map_err(fault(doing))?;
    let rows = rows
        .query_map([], |row| Ok((row.get::<_, u32>(0)?, row.get::<_, String>(1)?)))
        .map_err(fault(doing))?
        .collect::<rusqlite::Result<Vec<_>>>()
        .map_err(fault(doing))?;
    for (at, (number, sha256)) in rows.iter().enumerate() {
        let Some(migration) = MIGRATIONS.get(at) else {
            return Err(refused(
                "newer_schema",
                format!("the schema has migration {number}, which is newer than this build"),
            ));
        };
        if migration.number != *number || Sha256::of(migration.sql.as_bytes()).to_string() != *sha256 {
            return Err(refused(
                "migration_changed",
                format!("migration {number} of the journal is not the one of this build"),
            ));
        }
    }
    Ok(rows.into_iter().map(|(number, _)| number).collect())
}

fn migrate(conn: &mut Connection) -> Result<()> {
    let doing = "migrate the journal";
    let done = applied(conn)?.len();
    if done == MIGRATIONS.len() {
        return Ok(());
    }
    let tx = conn
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(fault(doing))?;
    tx.execute_batch(&format!(
        "PRAGMA application_id = {APPLICATION_ID};
         CREATE TABLE IF NOT EXISTS schema_migrations (
             number INTEGER PRIMARY KEY, name TEXT NOT NULL, sha256 TEXT NOT NULL
         ) STRICT;"
    ))
    .map_err(fault(doing))?;
    for migration in &MIGRATIONS[done..] {
        tx.execute_batch(migration.sql).map_err(fault(doing))?;
        tx.execute(
            "INSERT INTO schema_migrations (number, name, sha256) VALUES (?1, ?2, ?3)",
            (
                int(u64::from(migration.number))?,
                migration.name,
                Sha256::of(migration.sql.as_bytes()).to_string(),
            ),
        )
        .map_err(fault(doing))?;
    }
    tx.commit().map_err(fault(doing))
}

/// Writes a path as SQLite's URI, whatever its bytes.
pub(super) fn uri(path: &Path) -> String {
    format!("file:{}", escaped(path))
}

pub(super) fn escaped(path: &Path) -> String {
    path.as_os_str()
        .as_bytes()
        .iter()
        .fold(String::new(), |mut text, byte| {
            if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
                text.push(char::from(*byte));
            } else {
                // Writing to a String cannot fail.
                let _infallible = write!(text, "%{byte:02X}");
            }
            text
        })
}
