# shellcheck shell=bash
# How the SkyPilot tasks of this folder keep their results, on machines that may be taken away at any moment. Not a job by itself.
#   keep runs/NAME BUCKET   brings back what BUCKET/NAME has, then copies the folder there every KEEP_EVERY seconds (default 300) and
#                           at the end, even after a failure.
# A bucket can hold neither links nor an SQLite file that is being written: the folder is on the machine's own disk.
keep() {
  folder=$1 copy=$2/$(basename "$1")
  if [ ! -e "$folder" ] && [ -e "$copy" ]; then cp -r "$copy" "$folder"; fi
  mkdir -p "$folder" "$copy"
  while sleep "${KEEP_EVERY:-300}" > /dev/null 2>&1; do save "$((${KEEP_EVERY:-300} / 2))" || true; done &
  keeper=$!
  trap 'kill "$keeper" || true; save 0' EXIT
}

# Copies files that were not written to for this many seconds, so that none is copied half-written. Stored answers are copied by
# SQLite, even while a run adds to them. What links point at comes last: a training whose copy has `adapter` is complete.
save() (
  cd "$folder"
  exec 9> .keeping
  flock 9  # the last copy waits for one that is under way
  scratch=$(mktemp)
  find . -name '*.sqlite' | while read -r file; do
    python -c 'import sqlite3, sys; source, copy = map(sqlite3.connect, sys.argv[1:]); source.backup(copy)' "$file" "$scratch"
    mkdir -p "$copy/$(dirname "$file")"
    cp "$scratch" "$copy/$file"
    : > "$scratch"
  done
  rm "$scratch"
  for kind in f l; do
    find . -type "$kind" ! -path '*/.*' ! -name '*.sqlite*' ! -newermt "-$1 seconds" -exec cp -rL --update --parents -t "$copy" {} +
  done
)
