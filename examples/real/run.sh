#!/usr/bin/env bash
# The main job on a real project: a published source distribution becomes a git repository, an agent bumps a
# dependency and locks again through the gateway, the proposal is certified in a fresh generation, and the gate
# accepts exactly that tree. Then three agents that misbehave on purpose are refused, each by name.
#
# Everything it makes lies in target/examples/real. It needs the package registries.
# Usage: examples/real/run.sh [--keep-going]
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
built=${CARGO_TARGET_DIR:-$root/target}/debug
scripts/setup.sh
printf 'building semel: some minutes in a fresh clone\n' >&2
cargo build --quiet --locked -p semel
export PATH="$root/.tools/bin:$PATH"
# uv brings certificates of its own; the machine's may know more.
system=/etc/ssl/certs/ca-certificates.crt
if [ -z "${SSL_CERT_FILE-}" ] && [ -r "$system" ]; then export SSL_CERT_FILE=$system; fi
work=$root/target/examples/real
state=$work/state
rm -rf "$work"
mkdir -p "$work"
semel() { "$built/semel" --state "$state" "$@"; }
say() { printf '\n== %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

project=dirty_equals version=0.11
say "1. $project $version, from its published source distribution to a git repository"
pip download --quiet --no-deps --no-binary "$project" --dest "$work/sdist" "$project==$version"
mkdir "$work/repository"
tar -xzf "$work/sdist/$project-$version.tar.gz" --strip-components 1 -C "$work/repository"
rm -f "$work/repository/PKG-INFO"
git_() {
    git -C "$work/repository" -c user.name=example -c user.email=example@example.invalid -c commit.gpgsign=false "$@"
}
git_ init --quiet --initial-branch main
git_ add --all
git_ commit --quiet --message "$project $version as published"
base=$(git_ rev-parse HEAD)
echo "base commit $base, $(git_ ls-files | wc -l) files"

job() { # NAME AGENT TIMEOUT [EXTRA-ARGUMENT]
    local argument=${4:+, \"$4\"}
    cat >"$work/$1.toml" <<TOML
job = "$1"
repository = "repository"
base = "$base"

[agent]
command = ["python3", "~/$2"$argument]
tools = ["uv"]
pass = ["SSL_CERT_FILE", "HTTPS_PROXY", "UV_DEFAULT_INDEX"]
files = { "$2" = "$root/examples/real/agents/$2", "semel_client.py" = "$root/examples/real/agents/semel_client.py" }
timeout = "$3"

[certify]
install = ["uv"]
install_args = { uv = ["--group", "dev"] }
test = ["python", "-m", "pytest"]
timeout = "10m"
min_tests = 600

[output]
branch = "semel/$1"
TOML
}

say "2. an agent bumps a dependency and locks again through the gateway; the proposal is certified"
job bump bump.py 10m
semel run "$work/bump.toml" --json >"$work/bump.json"
field() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$work/bump.json" "$1"; }
echo "certificate $(field envelope)"

say "3. the gate accepts exactly that tree"
candidate=$(git_ rev-parse semel/bump)
semel key show --policy | sed "s/^recipe = .*/recipe = \"$(field recipe)\"/" >"$work/gate.toml"
gate() { semel gate --certificate "$(field envelope)" --record "$(field install_record)" --repository "$work/repository" \
    --policy "$work/gate.toml" "$@"; }
gate --commit "$candidate"
if gate --commit "$base" >"$work/refused.txt" 2>&1; then fail "the gate accepted another tree"; fi
grep -q 'REFUSED tree' "$work/refused.txt" || fail "the gate refused the base for another reason"
echo "and it refuses the base commit: $(grep 'REFUSED tree' "$work/refused.txt" | cut -c1-90)..."

refused() { # JOB EXIT WORDS
    local got=0
    semel run "$work/$1.toml" >"$work/$1.txt" 2>&1 || got=$?
    sed 's/^/   | /' "$work/$1.txt"
    [ "$got" = "$2" ] || fail "$1 ended with exit $got instead of $2"
    grep -q "$3" "$work/$1.txt" || fail "$1 was not refused as $3"
}

say "4. an agent that leaves half a lockfile and never ends: timed_out, and its draft is dirty"
job half-lock half_lock.py 5s
refused half-lock 24 timed_out

say "5. an agent that leaves a virtual environment in its proposal: tree_not_empty"
job leftover leftover_venv.py 1m
refused leftover 21 tree_not_empty

say "6. an agent that tries to open the journal and the signing key, and to approve itself"
job burglar burglar.py 1m "$state"
refused burglar 3 agent_failed
draft=$(semel volume list --json | python3 -c '
import json, sys
volumes = [v for v in json.load(sys.stdin)["volumes"] if v["job"] == "burglar"]
print(volumes[-1]["generation"])')
account=$state/volumes/burglar/$draft/work/stdout
sed 's/^/   | /' "$account"
if grep -Eq 'OPENED|APPROVED' "$account"; then fail "the burglar got in"; fi
[ "$(grep -c '^open .*: E' "$account")" = 5 ] || fail "not every open failed"
[ "$(grep -c 'approve: 401 unauthorized' "$account")" = 2 ] || fail "an approval was not unauthorized"

say "done: one certificate, one passing gate, three refusals. Look around in $work"
