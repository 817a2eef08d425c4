#!/bin/sh
# SPDX-License-Identifier: MIT
#
# ./dev bench [NAME [ARGS...]]: runs build/release/bench/bench_NAME, or all of them one after the other. Exit status: the
# benchmark's own; with several, 1 when one failed.
set -eu
cd "$(dirname -- "$0")/.."

dir=build/release/bench
names() {
    for f in bench/bench_*.c; do
        [ -e "$f" ] || continue
        name=${f##*/bench_}
        echo "${name%.c}"
    done
}

if [ $# -gt 0 ]; then
    name=$1
    shift
    if [ ! -x "$dir/bench_$name" ]; then
        echo "bench: no benchmark '$name': one of $(names | tr '\n' ' ')" >&2
        exit 2
    fi
    exec "$dir/bench_$name" "$@"
fi

failed=
for name in $(names); do
    echo "== $name"
    "$dir/bench_$name" || failed="$failed $name"
    echo
done
if [ -n "$failed" ]; then
    echo "bench: failed:$failed" >&2
    exit 1
fi
