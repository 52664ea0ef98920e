-- The tree that a job prepared, the newest alone; a worktree, known by its pin, has that of one job.
CREATE TABLE preparations (
    job  TEXT PRIMARY KEY,
    pin  TEXT NOT NULL UNIQUE,
    json TEXT NOT NULL
) STRICT;
