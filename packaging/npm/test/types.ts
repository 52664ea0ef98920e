// Compiled, never run: the declarations say what they should, and refuse what they should.
import { binaryPath, restore, RestoreError, restoreSync, type Restored, type RestoreOptions } from 'semel';

const options: RestoreOptions = { worktree: 'w', tree: 't', waitSeconds: 3, verify: 'tree', gitDirs: ['/usr/bin'] };
const answer: Restored = restoreSync(options);
const identity: 'pinned' | 'unpinned' = answer.outcome.identity;
const promised: Promise<Restored> = restore({ ...options, signal: new AbortController().signal });
const place: string = binaryPath();
try {
  restoreSync({ worktree: 'w', job: 'j' });
} catch (error) {
  if (error instanceof RestoreError) {
    const touched: 'nothing' | 'perhaps' = error.touched;
    const bytes: Uint8Array = error.stderr;
    console.log(touched, bytes, error.counts?.waited_ms);
  }
}
// @ts-expect-error the worktree is needed
restoreSync({ tree: 't' });
// @ts-expect-error no such proof
restoreSync({ worktree: 'w', tree: 't', verify: 'none' });
// @ts-expect-error a synchronous one hears nothing
restoreSync({ worktree: 'w', tree: 't', signal: new AbortController().signal });
console.log(identity, promised, place);
