//! A run of bytes of a volume.
//!
//! Invariant: an `Extent` never reaches past 2^64; `end` cannot overflow.

/// `length` bytes from `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    offset: u64,
    length: u32,
}

impl Extent {
    pub const EMPTY: Extent = Extent { offset: 0, length: 0 };

    pub fn new(offset: u64, length: u32) -> Option<Extent> {
        offset.checked_add(u64::from(length)).map(|_| Extent { offset, length })
    }

    pub fn offset(self) -> u64 {
        self.offset
    }

    pub fn length(self) -> u32 {
        self.length
    }

    pub fn end(self) -> u64 {
        self.offset + u64::from(self.length)
    }

    pub fn fits(self, size: u64) -> bool {
        self.end() <= size
    }

    pub fn overlaps(self, other: Extent) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, length: u32) -> Extent {
        Extent::new(offset, length).unwrap()
    }

    #[test]
    fn neighbours_do_not_overlap_and_empty_overlaps_nothing() {
        assert!(!extent(0, 4096).overlaps(extent(4096, 4096)));
        assert!(extent(0, 4097).overlaps(extent(4096, 1)));
        assert!(extent(100, 1).overlaps(extent(0, 4096)));
        assert!(!Extent::EMPTY.overlaps(extent(0, 4096)));
        assert_eq!(Extent::new(u64::MAX, 1), None);
    }
}
