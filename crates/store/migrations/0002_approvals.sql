-- An approval is its records: the question, and maybe its answer. No row is ever deleted.
CREATE TABLE approvals (
    asked_seq   INTEGER PRIMARY KEY REFERENCES records (seq),
    decided_seq INTEGER REFERENCES records (seq),
    approval_id TEXT    NOT NULL UNIQUE,
    scope       TEXT    NOT NULL,
    -- None of a call that reads: it is known by what it says.
    key         TEXT,
    fingerprint TEXT    NOT NULL,
    generation  TEXT    NOT NULL REFERENCES volumes (generation),
    state       TEXT    NOT NULL CHECK (state IN ('pending', 'approved', 'denied')),
    -- Until when it can be decided.
    expires_ms  INTEGER NOT NULL,
    CHECK ((state = 'pending') = (decided_seq IS NULL))
) STRICT;
CREATE UNIQUE INDEX approvals_key ON approvals (scope, key) WHERE key IS NOT NULL;
CREATE INDEX approvals_read ON approvals (scope, fingerprint, asked_seq) WHERE key IS NULL;
CREATE INDEX approvals_pending ON approvals (generation, expires_ms) WHERE state = 'pending';

-- The policy that each life of the writer judged by.
ALTER TABLE incarnations ADD COLUMN policy_sha256 BLOB CHECK (policy_sha256 IS NULL OR length(policy_sha256) = 32);
