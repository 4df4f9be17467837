//! Sentences that fit into a status, however many nodes and volumes they are about.
//!
//! The invariant: no text is longer than the API takes, or a status could not be written at all.

use std::fmt::Display;

use midflight_api::Message;
use midflight_api::longhorn::{DataEngineUpgradeManagerStatus, NodeDataEngineUpgradeStatus};

/// So many are named, the others are counted.
const NAMED: usize = 8;
/// What stands where a text was cut.
const CUT: &str = " …";

/// The first of these, and how many more there are.
pub(super) fn some_of<T: Display>(all: impl IntoIterator<Item = T>, between: &str) -> String {
    let mut all = all.into_iter();
    let mut named: Vec<String> = all.by_ref().take(NAMED).map(|one| one.to_string()).collect();
    let more = all.count();
    named.extend((more > 0).then(|| format!("and {more} more")));
    named.join(between)
}

/// A text, cut where it is too long.
fn cut(text: &mut Message) {
    if text.as_str().len() <= Message::MAX_LENGTH {
        return;
    }
    let mut end = Message::MAX_LENGTH - CUT.len();
    while !text.as_str().is_char_boundary(end) {
        end -= 1;
    }
    *text = format!("{}{CUT}", &text.as_str()[..end]).into();
}

/// A text as a message that the API takes.
pub fn message(text: String) -> Message {
    let mut message = text.into();
    cut(&mut message);
    message
}

/// Cuts what is too long in the status of a whole upgrade.
pub(super) fn fit_run(status: &mut DataEngineUpgradeManagerStatus) {
    let entries = status.upgrade_nodes.values_mut().map(|entry| &mut entry.message);
    entries.chain([&mut status.message]).for_each(cut);
}

/// Cuts what is too long in the status of a node.
pub(super) fn fit_node(status: &mut NodeDataEngineUpgradeStatus) {
    let volumes = status.volumes.values_mut().map(|volume| &mut volume.message);
    volumes.chain([&mut status.message, &mut status.failure]).for_each(cut);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_counted_and_long_texts_are_cut() {
        assert_eq!(some_of(1..=3, ", "), "1, 2, 3");
        assert_eq!(some_of(1..=10, " | "), "1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | and 2 more");
        let mut status =
            NodeDataEngineUpgradeStatus { failure: "é".repeat(4096).into(), ..Default::default() };
        status.message = "short".into();
        fit_node(&mut status);
        assert!(
            status.failure.as_str().len() <= Message::MAX_LENGTH && status.failure.as_str().ends_with("é …")
        );
        assert_eq!(status.message, "short");
    }
}
