# SPDX-License-Identifier: MIT
#
# Completion of kvasir's commands and options for bash. Both are read from the program's own help, so they are always
# those of the installed version: the lines of `kvasir help` that begin with blanks and a lower-case word are commands,
# and whatever begins with - in `kvasir COMMAND --help` is an option.

_kvasir_commands() {
    "$1" help 2>/dev/null | sed -n 's/^ \{1,8\}\([a-z][a-z-]*\)\( .*\)*$/\1/p'
}

_kvasir_options() {
    "$1" "$2" --help 2>/dev/null | grep -oE '(^|[[:space:],[])-{1,2}[A-Za-z][A-Za-z0-9-]*' | tr -d ' \t,['
}

_kvasir() {
    local program=$1 word=$2 command=
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${COMP_WORDS[i]} == -* ]] && continue
        command=${COMP_WORDS[i]}
        break
    done
    if [[ -z $command ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvasir_commands "$program") --help --version" -- "$word")
    elif [[ $command == help ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvasir_commands "$program")" -- "$word")
    elif [[ $command == cache && $word != -* && $i == $((COMP_CWORD - 1)) ]]; then
        mapfile -t COMPREPLY < <(compgen -W "ls rm gc" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_kvasir_options "$program" "$command")" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}

complete -o filenames -F _kvasir kvasir
