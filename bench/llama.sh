#!/bin/sh
# SPDX-License-Identifier: MIT
#
# One process of ours against one of llama.cpp, on the same libggml, file and number of threads, taking turns:
#
#     bench/llama.sh ROOT MODEL [THREADS [ROUNDS [PP [TG]]]]
#     bench/llama.sh ROOT MODEL THREADS ROUNDS load
#
# ROOT is a Debian testing root with the package llama.cpp-tools (see bench/README.md). Prints each round, then medians
# and the ratio of speeds (above 1: ours is faster). "load" compares the seconds from the start of a process to where the
# model, in the page cache, is ready for its first token. Run it on an idle machine, as root (for chroot).
set -eu
[ $# -ge 2 ] || { sed -n '/^# /s/^# *//p' "$0" >&2; exit 2; }
root=$1 model=$(readlink -f -- "$2") threads=${3:-1} rounds=${4:-5} pp=${5:-256} tg=${6:-64}
top=$(cd -- "$(dirname -- "$0")/.." && pwd)
ours=$top/build/release/bench/bench_engine
[ -x "$root/usr/bin/llama-bench" ] || { echo "llama.sh: no usr/bin/llama-bench in $root" >&2; exit 1; }
[ -x "$ours" ] || { echo "llama.sh: build the release preset first: ./dev bench" >&2; exit 1; }

# Both run inside ROOT, with its libggml: the same version built by another compiler differs more than the engines do.
# shellcheck disable=SC2016 # expanded by the inner shell
inside() {
    unshare --mount --propagation private -- sh -eu -c '
        root=$1 file=$2 program=$3
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        touch "$root/tmp/model.gguf" "$root/tmp/bench_engine"
        mount --bind "$file" "$root/tmp/model.gguf"
        mount --bind "$program" "$root/tmp/bench_engine"
        shift 3
        exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root "$@"
    ' sh "$root" "$model" "$ours" "$@" 2>/dev/null
}

theirs() { # prints "pp RATE" and "tg RATE"
    inside llama-bench -m /tmp/model.gguf -o jsonl -r 1 -t "$threads" -p "$pp" -n "$tg" |
        sed -n 's/.*"n_gen": *\([0-9]*\).*"avg_ts": *\([0-9.]*\).*/\1 \2/p' |
        awk '{ print ($1 > 0 ? "tg" : "pp"), $2 }'
}

now() { date +%s%N; }

load_ours() {
    t0=$(now)
    inside /tmp/bench_engine /tmp/model.gguf "$threads" 0 0 1 >/dev/null
    echo "load $(now) $t0" | awk '{ print $1, 1e9 / ($2 - $3) }'
}

load_theirs() { # without the one token that it cannot do without
    t0=$(now)
    ns=$(inside llama-bench -m /tmp/model.gguf -o jsonl -r 1 -t "$threads" -p 0 -n 1 --no-warmup |
        sed -n 's/.*"avg_ns": *\([0-9]*\).*/\1/p')
    echo "load $(now) $t0 $ns" | awk '{ print $1, 1e9 / ($2 - $3 - $4) }'
}

results=$(mktemp)
trap 'rm -f "$results"' EXIT
round=1
[ "$pp" != load ] || cat -- "$model" >/dev/null
while [ "$round" -le "$rounds" ]; do
    if [ "$pp" = load ]; then
        load_ours | sed 's/^/ours /' >>"$results"
        load_theirs | sed 's/^/llama /' >>"$results"
        tail -n 2 "$results" | awk '{ printf "%s load %.3f s ", $1, 1 / $3 } END { print "" }'
        round=$((round + 1))
        continue
    fi
    inside /tmp/bench_engine /tmp/model.gguf "$threads" "$pp" "$tg" 1 | sed -n 's/^\([pt][pg] \)/ours \1/p' >>"$results"
    theirs | sed 's/^/llama /' >>"$results"
    tail -n 4 "$results" | tr '\n' ' '
    echo
    round=$((round + 1))
done
awk -v model="${model##*/}" -v threads="$threads" '
    { v[$1, $2, ++n[$1, $2]] = $3 }
    function median(who, what,    i, j, t, m) {
        m = n[who, what]
        for (i = 1; i <= m; i++) for (j = i + 1; j <= m; j++)
            if (v[who, what, j] < v[who, what, i]) { t = v[who, what, i]; v[who, what, i] = v[who, what, j]; v[who, what, j] = t }
        return m % 2 ? v[who, what, (m + 1) / 2] : (v[who, what, m / 2] + v[who, what, m / 2 + 1]) / 2
    }
    END {
        split("pp tg load", kinds, " ")
        for (k = 1; k <= 3; k++) if (n["ours", kinds[k]] && n["llama", kinds[k]]) {
            a = median("ours", kinds[k]); b = median("llama", kinds[k])
            if (kinds[k] == "load") {
                printf "%s, %d threads, load: ours %.3f, llama.cpp %.3f s, ratio of times %.3f\n", model, threads, 1 / a, 1 / b, b / a
                continue
            }
            printf "%s, %d threads, %s: ours %.2f, llama.cpp %.2f tokens/s, ratio %.3f\n", model, threads, kinds[k], a, b, a / b
        }
    }' "$results"
