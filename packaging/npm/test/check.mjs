// What the package promises, on Node or Bun: check.mjs SCENE, where SCENE is a JSON file that names a repository.
// PATH is captured: it begins with programs named git and semel that leave a mark when they are run.

import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { isAbsolute, join } from 'node:path';
import { binaryPath, restore, restoreSync, RestoreError } from 'semel';

const scene = JSON.parse(readFileSync(process.argv[2], 'utf8'));
const { worktree, tree, state } = scene;
const file = join(worktree, 'a');
const lock = join(worktree, '.git', 'index.lock');
const change = () => writeFileSync(file, 'changed\n');
const restored = () => assert.equal(readFileSync(file, 'utf8'), 'one\n');

function refusedSync(options, code) {
  try {
    restoreSync(options);
  } catch (error) {
    assert.ok(error instanceof RestoreError, error);
    assert.equal(error.code, code);
    return error;
  }
  return assert.fail(`${code} was expected`);
}

assert.ok(isAbsolute(binaryPath()));

change();
const answer = restoreSync({ worktree, tree, state });
restored();
assert.equal(answer.outcome.tree, tree);
assert.equal(answer.outcome.identity, 'unpinned');
assert.equal(answer.outcome.verified, 'bytes');
assert.equal(answer.record, null);

change();
assert.equal((await restore({ worktree, tree, state, verify: 'tree' })).outcome.verified, 'tree');
restored();

// Refusals are typed, and nothing is changed by them.
change();
const pin = refusedSync({ worktree, tree, state, requirePin: true }, 'worktree_redirected');
assert.deepEqual([pin.reason, pin.exit, pin.touched], ['not_pinned', 45, 'nothing']);
assert.equal(refusedSync({ worktree, tree: 'HEAD', state }, 'bad_input').stderr.length, 0);
writeFileSync(lock, '');
const held = refusedSync({ worktree, tree, state, waitSeconds: 1 }, 'lock_timeout');
assert.equal(held.retry, 'later');
assert.ok(held.counts.collisions > 0 && held.next !== '');
await assert.rejects(restore({ worktree, tree, state, waitSeconds: 1 }), { code: 'lock_timeout' });
const abort = new AbortController();
const aborted = assert.rejects(restore({ worktree, tree, state, signal: abort.signal }), {
  code: 'lock_timeout',
  reason: 'cancelled',
});
// Its private file stands beside the lock while it waits.
const waits = () => readdirSync(join(worktree, '.git')).some((name) => name.startsWith('index.lock.semel-'));
while (!waits()) await new Promise((done) => setTimeout(done, 5));
abort.abort();
await aborted;
await assert.rejects(restore({ worktree, tree, state, signal: abort.signal }), { name: 'AbortError' });
rmSync(lock);
assert.equal(readFileSync(file, 'utf8'), 'changed\n');

// Git's own words, byte for byte: an index that is none.
const index = join(worktree, '.git', 'index');
const whole = readFileSync(index);
writeFileSync(index, 'no index\n'.repeat(9));
const broken = refusedSync({ worktree, tree, state }, 'git_failed');
const words = Buffer.from(broken.stderr).toString();
assert.ok(words.includes('index') && words.endsWith('\n') && !words.includes('git_failed'), words);
assert.equal(broken.gitExit, 128);
writeFileSync(index, whole);

// What is no option starts nothing.
for (const options of [
  null,
  {},
  { worktree: 'a\ud800', tree: 'b' },
  { worktree: '' },
  { worktree, tree: 7 },
  { worktree, tree, wait: 5 },
  { worktree, tree, waitSeconds: 0.5 },
  { worktree, tree, requirePin: 'yes' },
  { worktree, tree, gitDirs: ['bin'] },
  { worktree, tree, gitDirs: ['/a:/b'] },
  { worktree, tree, binary: 'semel' },
  { worktree, tree, signal: abort.signal },
]) {
  assert.throws(() => restoreSync(options), TypeError, JSON.stringify(options));
}
// A value is a value, whatever it looks like.
refusedSync({ worktree, tree: '--verify=tree', state }, 'bad_input');
refusedSync({ worktree, tree, state, gitDirs: ['/nonexistent'] }, 'not_found');
refusedSync({ worktree, tree, state, binary: '/nonexistent/semel' }, 'io_failed');

// A tree that is recorded is restored without being named.
const pinned = scene.pinned;
const recorded = restoreSync({ worktree: pinned, tree, state, job: 'app', record: true });
assert.deepEqual([recorded.outcome.identity, recorded.record.number], ['pinned', 1]);
writeFileSync(join(pinned, 'a'), 'changed\n');
assert.equal(restoreSync({ worktree: pinned, state, job: 'app', requirePin: true }).outcome.tree, tree);
assert.equal(readFileSync(join(pinned, 'a'), 'utf8'), 'one\n');

// A relative worktree is relative to the process.
mkdirSync(join(worktree, 'sub'), { recursive: true });
process.chdir(join(worktree, 'sub'));
change();
restoreSync({ worktree: '..', tree, state });
restored();
assert.ok(!existsSync(scene.mark), 'a program of PATH was run');
console.log('every check passed');
