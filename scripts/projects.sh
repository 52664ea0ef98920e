#!/usr/bin/env bash
# Shows that published projects are not refused: each is fetched by its registry's ordinary client, committed, certified by
# the real binary with its own tests, and its certificate judged by four verifiers and the gate, whole and with one byte
# flipped.
#
# Needs registries of Python, npm and Rust, git, node, openssl, ssh-keygen, and what scripts/setup.sh makes. Archives and
# locks are kept in PLACE, which must not lie below this repository; a state root is made there for each project and
# removed with it. It takes half an hour on two idle cores.
#
# Usage: scripts/projects.sh [--only NAME] [--verbose] [--keep] [PLACE]
#   --only     projects with this in their name, or of this installer
#   --verbose  what the certification said, to stderr
#   --keep     leaves repository, job and state root of the last project in PLACE/run
#   PLACE      default: semel-projects in $XDG_CACHE_HOME or ~/.cache
#   SEMEL=path/to/semel takes a binary that is built already.
#
# Exit 0: every project is certified. Exit 1: one is refused, or a verifier errs. Exit 69: something is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1-} in -h | --help) sed -n '2,18s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
for tool in .tools/bin/uv .tools/poetry/bin/poetry .tools/node/node_modules/@sigstore/verify; do
    [ -e "$tool" ] || { printf '%s is missing; scripts/setup.sh makes it\n' "$tool" >&2; exit 69; }
done
for program in git node npm openssl ssh-keygen python3 cargo; do
    command -v "$program" >/dev/null || { printf '%s is missing\n' "$program" >&2; exit 69; }
done
# The list of authorities of this machine, for clients that bring one of their own.
machine=/etc/ssl/certs/ca-certificates.crt
if [ -r "$machine" ]; then
    [ -n "${SSL_CERT_FILE-}${SSL_CERT_DIR-}" ] || export SSL_CERT_FILE=$machine
    [ -n "${NODE_EXTRA_CA_CERTS-}" ] || export NODE_EXTRA_CA_CERTS=$machine
fi
if [ -z "${SEMEL-}" ]; then
    cargo build --quiet --release --locked -p semel --bins
    SEMEL=$PWD/target/release/semel
fi
export SEMEL
exec .tools/bin/python -B scripts/projects/run.py "$@"
