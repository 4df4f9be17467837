# Where things live outside the clone. Sourced by the scripts in dev/.
# shellcheck shell=bash

# Everything that is built or downloaded once and kept between clones.
: "${MIDFLIGHT_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/midflight}"
export MIDFLIGHT_CACHE

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$(basename "$0"): $*"
    exit 1
}

# Milliseconds since boot: differences are durations.
now_ms() {
    local up
    read -r up _ </proc/uptime
    echo "$((${up%.*} * 1000 + 10#${up#*.} * 10))"
}

# since START_MS: the time from then until now, for a person.
since() {
    local ms=$(($(now_ms) - $1))
    if ((ms < 60000)); then
        printf '%d.%d s' $((ms / 1000)) $((ms % 1000 / 100))
    else
        printf '%d min %02d s' $((ms / 60000)) $((ms / 1000 % 60))
    fi
}
