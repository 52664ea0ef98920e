// Restores while it is imported: what a bundle is made of.
import { readFileSync } from 'node:fs';
import { restoreSync } from 'semel';

const { worktree, tree, state } = JSON.parse(readFileSync(process.env.SCENE, 'utf8'));
export const answer = restoreSync({ worktree, tree, state });
console.log(`restored ${answer.outcome.tree} at import`);
