-- The one durable record. Everything below `records` is a projection of it: `verify` folds the records again and
-- holds the outcome against every other table.
CREATE TABLE records (
    seq          INTEGER PRIMARY KEY,
    at_ms        INTEGER NOT NULL,
    version      INTEGER NOT NULL,
    body         TEXT    NOT NULL,
    prev         BLOB    NOT NULL CHECK (length(prev) = 32),
    hash         BLOB    NOT NULL CHECK (length(hash) = 32),
    -- Found by these, not chained: they are taken from the body, or from the intent that it belongs to.
    job          TEXT,
    execution_id TEXT,
    key          TEXT,
    conflict     INTEGER NOT NULL CHECK (conflict IN (0, 1))
) STRICT;
CREATE INDEX records_job       ON records (job, seq)          WHERE job IS NOT NULL;
CREATE INDEX records_execution ON records (execution_id, seq) WHERE execution_id IS NOT NULL;
CREATE INDEX records_key       ON records (key, seq)          WHERE key IS NOT NULL;
CREATE INDEX records_conflict  ON records (seq)               WHERE conflict = 1;

CREATE TRIGGER records_are_never_changed BEFORE UPDATE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never changed'); END;
CREATE TRIGGER records_are_never_deleted BEFORE DELETE ON records
BEGIN SELECT RAISE(ABORT, 'a record is never deleted'); END;

-- The lives of the writer.
CREATE TABLE incarnations (
    incarnation INTEGER PRIMARY KEY,
    boot_id     TEXT    NOT NULL,
    version     TEXT    NOT NULL,
    at_ms       INTEGER NOT NULL
) STRICT;

-- No row is ever deleted: a generation is never used twice, and a token stays as a tombstone. The next attempt and
-- the next fencing token are one more than the largest here.
CREATE TABLE volumes (
    generation    TEXT    PRIMARY KEY,
    job           TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    fencing_token INTEGER NOT NULL UNIQUE,
    token_sha256  BLOB    NOT NULL UNIQUE CHECK (length(token_sha256) = 32),
    role          TEXT    NOT NULL CHECK (role IN ('draft', 'cert')),
    state         TEXT    NOT NULL CHECK (state IN ('opening', 'open', 'clean', 'quarantined', 'destroyed')),
    json          TEXT    NOT NULL,
    UNIQUE (job, attempt)
) STRICT;

-- Tokens that others gave out. None is ever deleted: it stays as a tombstone.
CREATE TABLE tokens (
    token_sha256 BLOB PRIMARY KEY CHECK (length(token_sha256) = 32),
    generation   TEXT NOT NULL REFERENCES volumes (generation),
    json         TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX tokens_generation ON tokens (generation);

-- A call is its records: the intent, maybe that it is taken back, and what came of it. A freed key has no row.
CREATE TABLE calls (
    intent_seq   INTEGER PRIMARY KEY REFERENCES records (seq),
    -- Where what was done is taken back.
    aborting_seq INTEGER REFERENCES records (seq),
    outcome_seq  INTEGER REFERENCES records (seq),
    scope        TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    execution_id TEXT    NOT NULL UNIQUE,
    generation   TEXT    NOT NULL REFERENCES volumes (generation),
    -- The job, for effects outside of any generation.
    job_scoped   TEXT,
    state        TEXT    NOT NULL CHECK (state IN ('running', 'done', 'refused', 'unknown')),
    at_ms        INTEGER NOT NULL,
    UNIQUE (scope, key),
    CHECK ((state = 'running') = (outcome_seq IS NULL))
) STRICT;
CREATE INDEX calls_open ON calls (generation, state, intent_seq) WHERE state IN ('running', 'unknown');
CREATE INDEX calls_job_scoped ON calls (job_scoped, at_ms) WHERE job_scoped IS NOT NULL;

CREATE TABLE runs (
    run  TEXT    PRIMARY KEY,
    seq  INTEGER NOT NULL UNIQUE REFERENCES records (seq),
    job  TEXT    NOT NULL,
    over INTEGER NOT NULL CHECK (over IN (0, 1)),
    json TEXT    NOT NULL
) STRICT;
CREATE INDEX runs_job ON runs (job, seq);
CREATE UNIQUE INDEX runs_open ON runs (job) WHERE over = 0;

CREATE TABLE judgements (
    generation TEXT    PRIMARY KEY,
    seq        INTEGER NOT NULL UNIQUE REFERENCES records (seq),
    job        TEXT    NOT NULL,
    proposal   BLOB    NOT NULL CHECK (length(proposal) = 32),
    json       TEXT    NOT NULL
) STRICT;
CREATE INDEX judgements_job ON judgements (job, seq);
CREATE INDEX judgements_proposal ON judgements (proposal, seq);

CREATE TABLE consumptions (
    generation TEXT PRIMARY KEY,
    json       TEXT NOT NULL
) STRICT;

-- Holds no knowledge: a commit that is to reach the disk, or to prove that commits still pass, has to write something.
CREATE TABLE pulse (
    id    INTEGER PRIMARY KEY CHECK (id = 1),
    beats INTEGER NOT NULL
) STRICT;
INSERT INTO pulse (id, beats) VALUES (1, 0);
