#!/usr/bin/env bash
# gpu-studies.sh [list | run NAME... | small NAME...]: the studies of the papers' claims that want a card, 8 minutes each.
#
#   list    (default) every study: its claim, its state, what a run costs
#   run     on the card of this machine, one after the other, each at most LIMIT seconds (480): the same command goes on
#           where it was cut; without names all that are not finished
#   small   the same study as a laptop runs it (fovea reproduce)
#
# Results: runs/gpu/NAME/compare.json, which names the machine; a copy goes to $OUT where that is set. A finished study has
# runs/gpu/NAME/finished. The text is the Python code of the installed torch wheel (41 MB as bytes), so nothing is carried
# along; FOVEA_TEXT is another file or folder, of at most 50 MB. Minutes are estimates for an H100 (1.3 million tokens a second
# at 10 million parameters); no study has run on one yet.
#
# SPDX-FileCopyrightText: The Fovea authors
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$(dirname "$0")/.."
program=${FOVEA_PROGRAM:-build/bin/fovea}
limit=${LIMIT:-480}

# 10 million parameters: 20 million bytes a run, contexts of 512.
ten="model.layers=8 model.width=320 model.heads=5 model.ffn_width=864 model.context=512 train.sequence_length=512"
ten+=" train.batch_rows=32 train.steps=1200 train.schedule.warmup_steps=100 train.evaluation_tokens=524288"
# The recipes' own sizes, on five times the text.
own="train.steps=2000 train.schedule.warmup_steps=100 train.evaluation_tokens=524288"
rates="compare.tuning.values=[1.0e-3,2.0e-3,4.0e-3]"

# name | claim | recipe | minutes in all | overrides
studies() {
  cat << TABLE
focal-temperature|focal/fig-8a|recipes/laptop/focal-temperature.yaml|16|$ten $rates
focal-bounds|focal/fig-8b|recipes/laptop/focal-bounds.yaml|16|$ten $rates
focal-context|focal/fig-4|recipes/laptop/focal-context.yaml|12|$own
focal-scaling|focal/fig-2|recipes/laptop/scaling.yaml|8|$own model.qk_norm=head_rms compare.seeds=[0,1,2,3,4]
mta-quartet|mta/table-2|recipes/laptop/quartet.yaml|24|$ten compare.seeds=[0,1,2,3,4] compare.equivalence_margin=0.02
mta-components|mta/table-5|recipes/laptop/mta-components.yaml|40|$own
mta-kernels|mta/kernels|recipes/laptop/mta-kernels.yaml|32|$own
mta-scaling|mta/fig-6/scaling|recipes/laptop/mta-scaling.yaml|24|$own
focus-systems|focus/7b|recipes/laptop/systems.yaml|24|$ten compare.seeds=[0,1,2,3,4] compare.equivalence_margin=0.02
positions|lecture/1.4|recipes/lecture/positions.yaml|16|$ten $rates
biases|lecture/1.1/biases|recipes/lecture/biases.yaml|8|$ten $rates
dropout|lecture/2.5/dropout|recipes/lecture/dropout.yaml|8|$ten $rates
head-ratio|lecture/2.2|recipes/lecture/head-ratio.yaml|12|$own
sparse|lecture/4.2/sparse|recipes/lecture/sparse.yaml|12|$ten $rates
TABLE
}

names() { studies | cut -d'|' -f1; }
row() { studies | grep "^$1|" || { echo "gpu-studies.sh: no study '$1'; known: $(names | tr '\n' ' ')" >&2; exit 2; }; }

list() {
  printf '%-18s %-20s %-11s %s\n' study claim state "minutes on a card, about"
  studies | while IFS='|' read -r name claim _ minutes _; do
    state="not run"
    [ ! -f "runs/gpu/$name/compare.json" ] || state="begun"
    [ ! -f "runs/gpu/$name/finished" ] || state="finished"
    printf '%-18s %-20s %-11s %s\n' "$name" "$claim" "$state" "$minutes"
  done
}

run_one() {
  local name=$1 recipe overrides status=0 text=()
  IFS='|' read -r _ _ recipe _ overrides < <(row "$name")
  [ -z "${FOVEA_TEXT:-}" ] || text=("data.sources.0.path=$FOVEA_TEXT")
  echo "gpu-studies.sh: $name, at most $limit s"
  # shellcheck disable=SC2086 # overrides are words
  timeout --signal=TERM --kill-after=30 "$limit" "$program" compare "$recipe" run_folder="runs/gpu/$name" \
    train.device="${FOVEA_DEVICE:-cuda}" train.dtype=bfloat16 $overrides "${text[@]}" || status=$?
  [ "$status" -ne 0 ] || touch "runs/gpu/$name/finished"
  if [ -n "${OUT:-}" ] && [ -f "runs/gpu/$name/compare.json" ]; then
    cp "runs/gpu/$name/compare.json" "$OUT/$name.json"
  fi
  case $status in
    0) ;;
    124) echo "gpu-studies.sh: $name was cut after $limit s; run it again to go on" ;;
    *) return "$status" ;;
  esac
}

mode=${1:-list}
shift $(($# > 0 ? 1 : 0))
case $mode in
  list) list ;;
  run)
    if [ $# -eq 0 ]; then
      for name in $(names); do [ -f "runs/gpu/$name/finished" ] || set -- "$@" "$name"; done
    fi
    for name in "$@"; do run_one "$name"; done
    ;;
  small)
    [ $# -gt 0 ] || { echo "gpu-studies.sh: small NAME..." >&2; exit 2; }
    for name in "$@"; do
      IFS='|' read -r _ claim _ _ _ < <(row "$name")
      "$program" reproduce "$claim"
    done
    ;;
  *) echo "gpu-studies.sh: expected list, run or small; got '$mode'" >&2; exit 2 ;;
esac
