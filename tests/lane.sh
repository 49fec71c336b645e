# shellcheck shell=bash
# Sourced by the lanes that start real servers (tests/vllm/run.sh, tests/servers/run.sh).
# usage: run_lane FOLDER [pytest arguments]      runs pytest, and ends every server in any case
# SERVER_NOTES: a file per server under way with its process group, and the servers' logs.
run_lane() {
  local folder=$1 argument status=0
  shift
  SERVER_NOTES=$(mktemp -d)
  export SERVER_NOTES
  lane_pytest=
  trap stop_everything EXIT
  trap 'exit 130' INT TERM

  local paths=                           # without one pytest would run every test of the repository
  for argument; do [ -e "${argument%%::*}" ] && paths=given; done
  [ -n "$paths" ] || set -- "$folder" "$@"
  # In the background, so that a signal to the script is acted on at once and not when pytest ends.
  "${PYTEST_PYTHON:-.venv/bin/python}" -m pytest -p no:cacheprovider -q -o norecursedirs=.hypothesis "$@" &
  lane_pytest=$!
  wait "$lane_pytest" || status=$?
  lane_pytest=
  exit "$status"
}

stop_everything() {
  local status=$? note
  [ -n "$lane_pytest" ] && kill -KILL "$lane_pytest" 2>/dev/null
  for note in "$SERVER_NOTES"/*.pid; do
    [ -e "$note" ] && kill -KILL -- "-$(cat "$note")" 2>/dev/null
  done
  if [ "$status" -eq 0 ]; then rm -rf "$SERVER_NOTES"; else echo "the servers' logs are in $SERVER_NOTES"; fi
  exit "$status"
}
