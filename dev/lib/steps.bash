# Runs the steps of a check one after the other, times each, and sums up. Sourced by dev/test and dev/soak.
#
# A step that fails ends the run: what follows is listed as not run, unless steps_go_on is set. One that exits with 75 was
# skipped and has said why; in CI (CI=true) that is a failure.
# shellcheck shell=bash

steps_passed=0
steps_failed=0
steps_go_on=${steps_go_on:-}
steps_summary=()
steps_log=$(mktemp "${TMPDIR:-/tmp}/midflight-step.XXXXXX")

# step NAME COMMAND...: runs it under a heading. A command that runs cargo's tests counts as that many,
# one that prints "N checked" as N, any other as one.
step() {
    local name=$1 began status=0 outcome
    shift
    if ((steps_failed > 0)) && [[ -z $steps_go_on ]]; then
        steps_summary+=("$(printf '%-34s not run' "$name")")
        return 0
    fi
    began=$(now_ms)
    printf '\n== %s\n' "$name" >&2
    ("$@") 2>&1 | tee "$steps_log" || status=$?
    if ((status == 75)) && [[ ${CI:-} != true ]]; then
        outcome=skipped
    else
        count_results "$status"
        outcome=$( ((status == 0)) && echo passed || echo FAILED)
    fi
    steps_summary+=("$(printf '%-34s %-8s %s' "$name" "$outcome" "$(since "$began")")")
    ((status != 75)) || steps_summary+=("$(sed -n 's/^SKIPPED: /    /p' "$steps_log")")
    mapfile -t -O "${#steps_summary[@]}" steps_summary < <(sed -n 's/^UNSTEADY: /    UNSTEADY: /p' "$steps_log")
    say "-- $name: $(since "$began")"
}

count_results() {
    local status=$1 passed failed
    passed=$(awk '/^test result:/ { n += $4 } / checked$/ && $1 ~ /^[0-9]+$/ { n += $1 } END { print n + 0 }' "$steps_log")
    failed=$(awk '/^test result:/ { n += $6 } END { print n + 0 }' "$steps_log")
    if ((status == 0)); then
        steps_passed=$((steps_passed + (passed > 0 ? passed : 1)))
    else
        steps_passed=$((steps_passed + passed))
        steps_failed=$((steps_failed + (failed > 0 ? failed : 1)))
    fi
}

# note TEXT: one line of the summary about something that was not done.
note() {
    say "$*"
    steps_summary+=("$*")
}

# finish BEGAN_MS: the summary, and the last line that scripts read.
finish() {
    rm -f "$steps_log"
    printf '\n== summary (%s)\n' "$(since "$1")" >&2
    printf '%s\n' "${steps_summary[@]}" >&2
    echo "$steps_passed passed, $steps_failed failed"
    ((steps_failed == 0))
}
