//! The tables in which services announce themselves: they say nothing of the cloud, only who runs in it and since when.

/// Each table, and the field that holds the time.
pub(crate) const TABLES: [(&str, &str); 2] =
    [("service", "last_seen_up"), ("publisher", "last_activity_timestamp")];

/// Whether a table is one of them.
pub(crate) fn is_one(table: &str) -> bool {
    TABLES.iter().any(|(name, _)| *name == table)
}
