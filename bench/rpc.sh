#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Two ranks of ours against llama.cpp with two RPC servers, one thread each, same libggml and file, in turns:
#
#     bench/rpc.sh ROOT MODEL [STREAMS [ROUNDS]]
#
# ROOT is a Debian testing root with llama.cpp-tools, llama.cpp-tools-extra and libggml0-backend-rpc (bench/README.md).
# Our figures come from bench_streams, theirs from llama-batched-bench, which has its main process on one thread too.
# Everything stays on loopback. Run it on an idle machine, as root (for chroot).
set -eu
[ $# -ge 2 ] || { sed -n '/^# /s/^# *//p' "$0" >&2; exit 2; }
root=$1 model=$(readlink -f -- "$2") streams=${3:-8} rounds=${4:-3}
top=$(cd -- "$(dirname -- "$0")/.." && pwd)
server=/usr/libexec/x86_64-linux-gnu/llama/bin/ggml-rpc-server
ours=$top/build/release/bench/bench_streams
[ -x "$root/usr/bin/llama-batched-bench" ] || { echo "rpc.sh: no llama-batched-bench in $root" >&2; exit 1; }
[ -x "$ours" ] || { echo "rpc.sh: build the release preset first: ./dev bench" >&2; exit 1; }

inside() {
    # shellcheck disable=SC2016 # the inner shell expands these
    unshare --mount --propagation private -- sh -eu -c '
        root=$1 file=$2
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        touch "$root/tmp/model.gguf"
        mount --bind "$file" "$root/tmp/model.gguf"
        shift 2
        exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root "$@"
    ' sh "$root" "$model" "$@" 2>/dev/null
}

# PROMPT GENERATED PARALLEL: prints "prompt tokens/s, generation tokens/s"
theirs() {
    inside llama-batched-bench -m /tmp/model.gguf --rpc 127.0.0.1:50152,127.0.0.1:50153 -ngl 99 -t 1 -tb 1 -c 12288 -b 2048 \
        -ub 512 -fit off -npp "$1" -ntg "$2" -npl "$3" --output-format jsonl |
        sed -n 's/.*"speed_pp": *\([0-9.]*\).*"speed_tg": *\([0-9.]*\).*/\1 \2/p'
}

inside "$server" -t 1 -p 50152 >/dev/null &
inside "$server" -t 1 -p 50153 >/dev/null &
trap 'pkill -f "ggml-rpc-server -t 1 -p 5015[23]" || true' EXIT
sleep 2
round=1
while [ "$round" -le "$rounds" ]; do
    "$top/dev" shell "$ours" "$model" "$streams" 1 2>/dev/null | sed -n 's/^round 0: /ours  /p'
    printf 'rpc   %s streams  %s\n' "$streams" "$(theirs 8 48 "$streams" | cut -d" " -f2) tokens/s"
    printf 'rpc   prompt of 1024  %s\n' "$(theirs 1024 1 1 | cut -d" " -f1) tokens/s"
    printf 'rpc   one stream  %s\n' "$(theirs 8 48 1 | cut -d" " -f2) tokens/s"
    round=$((round + 1))
done
