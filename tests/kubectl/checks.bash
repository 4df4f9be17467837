# shellcheck shell=bash
# What the scripts beside this share: kubectl with KUBECONFIG, and checks that print `ok NAME` or stop.

k() { "$KUBECTL" --kubeconfig "$KUBECONFIG" --cache-dir "$PWD/cache" "$@"; }

ok() { echo "ok $*"; }
fail() {
    echo "FAILED $*" >&2
    exit 1
}
# has TEXT PATTERN NAME: the text must match.
has() {
    grep -qE -- "$2" <<<"$1" || fail "$3: no '$2' in: $1"
    ok "$3"
}
# refused PATTERN NAME COMMAND...: the command must fail and say so.
refused() {
    local pattern=$1 name=$2 output
    shift 2
    if output=$("$@" 2>&1); then fail "$name: it was allowed: $output"; fi
    has "$output" "$pattern" "$name"
}
is() {
    [[ $1 == "$2" ]] || fail "$3: wanted '$2', got '$1'"
    ok "$3"
}
