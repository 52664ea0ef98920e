#!/usr/bin/env bash
# Cuts the power of a daemon in durability `power` under load, on ext4, xfs and btrfs, many times, and looks what is there.
#
# What it does is told in docs/durability.md; an ordinary test run does the same with 20 points on each filesystem. It
# needs root, loop devices, mkfs.ext4 and mkfs.xfs, and prints a line for each filesystem and layout.
#
# Usage: scripts/power-cuts.sh [--points N] [--seed N]
#   --points  how many points each filesystem gets (default 300)
#   --seed    what the calls and the moments follow from (default 1)
#
# Exit 0: nothing was lost. Exit 1: something was, or it could not be tried here. Exit 64: usage.
set -uo pipefail
cd "$(dirname "$0")/.."

points=300 seed=1
while [ $# -gt 0 ]; do
    case $1 in
        --points) points=${2-}; shift 2 ;;
        --seed) seed=${2-}; shift 2 ;;
        -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) points=; break ;;
    esac
done
case $points$seed in
    '' | *[!0-9]*) printf 'usage: scripts/power-cuts.sh [--points N] [--seed N]\n' >&2; exit 64 ;;
esac

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export PATH="$PATH:/usr/sbin:/sbin" SEMEL_POWER_CUTS=$points SEMEL_POWER_SEED=$seed RUST_BACKTRACE=0
cargo test --quiet -p semel --test it --locked power:: -- --nocapture 2>&1 | tee "$log"
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
if grep -q SKIPPED "$log"; then
    printf 'something could not be tried here\n' >&2
    exit 1
fi
