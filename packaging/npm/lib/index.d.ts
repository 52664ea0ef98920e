/** Says what is to be restored, and how. */
export interface RestoreOptions {
  /** The worktree, by its top directory; relative to the working directory of the process. */
  worktree: string;
  /** The tree, by its full object id. Left out, the tree that was recorded with `job`. */
  tree?: string;
  /** The job it is for: its recorded tree is restored, and no other. */
  job?: string;
  /** Record the tree with the job once it is restored; needs `job`, `tree`, and a pinned worktree. */
  record?: boolean;
  /** How long `index.lock` is waited for, in whole seconds from 1; 60 where it is left out. */
  waitSeconds?: number;
  /** How much is proved before the index is published; `bytes` where it is left out. */
  verify?: 'tree' | 'bytes' | 'pristine';
  /** Whether a lock that another program left may be adopted; `evidence` where it is left out. */
  stale?: 'evidence' | 'never';
  /** How long such a lock must be seen unchanged first, in whole seconds from 1; 10 where it is left out. */
  staleGraceSeconds?: number;
  /** Remove what is not of the tree, untracked and ignored. */
  clean?: boolean;
  /** Remove repositories that lie where a file of the tree has to go, or in what `clean` removes. */
  removeNested?: boolean;
  /** Refuse a worktree that is not pinned. */
  requirePin?: boolean;
  /** The state root, where the pins are; else that of `config`, else the user's. */
  state?: string;
  /** The configuration file; else the user's, else the system's. */
  config?: string;
  /** Absolute directories in which git is looked for; `/usr/local/bin`, `/usr/bin`, `/bin` where it is left out. */
  gitDirs?: readonly string[];
  /** The git that is run, by its absolute path; else the first one in `gitDirs`. */
  git?: string;
  /** The binary, by its absolute path; else that of this package. */
  binary?: string;
}

/** Also says by what a restoration is ended. */
export interface AsyncRestoreOptions extends RestoreOptions {
  /** Ends it: the wait at once, a git that runs so that it takes its files away. */
  signal?: AbortSignal;
}

/** Counts what a restoration met. */
export interface Counts {
  looks: number;
  collisions: number;
  adopted: number;
  recovered: number;
  waited_ms: number;
}

/** Is a worktree that was restored: what `semel restore --json` prints. */
export interface Restored {
  schema: 'semel.restore/v1';
  status: 'restored';
  outcome: {
    tree: string;
    identity: 'pinned' | 'unpinned';
    verified: 'tree' | 'bytes' | 'pristine';
    hashed: number;
    /** Files that git had called restored though their bytes were not; they were written anew. */
    mended: string[];
    /** Entries that are not of the tree, the first 100 by name. */
    residue: string[];
    residue_count: number;
    /** Entries that were not of the tree and were removed, the first 100 by name. */
    removed: string[];
    removed_count: number;
    /** The git that was run. */
    git: { path: string; version: string; sha256: string };
    counts: Counts;
  };
  /** The record of the job, where one was named. */
  record: { job: string; number: number; pin: string; tree: string; superseded: string | null } | null;
}

/** Is a restoration that was refused, or failed. */
export declare class RestoreError extends Error {
  name: 'RestoreError';
  /** The name of the refusal, such as `lock_timeout`. */
  code: string;
  /** A finer, stable name inside it. */
  reason: string | null;
  /** What is the case, in one clause. */
  why: string;
  /** The paths and ids that it is about. */
  names: string[];
  /** What to do next. */
  next: string;
  /** The exit status of `semel`. */
  exit: number | null;
  /** Whether and how it may be tried again, such as `later`. */
  retry: string;
  /** Whether files may have been written; after `perhaps` restore again before the worktree is used. */
  touched: 'nothing' | 'perhaps';
  /** Git's exit status, where git was the cause. */
  gitExit: number | null;
  counts: Counts | null;
  /** What git wrote to standard error, byte for byte. */
  stderr: Uint8Array;
}

/**
 * Restores a worktree.
 *
 * @throws {RestoreError} where it is refused or fails.
 * @throws {TypeError} where the options are not what they have to be; nothing was started.
 */
export declare function restore(options: AsyncRestoreOptions): Promise<Restored>;

/**
 * Restores a worktree; the calling thread waits. It may be called while a module is loaded.
 *
 * @throws {RestoreError} where it is refused or fails.
 * @throws {TypeError} where the options are not what they have to be; nothing was started.
 */
export declare function restoreSync(options: RestoreOptions): Restored;

/**
 * Gives the absolute path of the binary of this package.
 *
 * @throws {RestoreError} `not_found` where it is not there, or another one is.
 */
export declare function binaryPath(): string;
