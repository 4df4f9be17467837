//! A table of things under way, named by rising numbers.
//!
//! Invariant: iteration is in the order of insertion, and a number is never
//! given twice.

use std::collections::VecDeque;

/// Slots stay in order; finished ones at the front are dropped, so looking one
/// up is an index and not a search.
#[derive(Debug, Clone)]
pub struct Window<T> {
    slots: VecDeque<Option<T>>,
    base: u64,
    live: usize,
}

impl<T> Default for Window<T> {
    fn default() -> Window<T> {
        Window { slots: VecDeque::new(), base: 0, live: 0 }
    }
}

impl<T> Window<T> {
    pub fn push(&mut self, value: T) -> u64 {
        self.slots.push_back(Some(value));
        self.live += 1;
        self.base + self.slots.len() as u64 - 1
    }

    fn slot(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.base)?).ok().filter(|at| *at < self.slots.len())
    }

    pub fn get(&self, number: u64) -> Option<&T> {
        self.slots[self.slot(number)?].as_ref()
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        let at = self.slot(number)?;
        self.slots[at].as_mut()
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.slot(number)?;
        let value = self.slots[at].take()?;
        self.live -= 1;
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.base += 1;
        }
        Some(value)
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Things under way.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Slots in use, gaps of finished things included.
    pub fn span(&self) -> usize {
        self.slots.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        (self.base..).zip(&self.slots).filter_map(|(number, slot)| slot.as_ref().map(|value| (number, value)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut T)> {
        (self.base..)
            .zip(&mut self.slots)
            .filter_map(|(number, slot)| slot.as_mut().map(|value| (number, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_and_gaps_at_the_front_go() {
        let mut window = Window::default();
        let [a, b, c] = ["a", "b", "c"].map(|name| window.push(name));
        assert_eq!(window.remove(b), Some("b"));
        assert_eq!((window.len(), window.span()), (2, 3));
        assert_eq!(window.remove(a), Some("a"));
        assert_eq!(window.span(), 1);
        assert_eq!(window.remove(a), None);
        assert_eq!(window.get(c), Some(&"c"));
        let d = window.push("d");
        assert!(d > c);
        assert_eq!(window.iter().collect::<Vec<_>>(), [(c, &"c"), (d, &"d")]);
    }
}
