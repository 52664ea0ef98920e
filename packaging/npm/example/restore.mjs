// Takes a worktree back to a tree, and says what was found.
//
//     node restore.mjs WORKTREE TREE

import { RestoreError, restoreSync } from 'semel';

const [worktree, tree] = process.argv.slice(2);
if (worktree === undefined || tree === undefined) {
  console.error('usage: node restore.mjs WORKTREE TREE');
  process.exit(64);
}
try {
  const { outcome } = restoreSync({ worktree, tree, waitSeconds: 10 });
  console.log(`restored ${outcome.tree}, ${outcome.identity}, ${outcome.residue_count} entries left over`);
} catch (error) {
  if (!(error instanceof RestoreError)) throw error;
  console.error(`${error.message}\nnext: ${error.next}`);
  process.exitCode = error.exit ?? 1;
}
