#!/usr/bin/env bash
# Installs and binds real projects in fresh generations, beside the tools' own warm installs, what else looks at an installed
# tree, and the plain digest of the same bytes: in one run, taking turns.
#
# Registries are needed once; what was fetched is kept in PLACE. What cannot be had is printed as skipped.
#
# Usage: bench/certify/run.sh [--rounds N] [--only NAME] [--scripts DIR] [--all] [PLACE]
#   --scripts  a directory with wheel_check.py, npm_check.cjs and crate_check.py, to be held against
#   --all      bench/seal, bench/gate and bench/volumes afterwards, each with few rounds
#   PLACE      default: semel-bench-certify in $XDG_CACHE_HOME or ~/.cache
set -euo pipefail
cd "$(dirname "$0")/../.."
rest=() all=
while [ $# -gt 0 ]; do
    case $1 in
        --all) all=1; shift ;;
        -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) rest+=("$1"); shift ;;
    esac
done
[ -x .tools/bin/python ] || { echo ".tools is missing; scripts/setup.sh makes it" >&2; exit 69; }
cargo build --quiet --release --locked -p semel-host --example certify
.tools/bin/python -B bench/certify/bench.py ${rest[@]+"${rest[@]}"}
[ -n "$all" ] || exit 0
bench/seal/run.sh --rounds 5 --only 20000
bench/gate/run.sh --rounds 100
bench/volumes/run.sh --rounds 20 "$([ -d /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")"
