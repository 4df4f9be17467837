//! The order of a merged list: items of the patch in the patch's order, the
//! others where they were.

use serde_json::Value;

/// Orders `merged`. Items of `order` come in that order; the rest keep the
/// order of `before`; between the two, `before` decides where it knows both.
pub(crate) fn in_order(
    merged: Vec<Value>,
    order: &[Value],
    before: &[Value],
    key: Option<&str>,
) -> Vec<Value> {
    let place = |list: &[Value], item: &Value| list.iter().position(|other| same(other, item, key));
    let (mut ours, mut theirs): (Vec<Value>, Vec<Value>) =
        merged.into_iter().partition(|item| place(order, item).is_some());
    ours.sort_by_key(|item| place(order, item));
    theirs.sort_by_key(|item| place(before, item).unwrap_or(usize::MAX));

    let mut result = Vec::with_capacity(ours.len() + theirs.len());
    let (mut ours, mut theirs) = (ours.into_iter().peekable(), theirs.into_iter().peekable());
    loop {
        let their_turn = match (theirs.peek(), ours.peek()) {
            (None, None) => return result,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (Some(left), Some(right)) => {
                matches!((place(before, left), place(before, right)), (Some(left), Some(right)) if left < right)
            }
        };
        result.extend(if their_turn { theirs.next() } else { ours.next() });
    }
}

fn same(a: &Value, b: &Value, key: Option<&str>) -> bool {
    match key {
        Some(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        None => a == b,
    }
}
