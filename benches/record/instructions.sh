#!/usr/bin/env bash
# Instructions of one decode step and of one prompt block, counted by callgrind, against benches/record/instructions.
#
#   benches/record/instructions.sh           # fails where a count is more than 3 % off
#   benches/record/instructions.sh record    # writes the counts of this build
#
# One thread and AVX2, the widest set that valgrind knows: the same counts on every machine that has it. Another compiler
# may move them. A count is what one more repetition of `ecokv bench` adds to a run, so opening the model is not in it.
# Needs valgrind and a release build of the command, or ECOKV, a command to count.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

record=benches/record/instructions
ecokv=${ECOKV:-${CARGO_TARGET_DIR:-target}/release/ecokv}
tolerance=3
decode_steps=16
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

main() {
    [ -x "$ecokv" ] || { echo "$ecokv: build it first, cargo build --release" >&2 && return 1; }
    counts >"$scratch/counts"
    if [ "${1:-}" = record ]; then
        { echo "# $(rustc --version)" && cat "$scratch/counts"; } >"$record"
        cat "$record"
    else
        compare
    fi
}

# file figure instructions
counts() {
    local model file
    for model in examples/models/tinyvlm-q8_0.gguf testdata/models/llama-mixedq/model.gguf; do
        file=$(basename "$(dirname "$model")")/$(basename "$model")
        echo "$file decode-step-at-64 $(($(repetition "$model" -p 0 -n $decode_steps -d 64) / decode_steps))"
        echo "$file prompt-of-128 $(repetition "$model" -p 128 -n 0)"
    done
}

repetition() { # model flags...
    echo $(($(instructions 2 "$@") - $(instructions 1 "$@")))
}

instructions() { # repetitions model flags...
    local repetitions=$1 model=$2
    shift 2
    if ! valgrind --tool=callgrind --callgrind-out-file=/dev/null \
        "$ecokv" bench -m "$model" -t 1 --dispatch avx2 -r "$repetitions" "$@" >"$scratch/out" 2>"$scratch/err"; then
        cat "$scratch/err" >&2
        return 1
    fi
    sed -n 's/^.*Collected : \([0-9]*\).*$/\1/p' "$scratch/err"
}

compare() {
    awk -v tolerance=$tolerance -v record=$record '
        FNR == NR {if (!/^#/) recorded[$1 " " $2] = $3; next}
        {
            was = recorded[$1 " " $2]
            if (!was) {print $1, $2 ": " $3 ", not recorded"; bad = 1; next}
            off = 100 * ($3 / was - 1)
            printf "%s %s: %d, recorded %d, %+.2f %%\n", $1, $2, $3, was, off
            if (off > tolerance || off < -tolerance) bad = 1
        }
        END {
            if (bad) print "more than " tolerance " % off; if that is meant: benches/record/instructions.sh record"
            exit bad
        }' $record "$scratch/counts"
}

main "$@"
