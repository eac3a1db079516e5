#!/usr/bin/env bash
# ecokv against llama.cpp and OpenVINO GenAI on the same file, run alternately; prints a table of ratios.
#
#   benches/compare/run.sh [--avx2] [FILE.gguf] [options of compare.py, see --help]
#
# --avx2 adds rows for which all of ecokv and llama.cpp are kept to AVX2. Installs the other engines into installed/ (ignored
# by git) the first time: llama-cpp-python's source package, of which llama.cpp's own bench is built (20 minutes on two
# cores), and openvino-genai, both from PyPI. Needs cargo, a C++ compiler, python3 with venv.
#
# Builds that exist already are used instead: ECOKV (the command), LLAMA_BENCH_NATIVE, LLAMA_BENCH_AVX2 (llama-bench),
# OPENVINO_PYTHON (a python that imports openvino_genai).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$here/../..
installed=$here/installed
venv=$installed/venv
llama_cpp_python=0.3.36
openvino_genai=2026.4.1

main() {
    local tiers=native file=$root/testdata/fetched/SmolLM2-135M-Instruct.Q4_1.gguf
    [ "${1:-}" != --avx2 ] || { tiers=native,avx2 && shift; }
    case ${1:-} in
        "" | -*) [ -e "$file" ] || bash "$root/testdata/fetch.sh" ;;
        *) file=$1 && shift ;;
    esac
    mkdir -p "$installed"
    if [ -z "${ECOKV:-}" ]; then
        cargo build --release --locked --manifest-path "$root/Cargo.toml"
        ECOKV=${CARGO_TARGET_DIR:-$root/target}/release/ecokv
    fi
    cargo build --release --locked --example read_memory --manifest-path "$root/Cargo.toml"
    READ_MEMORY=${CARGO_TARGET_DIR:-$root/target}/release/examples/read_memory
    [ -n "${LLAMA_BENCH_NATIVE:-}" ] || llama_native
    [ $tiers = native ] || [ -n "${LLAMA_BENCH_AVX2:-}" ] || llama_avx2
    [ -n "${OPENVINO_PYTHON:-}" ] || openvino
    export ECOKV READ_MEMORY LLAMA_BENCH_NATIVE LLAMA_BENCH_AVX2=${LLAMA_BENCH_AVX2:-} OPENVINO_PYTHON
    python3 "$here/compare.py" --tiers $tiers "$file" "$@"
}

llama_native() {
    LLAMA_BENCH_NATIVE=$installed/native/bin/llama-bench
    [ -x "$LLAMA_BENCH_NATIVE" ] || llama_build native llama-bench -DGGML_NATIVE=ON
}

# Only the library with the kernels depends on the instruction set.
llama_avx2() {
    LLAMA_BENCH_AVX2=$installed/llama-bench-avx2
    [ ! -x "$LLAMA_BENCH_AVX2" ] || return 0
    [ -x "$installed/native/bin/llama-bench" ] || llama_build native llama-bench -DGGML_NATIVE=ON
    llama_build avx2 ggml -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
    cat >"$LLAMA_BENCH_AVX2" <<-WRAPPER
	#!/bin/sh
	LD_LIBRARY_PATH='$installed/avx2/bin' exec '$installed/native/bin/llama-bench' "\$@"
	WRAPPER
    chmod +x "$LLAMA_BENCH_AVX2"
}

# GCC 12 miscompiles the tile configuration of AMX at -O3.
llama_build() { # folder target cmake-option...
    local build=$installed/$1 target=$2 source=$installed/llama_cpp_python-$llama_cpp_python
    shift 2
    pip_install cmake ninja
    if [ ! -d "$source" ]; then
        "$venv/bin/pip" download --quiet --no-deps --no-binary llama-cpp-python --dest "$installed" \
            llama-cpp-python==$llama_cpp_python
        tar -xzf "$source.tar.gz" -C "$installed"
    fi
    PATH=$venv/bin:$PATH cmake -S "$source/vendor/llama.cpp" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_C_FLAGS_RELEASE="-O2 -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" -DBUILD_SHARED_LIBS=ON \
        -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF "$@"
    PATH=$venv/bin:$PATH ninja -C "$build" "$target"
}

openvino() {
    OPENVINO_PYTHON=$venv/bin/python
    pip_install openvino-genai==$openvino_genai
}

pip_install() {
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet "$@"
}

main "$@"
