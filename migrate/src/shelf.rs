//! Values that arrive together lie in one allocation: a million small ones would cost a header, a
//! gap and a walk to the allocator each.
//!
//! The one invariant: every value comes out with the thing it was put in with, in the same order.

use bytes::Bytes;

/// Things, each with a value that may be empty.
#[derive(Debug)]
pub(crate) struct Shelf<T> {
    bytes: Vec<u8>,
    /// Each with the place where its value ends.
    items: Vec<(T, usize)>,
}

impl<T> Shelf<T> {
    /// For so many things, with values of so many bytes in all, give or take.
    pub(crate) fn with_capacity(items: usize, bytes: usize) -> Shelf<T> {
        Shelf { bytes: Vec::with_capacity(bytes), items: Vec::with_capacity(items) }
    }

    /// How many things there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Bytes of all values so far.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn push(&mut self, item: T, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.items.push((item, self.bytes.len()));
    }

    /// Adds a thing without a value.
    pub(crate) fn keep(&mut self, item: T) {
        self.items.push((item, self.bytes.len()));
    }

    pub(crate) fn values(mut self) -> impl ExactSizeIterator<Item = (T, Bytes)> {
        self.bytes.shrink_to_fit();
        let bytes = Bytes::from(self.bytes);
        let mut start = 0;
        self.items.into_iter().map(move |(item, end)| {
            let value = bytes.slice(start..end);
            start = end;
            (item, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_with_what_they_were_put_in_with() {
        let mut shelf = Shelf::with_capacity(4, 2);
        shelf.push(1, b"one");
        shelf.keep(2);
        shelf.push(3, b"");
        shelf.push(4, b"four");
        assert_eq!(shelf.size(), 7);
        let out: Vec<_> = shelf.values().map(|(item, value)| (item, value.to_vec())).collect();
        assert_eq!(out, [(1, b"one".to_vec()), (2, vec![]), (3, vec![]), (4, b"four".to_vec())]);
    }
}
