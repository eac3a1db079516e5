#!/bin/sh
# Proves that no panic is reachable from ecokv-core, and that the proof would notice one.
set -u
cd "$(dirname "$0")" || exit 1
cargo build --release || { echo "a panic is reachable" >&2; exit 1; }
if log=$(cargo build --release --features control 2>&1); then
    echo "the control linked: this check proves nothing" >&2
    exit 1
fi
case $log in
*a_panic_is_reachable*) echo "no panic is reachable; the control fails as it must" ;;
*) echo "$log" >&2; exit 1 ;;
esac
