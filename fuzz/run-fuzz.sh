#!/usr/bin/env bash
# Runs every fuzz target in parallel, one process each, and prints a table.
# usage: run-fuzz.sh SECONDS OUT_DIR [TARGET...]
# The folder of this script, or DJINN_FUZZ_BIN and DJINN_FUZZ_DATA, hold the program `djinn-fuzz` and
# the folder with `testdata`. The corpus stays in OUT_DIR/corpus, so that a later run continues. Exits
# with 1 if a target violates a property; the inputs are in OUT_DIR/crashes, together with slow ones.
set -euo pipefail
if (($# < 2)); then
  sed -n '2,6s/^# //p' "$0" >&2
  exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
seconds=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
shift 2
program=${DJINN_FUZZ_BIN:-$here/djinn-fuzz}
if [[ ! -x $program && -f $program.xz ]]; then
  xz -dc "$program.xz" >"$program" && chmod +x "$program"
fi
export DJINN_FUZZ_DATA=${DJINN_FUZZ_DATA:-$here}
if [[ ! -d $DJINN_FUZZ_DATA/testdata && -f $here/seeds.tar.xz ]]; then
  tar -xJf "$here/seeds.tar.xz" -C "$here"
fi
mkdir -p "$out/corpus" "$out/crashes" "$out/logs" "$out/dictionaries"

declare -A longest
while read -r name length; do longest[$name]=$length; done < <(DJINN_FUZZ_LIST=1 "$program" 2>/dev/null)
targets=("$@")
((${#targets[@]})) || readarray -t targets < <(printf '%s\n' "${!longest[@]}" | sort)

# fuzz TARGET: runs one target; libFuzzer writes its log and the inputs of crashes.
fuzz() {
  local name=$1
  export DJINN_FUZZ_TARGET=$name
  DJINN_FUZZ_DICTIONARY=1 "$program" >"$out/dictionaries/$name" 2>/dev/null
  mkdir -p "$out/corpus/$name" "$out/crashes/$name"
  find "$DJINN_FUZZ_DATA/testdata/fuzz/$name" -type f ! -name 'slow-*' -exec cp -n {} "$out/corpus/$name" \;
  "$program" "$out/corpus/$name" \
    -dict="$out/dictionaries/$name" -max_len="${longest[$name]}" -max_total_time="$seconds" \
    -timeout=60 -report_slow_units=30 -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="$out/crashes/$name/" \
    >"$out/logs/$name" 2>&1
}
for name in "${targets[@]}"; do
  fuzz "$name" &
done
wait || true

# stat NAME FIELD: last value of a field of libFuzzer's status lines.
stat() { grep -o "$2 *[0-9]*" "$out/logs/$1" | tail -1 | grep -o '[0-9]*$' || echo 0; }
{
  printf '%-12s %8s %12s %10s %8s %9s %8s\n' target seconds inputs inputs/s corpus coverage crashes
  for name in "${targets[@]}"; do
    inputs=$(stat "$name" 'number_of_executed_units:')
    # A crash ends libFuzzer before its final statistics.
    ((inputs)) || inputs=$(grep -o '^#[0-9]*' "$out/logs/$name" | tail -1 | tr -d '#' || echo 0)
    crashes=$(find "$out/crashes/$name" -type f ! -name 'slow-unit-*' | wc -l)
    printf '%-12s %8s %12s %10s %8s %9s %8s\n' "$name" "$seconds" "${inputs:-0}" \
      "$((${inputs:-0} / seconds))" "$(find "$out/corpus/$name" -type f | wc -l)" \
      "$(stat "$name" 'cov:')" "$crashes"
  done
  for name in "${targets[@]}"; do
    for input in "$out/crashes/$name"/*; do
      [[ -f $input ]] || continue
      printf '\n%s: %s\n' "$name" "$input"
      grep -h "^$name: \|overflowed its stack\|ALARM\|out-of-memory" "$out/logs/$name" | head -3 || true
    done
  done
} | tee "$out/table.txt"
[[ -z $(find "$out/crashes" -type f ! -name 'slow-unit-*') ]]
