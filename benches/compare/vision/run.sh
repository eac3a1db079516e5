#!/usr/bin/env bash
# Vision towers of ecokv against llama.cpp's mtmd on the same projector files and two threads, alternately; prints a table.
#
#   benches/compare/vision/run.sh [ROUNDS]
#
# Needs what ../run.sh installs the first time, and python3 with gguf==0.19.0 and numpy to write the towers. Builds that exist
# already are used instead: ENCODE_PICTURE (the example), MTMD (mtmd.c, compiled), TOWERS (the folder of towers.py).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../../..
installed=$here/../installed
rounds=${1:-3} threads=2
models=$root/testdata/models

main() {
    if [ -z "${ENCODE_PICTURE:-}" ]; then
        cargo build --release --locked --manifest-path "$root/Cargo.toml" -p ecokv --example encode_picture
        ENCODE_PICTURE=${CARGO_TARGET_DIR:-$root/target}/release/examples/encode_picture
    fi
    [ -n "${MTMD:-}" ] || build_mtmd
    if [ -z "${TOWERS:-}" ]; then
        TOWERS=$installed/towers
        [ -d "$TOWERS" ] || { mkdir -p "$TOWERS" && python3 "$here/towers.py" "$TOWERS"; }
    fi
    local samples
    samples=$(mktemp)
    for ((round = 1; round <= rounds; round++)); do
        compare clip-l llava15 336 336
        compare siglip idefics3 512 512
        compare qwen2vl qwen2vl 560 560
        compare qwen25vl qwen25vl 560 560
    done >"$samples"
    table <"$samples"
    rm "$samples"
}

# Both encode the picture twice; the second time counts.
compare() { # tower model width height
    local engine program
    for engine in ecokv mtmd; do
        program=$ENCODE_PICTURE
        [ $engine = ecokv ] || program=$MTMD
        echo "$1 $engine $("$program" "$models/$2/model-f32.gguf" "$TOWERS/$1-f16.gguf" "$3" "$4" 2 $threads | tail -n 1)"
    done
}

# Lines of tower, engine, rows, squares and seconds. Ratios are taken inside a round, of the time for a square: llama.cpp cuts
# SigLIP's picture into an overview and a square, where one is enough.
table() {
    python3 -c '
import statistics, sys
samples = {}
for line in sys.stdin:
    tower, engine, rows, squares, seconds = line.split()
    samples.setdefault(tower, {}).setdefault(engine, []).append((int(rows) // int(squares), float(seconds) / int(squares)))
print("| tower | rows | ecokv, s | llama.cpp, s | llama.cpp / ecokv |\n|---|---|---|---|---|")
for tower, by in samples.items():
    ours, theirs = by["ecokv"], by["mtmd"]
    assert ours[0][0] == theirs[0][0], f"{tower}: {ours[0]} and {theirs[0]} are not the same work"
    ratios = [t[1] / o[1] for o, t in zip(ours, theirs)]
    a, b = (statistics.median(s[1] for s in x) for x in (ours, theirs))
    print(f"| {tower} | {ours[0][0]} | {a:.2f} | {b:.2f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")
'
}

# llama.cpp builds its multimodal library with tools that want more than this comparison.
build_mtmd() {
    local source=$installed/llama_cpp_python-0.3.36/vendor/llama.cpp bin=$installed/native/bin
    [ -d "$bin" ] || { echo "run ../run.sh first, which builds llama.cpp" >&2 && exit 1; }
    MTMD=$installed/mtmd
    [ ! -x "$MTMD" ] || return 0
    g++ -O2 -DNDEBUG -w -std=gnu++17 -DLLAMA_SHARED -DGGML_SHARED -I"$source/include" -I"$source/ggml/include" -I"$source/vendor" \
        -I"$source/tools/mtmd" -I"$source/tools/mtmd/models" -fpermissive -x c "$here/mtmd.c" -x c++ \
        "$source"/tools/mtmd/{clip,mtmd,mtmd-image,mtmd-audio}.cpp "$source"/tools/mtmd/models/*.cpp \
        -o "$MTMD" -L"$bin" -lllama -lggml -lggml-base -lggml-cpu -Wl,-rpath,"$bin"
}

main
