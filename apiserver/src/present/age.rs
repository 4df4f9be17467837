//! How long ago something was, in the few characters a table has for it.
//!
//! The steps are those of kubectl: `90s`, `5m10s`, `3h20m`, `4d2h`, `1y30d`.

use jiff::Timestamp;
use serde_json::Value;

/// Age of the RFC 3339 time in `field`; `<unknown>` when there is none.
pub(super) fn since(time: Option<&Value>, now: Timestamp) -> String {
    match time.and_then(Value::as_str).filter(|text| !text.is_empty()) {
        None => "<unknown>".into(),
        Some(text) => match text.parse::<Timestamp>() {
            Ok(time) => duration(now.duration_since(time).as_secs()),
            Err(_) => "<invalid>".into(),
        },
    }
}

pub(super) fn duration(seconds: i64) -> String {
    let minutes = seconds / 60;
    let hours = minutes / 60;
    let days = hours / 24;
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match () {
        () if seconds < -1 => "<invalid>".into(),
        () if seconds < 0 => "0s".into(),
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if hours < 24 * 8 => pair(days, "d", hours % 24, "h"),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => pair(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_users_know_them() {
        const M: i64 = 60;
        const H: i64 = 60 * M;
        const D: i64 = 24 * H;
        #[rustfmt::skip]
        let cases = [
            (-2, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (125, "2m5s"), (10 * M, "10m"),
            (179 * M, "179m"), (3 * H, "3h"), (3 * H + 20 * M, "3h20m"), (8 * H + M, "8h"), (47 * H, "47h"),
            (48 * H, "2d"), (50 * H, "2d2h"), (8 * D + H, "8d"), (729 * D, "729d"), (731 * D, "2y1d"), (9 * 365 * D, "9y"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn says_when_a_time_is_missing_or_no_time() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(since(None, now), "<unknown>");
        assert_eq!(since(Some(&"yesterday".into()), now), "<invalid>");
        assert_eq!(since(Some(&"1969-12-31T23:59:00Z".into()), now), "60s");
    }
}
