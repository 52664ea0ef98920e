# The helper of the incident: its own retry transaction owns the worktree's index.lock for a moment, in every run.
# usage: helper.sh LOCK STREAM COMMAND...
lock=$1 stream=$2
shift 2
echo '{"event":"RunStarted"}' >> "$stream"
: > "$lock"
( sleep 0.4; rm -f "$lock" ) &
"$@"
status=$?
wait
if [ "$status" = 0 ]; then
    echo '{"event":"NodeStarted"}' >> "$stream"
else
    echo '{"event":"RunFailed"}' >> "$stream"
fi
exit "$status"
