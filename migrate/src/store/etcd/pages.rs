//! Walks a range of keys in pages with a bounded end.
//!
//! A range that is only cut by a limit makes the server count all the rest of it for every page.
//! So each page ends at a key guessed from how far apart the last ones were, with the limit as a
//! stop for wrong guesses.
//!
//! The one invariant: pages follow each other without a gap and without overlap.

use std::ops::Range;

/// Keys wanted in a page of small values.
const MOST: usize = 4096;
const FEWEST: usize = 16;
/// Bytes wanted in a page.
const BYTES: usize = 4 << 20;

/// What the server gave for one page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen<'k> {
    pub(super) keys: usize,
    pub(super) bytes: usize,
    /// The first and the last key, unless there was none.
    pub(super) ends: Option<(&'k [u8], &'k [u8])>,
    /// The limit was reached before the end of the page.
    pub(super) more: bool,
}

/// Where a walk stands.
#[derive(Debug, Clone)]
pub(super) struct Pager {
    next: Vec<u8>,
    end: Vec<u8>,
    /// Distance of keys to cover with the next page; none before the first.
    span: Option<Vec<u8>>,
    limit: usize,
}

impl Pager {
    pub(super) fn new(range: Range<Vec<u8>>) -> Pager {
        Pager { next: range.start, end: range.end, span: None, limit: MOST / 8 }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// The keys to ask for next.
    pub(super) fn page(&self) -> Option<Range<Vec<u8>>> {
        if self.next >= self.end {
            return None;
        }
        let guess = self.span.as_ref().and_then(|span| sum(&self.next, span));
        let end = guess.filter(|guess| *guess < self.end && *guess > self.next);
        Some(self.next.clone()..end.unwrap_or_else(|| self.end.clone()))
    }

    /// Moves on behind what was seen of `page`; gives the range that it covered.
    pub(super) fn took(&mut self, page: Range<Vec<u8>>, seen: Seen<'_>) -> Range<Vec<u8>> {
        if let Some(size) = seen.bytes.checked_div(seen.keys) {
            self.limit = (BYTES / size.max(1)).clamp(FEWEST, MOST);
        }
        let covered = match seen.ends {
            Some((first, last)) if seen.more => {
                self.span = Some(difference(last, first));
                let mut behind = last.to_vec();
                behind.push(0);
                page.start..behind
            }
            _ => {
                let times = match seen.keys {
                    0 => 16,
                    few if few < self.limit / 2 => 2,
                    _ => 1,
                };
                self.span = self.span.as_deref().and_then(|span| product(span, times));
                page
            }
        };
        self.next = covered.end.clone();
        covered
    }
}

/// Keys are read as fractions: the first byte weighs most.
fn at(key: &[u8], place: usize) -> u16 {
    key.get(place).copied().map_or(0, u16::from)
}

/// `None` where there is no such key any more.
fn sum(key: &[u8], span: &[u8]) -> Option<Vec<u8>> {
    let mut digits = vec![0; key.len().max(span.len())];
    let mut carry = 0;
    for place in (0..digits.len()).rev() {
        let digit = at(key, place) + at(span, place) + carry;
        digits[place] = digit as u8;
        carry = digit >> 8;
    }
    (carry == 0).then_some(digits)
}

fn difference(high: &[u8], low: &[u8]) -> Vec<u8> {
    let mut digits = vec![0; high.len().max(low.len())];
    let mut borrow = 0;
    for place in (0..digits.len()).rev() {
        let (from, take) = (at(high, place), at(low, place) + borrow);
        borrow = u16::from(from < take);
        digits[place] = (from + (borrow << 8) - take) as u8;
    }
    digits
}

/// `None` where it exceeds every key.
fn product(span: &[u8], times: u16) -> Option<Vec<u8>> {
    let mut digits = span.to_vec();
    let mut carry = 0;
    for digit in digits.iter_mut().rev() {
        let value = u16::from(*digit) * times + carry;
        *digit = value as u8;
        carry = value >> 8;
    }
    (carry == 0).then_some(digits)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Walks keys as a server would hand them out; gives what was seen and the number of pages.
    fn walk(keys: &BTreeSet<Vec<u8>>, range: Range<Vec<u8>>) -> (Vec<Vec<u8>>, usize) {
        let mut pager = Pager::new(range);
        let (mut seen, mut pages) = (Vec::new(), 0);
        while let Some(page) = pager.page() {
            let inside: Vec<&Vec<u8>> = keys.range(page.clone()).take(pager.limit() + 1).collect();
            let more = inside.len() > pager.limit();
            let inside = &inside[..inside.len().min(pager.limit())];
            let ends =
                inside.first().zip(inside.last()).map(|(first, last)| (first.as_slice(), last.as_slice()));
            pager.took(page, Seen { keys: inside.len(), bytes: inside.len() * 300, ends, more });
            seen.extend(inside.iter().map(|&key| key.clone()));
            pages += 1;
        }
        (seen, pages)
    }

    proptest! {
        #[test]
        fn every_key_is_seen_once(keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 1..5), 0..400)) {
            let (seen, _) = walk(&keys, vec![]..vec![255, 255, 255, 255, 255, 255]);
            prop_assert_eq!(seen, keys.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_large_range_takes_few_pages_whatever_its_keys_look_like() {
        type Name = fn(u32) -> String;
        #[rustfmt::skip]
        let shapes: [(&str, Name); 3] = [
            ("random",     |n| format!("/lport/{:08x}-b44e", n.wrapping_mul(2_654_435_761))),
            ("sequential", |n| format!("/lport/port-of-the-cloud-{n:08}")),
            ("two tables", |n| format!("/{}/{n:08}", if n % 2 == 0 { "lport" } else { "lswitch" })),
        ];
        for (name, shape) in shapes {
            let keys: BTreeSet<Vec<u8>> = (0..200_000).map(|n| shape(n).into_bytes()).collect();
            let (seen, pages) = walk(&keys, b"/".to_vec()..b"0".to_vec());
            assert_eq!(seen.len(), 200_000, "{name}");
            assert!(pages < 400, "{name}: {pages} pages");
        }
    }
}
