#!/usr/bin/env bash
# Makes ready what the tests and examples need: Python tools in .tools inside the clone, and, where it runs as root
# and apt-get is there, missing packages of the system. What cannot be had is printed; it changes nothing else.
#
# Usage: scripts/setup.sh
# Exit 0: what is required is there. Exit 1: something required is missing; optional things are only printed. Exit 64: usage.
set -euo pipefail
case ${1-} in
    '') ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) printf 'usage: scripts/setup.sh\n' >&2; exit 64 ;;
esac
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

# One line a program: its name, the package of the system that brings it, and whether nothing works without it.
programs='
git      git             required
cc       gcc             required
python3  python3         required
curl     curl            optional
node     nodejs          optional
npm      npm             optional
openssl  openssl         optional
mkfs.ext4 e2fsprogs      optional
mkfs.xfs xfsprogs        optional
mkfs.btrfs btrfs-progs   optional
strace   strace          optional
lowntfs-3g ntfs-3g       optional
ssh-keygen openssh-client optional
bsdtar   libarchive-tools optional
'
PATH="$PATH:/usr/sbin:/sbin"

missing_packages() {
    while read -r program package _; do
        [ -z "$program" ] || has "$program" || printf '%s\n' "$package"
    done <<<"$programs"
    if has python3 && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
        printf 'python3-venv\n'
    fi
}

install_packages() {
    local packages
    packages=$(missing_packages | sort -u)
    [ -n "$packages" ] || return 0
    if [ "$(id -u)" = 0 ] && has apt-get; then
        say "installing with apt-get:" $packages
        local options=(-qq -o DPkg::Lock::Timeout=120)
        export DEBIAN_FRONTEND=noninteractive
        apt-get "${options[@]}" update >/dev/null 2>&1 || say "apt-get update failed; trying with the lists that are there"
        local package
        for package in $packages; do
            apt-get "${options[@]}" install -y --no-install-recommends "$package" >/dev/null 2>&1 \
                || say "apt-get could not install $package"
        done
    else
        say "not root, or no apt-get: these packages are left to you:" $packages
    fi
}

check_programs() {
    local lacking=0
    while read -r program package need; do
        [ -n "$program" ] || continue
        has "$program" && continue
        if [ "$need" = required ]; then
            say "MISSING $program (package $package): required"
            lacking=1
        else
            say "missing $program (package $package): the tests that need it are skipped, and counted"
        fi
    done <<<"$programs"
    if ! has cargo || ! has rustc; then
        say "MISSING cargo or rustc: install a Rust toolchain, $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer"
        lacking=1
    fi
    if has python3 && ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        say "MISSING python3 3.11 or newer: this one is $(python3 --version 2>&1)"
        lacking=1
    fi
    return "$lacking"
}

python_tools() {
    local want stamp=.tools/stamp
    # The interpreter is part of it: a venv dies with the python that it was made of.
    want="$(sha256sum scripts/tools.txt | cut -d' ' -f1) $(python3 -c 'import sys; print(sys.base_prefix, sys.version.split()[0])') $PWD"
    if ! { [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && .tools/bin/uv --version >/dev/null 2>&1; }; then
        say "making .tools (uv, pytest, securesystemslib, cryptography)"
        rm -rf .tools
        python3 -m venv .tools
        .tools/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r scripts/tools.txt
        .tools/bin/uv --version >/dev/null
        printf '%s\n' "$want" >"$stamp"
    fi
}

# Poetry brings fifty packages of its own, so it has an environment of its own.
poetry_tools() {
    local place=.tools/poetry want
    want="$(sha256sum scripts/poetry.txt | cut -d' ' -f1) $(cat .tools/stamp)"
    [ "$(cat "$place/stamp" 2>/dev/null)" = "$want" ] && return 0
    say "making $place"
    rm -rf "$place"
    python3 -m venv "$place"
    if "$place/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: \
        -r scripts/poetry.txt && "$place/bin/poetry" --version >/dev/null; then
        printf '%s\n' "$want" >"$place/stamp"
    else
        rm -rf "$place"
        say "pip could not install Poetry: the tests that need it are skipped, and counted"
    fi
}

node_tools() {
    has npm || return 0
    local place=.tools/node want
    want="$(sha256sum scripts/node-tools/package-lock.json | cut -d' ' -f1)"
    [ "$(cat "$place/stamp" 2>/dev/null)" = "$want" ] && return 0
    say "making $place (@sigstore/verify, pnpm, Yarn of both kinds)"
    rm -rf "$place"
    mkdir -p "$place"
    cp scripts/node-tools/package.json scripts/node-tools/package-lock.json "$place/"
    if (cd "$place" && npm ci --ignore-scripts --no-audit --no-fund --silent) >/dev/null 2>&1; then
        printf '%s\n' "$want" >"$place/stamp"
    else
        say "npm could not install it: the test that needs it is skipped, and counted"
    fi
}

# Official clients of the Model Context Protocol, two lines of each, its Inspector and conformance suite, and the Node that they need.
mcp_clients() {
    local want stamp=.tools/mcp/stamp made=scripts/mcp line
    want="$(cat $made/package-lock.json $made/python-?.txt | sha256sum | cut -d' ' -f1) $(cat .tools/stamp)"
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
        return 0
    fi
    if ! has npm; then
        say "missing npm: the tests with clients of the Model Context Protocol are skipped, and counted"
        return 0
    fi
    say "making .tools/mcp (clients, Inspector and conformance suite of the Model Context Protocol)"
    rm -rf .tools/mcp
    mkdir -p .tools/mcp || return 1
    cp $made/package.json $made/package-lock.json .tools/mcp/ || return 1
    # Of all of them only Node itself has to be put together.
    npm ci --prefix .tools/mcp --ignore-scripts --no-audit --no-fund --silent || return 1
    npm rebuild --prefix .tools/mcp --silent node || return 1
    .tools/mcp/node_modules/node/bin/node --version >/dev/null || return 1
    for line in 1 2; do
        .tools/bin/uv venv --quiet --python "$(command -v python3)" ".tools/mcp/python-$line" || return 1
        .tools/bin/uv pip install --quiet --python ".tools/mcp/python-$line/bin/python" --require-hashes \
            --only-binary :all: -r "$made/python-$line.txt" || return 1
    done
    printf '%s\n' "$want" >"$stamp"
}

# uv and Node bring lists of authorities of their own; the machine's may know more, such as a proxy of the house.
machine=/etc/ssl/certs/ca-certificates.crt
if [ -r "$machine" ]; then
    [ -n "${SSL_CERT_FILE-}${SSL_CERT_DIR-}" ] || export SSL_CERT_FILE=$machine
    [ -n "${NODE_EXTRA_CA_CERTS-}" ] || export NODE_EXTRA_CA_CERTS=$machine
fi
install_packages
check_programs
python_tools
poetry_tools
node_tools
mcp_clients || say "the clients of the Model Context Protocol cannot be had: their tests are skipped, and counted"
