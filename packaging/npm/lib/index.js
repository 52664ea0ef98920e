// Restores a git worktree by the `semel` binary of this package, which is run by its absolute path.
//
// PATH is not asked for anything: not for the binary, and not for git, which is looked for in `gitDirs`. No shell is
// involved. Of the environment the child is given HOME, XDG_STATE_HOME, XDG_CONFIG_HOME and SEMEL_JOB alone: by them
// `semel` finds its state root, and knows whether it may.

import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { lstatSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, isAbsolute, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { sha256 } from './binary.js';

const GIT_DIRS = ['/usr/local/bin', '/usr/bin', '/bin'];
const PASSED = ['HOME', 'XDG_STATE_HOME', 'XDG_CONFIG_HOME', 'SEMEL_JOB'];
const LARGEST_ANSWER = 256 * 1024 * 1024;

export class RestoreError extends Error {
  constructor(answer, stderr) {
    const names = answer.names?.length ? `: ${answer.names.join(', ')}` : '';
    super(`${answer.code}: ${answer.why}${names}`);
    this.name = 'RestoreError';
    this.code = answer.code;
    this.reason = answer.reason ?? null;
    this.why = answer.why;
    this.names = answer.names ?? [];
    this.next = answer.next ?? '';
    this.exit = answer.exit ?? null;
    this.retry = answer.retry ?? 'never';
    this.touched = answer.touched ?? 'nothing';
    this.gitExit = answer.git_exit ?? null;
    this.counts = answer.counts ?? null;
    this.stderr = stderr;
  }
}

let found;

/** Gives the absolute path of the binary of this package. */
export function binaryPath() {
  found ??= findBinary();
  return found;
}

// Beside this file; or, where this file was put into a bundle, in the package that the bundle finds. Either is taken
// only if it holds the very binary that this code was packed with.
function findBinary() {
  const here = import.meta.url;
  const looked = [];
  const roots = [
    () => join(dirname(fileURLToPath(here)), '..'),
    () => dirname(createRequire(here).resolve('semel/package.json')),
  ];
  for (const root of roots) {
    try {
      const place = join(root(), 'bin', 'semel');
      looked.push(place);
      if (lstatSync(place).isFile() && digest(place) === sha256) {
        return place;
      }
    } catch {
      // Not there; the next place is looked at.
    }
  }
  throw failed('not_found', 'the binary that this package was packed with is not there', looked);
}

function digest(place) {
  return createHash('sha256').update(readFileSync(place)).digest('hex');
}

function failed(code, why, names = []) {
  return new RestoreError({ code, why, names }, new Uint8Array());
}

function text(options, name) {
  const value = options[name];
  if (typeof value !== 'string' || value === '' || value.includes('\0')) {
    throw new TypeError(`${name} must be a string that is not empty`);
  }
  // It would reach the system as another text.
  if (/\p{Surrogate}/u.test(value)) {
    throw new TypeError(`${name} must be well-formed text`);
  }
  return value;
}

const KNOWN = new Set([
  'worktree',
  'tree',
  'job',
  'record',
  'waitSeconds',
  'verify',
  'stale',
  'staleGraceSeconds',
  'clean',
  'removeNested',
  'requirePin',
  'state',
  'config',
  'gitDirs',
  'git',
  'binary',
  'signal',
]);

// Everything that a child is started with, or a TypeError: nothing is guessed.
function command(options) {
  if (options === null || typeof options !== 'object') {
    throw new TypeError('options must be an object');
  }
  for (const name of Object.keys(options)) {
    if (!KNOWN.has(name)) {
      throw new TypeError(`there is no option ${name}`);
    }
  }
  const args = ['--json', '--quiet'];
  const add = (flag, value) => args.push(`${flag}=${value}`);
  if (options.state !== undefined) add('--state', resolve(text(options, 'state')));
  if (options.config !== undefined) add('--config', resolve(text(options, 'config')));
  args.push('restore');
  add('--worktree', resolve(text(options, 'worktree')));
  if (options.tree !== undefined) add('--tree', text(options, 'tree'));
  if (options.job !== undefined) add('--job', text(options, 'job'));
  if (options.verify !== undefined) add('--verify', text(options, 'verify'));
  if (options.stale !== undefined) add('--stale', text(options, 'stale'));
  if (options.git !== undefined) add('--git', absolute(options, 'git'));
  for (const [name, flag] of [
    ['waitSeconds', '--wait'],
    ['staleGraceSeconds', '--stale-grace'],
  ]) {
    const value = options[name];
    if (value === undefined) continue;
    if (!Number.isSafeInteger(value) || value < 1) {
      throw new TypeError(`${name} must be a whole number from 1`);
    }
    add(flag, `${value}s`);
  }
  for (const [name, flag] of [
    ['record', '--record'],
    ['clean', '--clean'],
    ['removeNested', '--remove-nested'],
    ['requirePin', '--require-pin'],
  ]) {
    const value = options[name];
    if (value !== undefined && typeof value !== 'boolean') {
      throw new TypeError(`${name} must be true or false`);
    }
    if (value) args.push(flag);
  }
  const dirs = options.gitDirs ?? GIT_DIRS;
  const usable = (dir) => typeof dir === 'string' && isAbsolute(dir) && !/[:\0]/.test(dir);
  if (!Array.isArray(dirs) || dirs.length === 0 || !dirs.every(usable)) {
    throw new TypeError('gitDirs must be absolute directories');
  }
  const env = { PATH: dirs.join(':') };
  for (const name of PASSED) {
    if (process.env[name] !== undefined) env[name] = process.env[name];
  }
  return { file: binary(options), args, env };
}

function binary(options) {
  if (options.binary === undefined) {
    return binaryPath();
  }
  return absolute(options, 'binary');
}

function absolute(options, name) {
  const place = text(options, name);
  if (!isAbsolute(place)) {
    throw new TypeError(`${name} must be an absolute path`);
  }
  return place;
}

// `git` writes first, byte for byte; the refusal's three lines are the last ones.
function gitStderr(stderr) {
  let end = stderr.length;
  for (let lines = 0; lines < 3; lines += 1) {
    end = stderr.lastIndexOf(0x0a, end - 2) + 1;
    if (end <= 0) return stderr.subarray(0, 0);
  }
  return stderr.subarray(0, end);
}

function judged(status, signal, stdout, stderr) {
  let answer;
  try {
    answer = JSON.parse(stdout.toString('utf8'));
  } catch {
    const why = signal ? `semel was ended by ${signal}` : `semel exited with ${status} and gave no answer`;
    throw new RestoreError({ code: 'internal', why, touched: 'perhaps', exit: status }, stderr);
  }
  // An answer alone is none, and neither is an exit status.
  if (status === 0 && answer.schema === 'semel.restore/v1' && answer.status === 'restored') {
    return answer;
  }
  if (status === 0 || typeof answer.code !== 'string') {
    const why = `semel exited with ${status} and gave an answer that does not fit`;
    throw new RestoreError({ code: 'internal', why, touched: 'perhaps', exit: status }, stderr);
  }
  throw new RestoreError(answer, gitStderr(stderr));
}

function notStarted(error) {
  return failed('io_failed', `semel could not be started: ${error.message}`);
}

/** Restores a worktree; the calling thread waits. */
export function restoreSync(options) {
  const { file, args, env } = command(options);
  if (options.signal !== undefined) {
    throw new TypeError('signal is for restore(): nothing can be heard while the thread waits');
  }
  const ran = spawnSync(file, args, {
    cwd: '/',
    env,
    shell: false,
    stdio: ['ignore', 'pipe', 'pipe'],
    maxBuffer: LARGEST_ANSWER,
  });
  if (ran.error && ran.status === null && ran.signal === null) {
    throw notStarted(ran.error);
  }
  return judged(ran.status, ran.signal, Buffer.from(ran.stdout ?? ''), Buffer.from(ran.stderr ?? ''));
}

/** Restores a worktree. */
export async function restore(options) {
  const { file, args, env } = command(options);
  const { signal } = options;
  signal?.throwIfAborted();
  return new Promise((done, refuse) => {
    const child = spawn(file, args, { cwd: '/', env, shell: false, stdio: ['ignore', 'pipe', 'pipe'] });
    const said = { stdout: [], stderr: [] };
    for (const name of ['stdout', 'stderr']) {
      child[name].on('data', (chunk) => said[name].push(chunk));
    }
    // SIGTERM: `semel` ends its wait, or has git end and take its files away, and says what it left.
    const end = () => child.kill('SIGTERM');
    signal?.addEventListener('abort', end, { once: true });
    const over = () => signal?.removeEventListener('abort', end);
    child.on('error', (error) => {
      over();
      refuse(notStarted(error));
    });
    child.on('close', (status, killed) => {
      over();
      try {
        done(judged(status, killed, Buffer.concat(said.stdout), Buffer.concat(said.stderr)));
      } catch (error) {
        refuse(error);
      }
    });
  });
}
