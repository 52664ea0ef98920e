#!/usr/bin/env bash
# Shows that every call has one effect: whoever is killed, whatever fails, and whoever else is at the same files.
#
# What it does is told in docs/durability.md; an ordinary test run makes a share of the same trials. It kills the daemon
# at every point and at every system call, makes every write, rename and sync fail, kills it right after answers, and
# lets other programs and many callers race it. It kills restorations of a worktree at every point, and lets many seek one
# lock. It kills seals and unseals, seals 200,000 entries and 2 GB, and compares how other readers extract thousands of
# archives. It kills the gateway while the official client calls through `semel mcp`, and that at every system call. It
# needs root, loop devices, mkfs.ext4, mkfs.xfs, lowntfs-3g, bsdtar, strace and what scripts/setup.sh installs, takes half
# an hour on two idle cores, and prints a line for each law.
#
# Usage: scripts/laws.sh [--only NAME] [--seed N]
#   --only  only the tests with this in their name, such as crash::strace or laws::swaps
#   --seed  what chance follows from (default: the clock; each line prints its own)
#
# Exit 0: every law holds. Exit 1: one does not, or it could not be tried here. Exit 64: usage.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() {
    printf 'usage: scripts/laws.sh [--only NAME] [--seed N]\n' >&2
    exit 64
}

only=() seed=
while [ $# -gt 0 ]; do
    case $1 in
        --only) [ -n "${2-}" ] || usage; only+=("$2"); shift 2 ;;
        --seed) seed=${2-}; case $seed in '' | *[!0-9]*) usage ;; esac; shift 2 ;;
        -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) usage ;;
    esac
done
[ "${#only[@]}" -gt 0 ] || only=(crash:: laws:: restoring::killed contended seals:: tarball:: bridge::)
[ -z "$seed" ] || export SEMEL_SEED=$seed

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export PATH="$PATH:/usr/sbin:/sbin" SEMEL_FULL=1 RUST_BACKTRACE=0
# The lock of a worktree is contended where it lies, in semel-host.
{
    cargo test --quiet -p semel --test it --locked -- "${only[@]}" --nocapture \
        && cargo test --quiet -p semel-host --lib --locked -- "${only[@]}" --nocapture
} 2>&1 | tee "$log"
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
if grep -q SKIPPED "$log"; then
    printf 'something could not be tried here\n' >&2
    exit 1
fi
if ! grep -q '^test result: ok. [1-9]' "$log"; then
    printf 'no test has such a name\n' >&2
    exit 1
fi
