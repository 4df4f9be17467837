# Runs cargo's tests, and the few that failed once more, each by itself. Sourced by dev/test.
# shellcheck shell=bash

# More failures than this are no matter of chance.
readonly FEW_FAILURES=3

# tests COMMAND...: runs cargo's tests by it. A test that fails among others and passes alone with the same seed is told as
# "UNSTEADY: NAME", which the summary repeats: it is a defect of the test or of the product, found at a bad moment.
tests() {
    local log status=0 failed=() name seed
    log=$(mktemp "${TMPDIR:-/tmp}/midflight-tests.XXXXXX")
    "$@" --no-fail-fast 2>&1 | tee "$log" || status=$?
    if ((status != 0)) && every_failure_has_a_name "$log"; then
        mapfile -t failed < <(failed_tests "$log")
    fi
    if ((${#failed[@]} == 0 || ${#failed[@]} > FEW_FAILURES)); then
        rm -f "$log"
        return "$status"
    fi
    status=0
    for name in "${failed[@]}"; do
        seed=$(seed_of "$name" "$log")
        say "once more, alone: $name"
        if env ${seed:+"MIDFLIGHT_SEED=$seed"} "$@" --no-fail-fast -- --exact "$name"; then
            echo "UNSTEADY: $name failed among others and passed alone"
        else
            status=1
        fi
    done
    rm -f "$log"
    return "$status"
}

failed_tests() { sed -nE 's/^test (.+) \.\.\. FAILED$/\1/p' "$1"; }

# A program that died or could not be built says no name: then nothing is tried again.
every_failure_has_a_name() {
    local counted named
    counted=$(awk '/^test result:/ { n += $6 } END { print n + 0 }' "$1")
    named=$(failed_tests "$1" | wc -l)
    ((counted == named)) && ! grep -qE '^error: (could not compile|.*process didn.t exit successfully.*signal)|\(signal: ' "$1"
}

# What a test drew by chance, as it printed it when it failed.
seed_of() {
    awk -v heading="---- $1 stdout ----" '
        /^---- .* stdout ----$/ { inside = ($0 == heading) }
        inside && match($0, /MIDFLIGHT_SEED=[0-9]+/) { print substr($0, RSTART + 15, RLENGTH - 15); exit }' "$2"
}
