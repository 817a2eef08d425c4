#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The program's help, its man page and its completion say the same: every command and option is in all three, and none is
# described that there is not. Also: the README names the two commands a newcomer needs, and every file that the
# documents link to exists.
# usage: test_docs.sh KVASIR SOURCE_DIR
set -eu

kvasir=$1
top=$2
man=$top/man/kvasir.1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0

wrong() {
    echo "test_docs: $*" >&2
    bad=1
}

# Both print words, one a line.
commands() { "$kvasir" --help | sed -n '/^commands:/,/^$/s/^ \{1,8\}\([a-z][a-z-]*\) .*/\1/p'; }
options() { "$kvasir" "$1" --help | sed -n 's/^ *\(-[A-Za-z], \)\{0,1\}--\([a-z][a-z0-9-]*\).*/\2/p' | grep -vx help; }

# The part of the man page that describes a command.
section() { awk -v name="$1" '/^\.S[sh] / { on = $1 == ".Ss" && $2 == name } on' "$man"; }
# Long options that lines of mdoc on stdin name.
long_options() { awk '{ for (i = 1; i < NF; i++) if ($i == "Fl" && $(i + 1) ~ /^-[a-z]/) print substr($(i + 1), 2) }' | LC_ALL=C sort -u; }

completed() { # what bash offers for the words given; the last one is being typed
    bash --norc -c '
        . "$1"
        shift
        COMP_WORDS=("$@")
        COMP_CWORD=$(($# - 1))
        _kvasir "$1" "${COMP_WORDS[COMP_CWORD]}"
        printf "%s\n" "${COMPREPLY[@]}"' bash "$top/completion/kvasir.bash" "$kvasir" "$@"
}

commands >"$tmp/commands"
[ -s "$tmp/commands" ] || wrong "kvasir --help lists no commands"
grep -v '^\.\\"' "$man" | long_options >"$tmp/mentioned"
printf 'help\nversion\n' >"$tmp/all"

while read -r c; do
    section "$c" >"$tmp/section"
    [ -s "$tmp/section" ] || wrong "man/kvasir.1 has no section for the command $c (.Ss $c)"
    options "$c" | LC_ALL=C sort >"$tmp/have"
    cat "$tmp/have" >>"$tmp/all"
    grep '^\.It ' "$tmp/section" | long_options >"$tmp/described" || :
    for o in $(LC_ALL=C comm -23 "$tmp/have" "$tmp/described"); do
        wrong "man/kvasir.1, section $c: --$o of kvasir $c --help is not described"
    done
    for o in $(LC_ALL=C comm -13 "$tmp/have" "$tmp/described"); do
        wrong "man/kvasir.1, section $c: --$o is described, kvasir $c --help does not have it"
    done
    if command -v bash >/dev/null; then
        completed "" | grep -qx -e "$c" || wrong "completion/kvasir.bash does not complete the command $c"
        completed "$c" -- >"$tmp/completed"
        while read -r o; do
            grep -qx -e "--$o" "$tmp/completed" || wrong "completion/kvasir.bash does not complete kvasir $c --$o"
        done <"$tmp/have"
    fi
done <"$tmp/commands"

# A section for a command that there is not; an option in the text that no command has.
awk '/^\.Sh / { on = $2 == "COMMANDS" } on && /^\.Ss / { print $2 }' "$man" | while read -r c; do
    grep -qx -e "$c" "$tmp/commands" || echo "$c"
done >"$tmp/extra"
while read -r c; do
    wrong "man/kvasir.1 describes the command $c, kvasir --help does not list it"
done <"$tmp/extra"
while read -r o; do
    grep -qx -e "$o" "$tmp/all" || wrong "man/kvasir.1 names --$o, which no command has"
done <"$tmp/mentioned"

for words in './dev demo' './dev test'; do
    grep -q -F -e "$words" "$top/README.md" || wrong "README.md does not name $words"
done

# Commands and options in the README's examples: lines that begin with ./dev kvasir or kvasir.
sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$top/README.md" | grep -E '^ *(\$ )?(\./dev )?kvasir [a-z]' |
    sed 's/.*kvasir \([a-z]\)/\1/; s/ #.*//' >"$tmp/examples" || :
while read -r c rest; do
    if ! grep -qx -e "$c" "$tmp/commands"; then
        wrong "README.md: there is no command kvasir $c"
        continue
    fi
    options "$c" >"$tmp/have"
    for o in $(printf '%s\n' "$rest" | grep -oE -e '(^| )--[a-z][a-z0-9-]*' | tr -d ' '); do
        [ "$o" = --help ] || grep -qx -e "${o#--}" "$tmp/have" || wrong "README.md: kvasir $c has no option $o"
    done
done <"$tmp/examples"

for doc in "$top"/*.md "$top"/docs/*.md; do
    grep -oE '\]\([^)# ]+|<img src="[^"]+' "$doc" | sed 's/^](//; s/^<img src="//' | grep -v '^[a-z]*:' >"$tmp/links" || :
    while read -r link; do
        [ -e "$(dirname "$doc")/$link" ] || wrong "${doc#"$top"/}: there is no $link"
    done <"$tmp/links"
done

exit $bad
