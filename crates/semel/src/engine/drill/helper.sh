# The helper of the incident: its own retry transaction owns the worktree's index.lock for a moment, in every run.
# usage: helper.sh LOCK SECONDS STREAM COMMAND...
lock=$1 seconds=$2 stream=$3
shift 3
echo '{"event":"RunStarted"}' >> "$stream"
: > "$lock"
( sleep "$seconds"; rm -f "$lock" ) &
"$@"
status=$?
wait
if [ "$status" = 0 ]; then
    echo '{"event":"NodeStarted"}' >> "$stream"
else
    echo '{"event":"RunFailed"}' >> "$stream"
fi
exit "$status"
