//! Work that takes long and is done by one at a time.
//!
//! Whoever ordered it may be gone, and the order be given again: then the second waits for the end of the first.
//!
//! Invariant: no two do the same at the same time.

use std::{
    collections::BTreeSet,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
};

/// What is under way, by name.
#[derive(Debug, Default)]
pub(super) struct Works {
    under_way: Mutex<BTreeSet<String>>,
    one_ended: Condvar,
}

/// Something that is being done until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    works: &'a Works,
    name: String,
}

impl Works {
    fn all(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins when whoever does the same has ended.
    pub(super) fn begin(&self, name: String) -> Turn<'_> {
        let others = self.one_ended.wait_while(self.all(), |all| all.contains(&name));
        others.unwrap_or_else(PoisonError::into_inner).insert(name.clone());
        Turn { works: self, name }
    }

    /// Begins, unless another is at it.
    pub(super) fn begin_alone(&self, name: String) -> Option<Turn<'_>> {
        self.all().insert(name.clone()).then(|| Turn { works: self, name })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.works.all().remove(&self.name);
        self.works.one_ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    #[test]
    fn the_same_waits_for_its_end_and_anything_else_does_not() {
        let works = Works::default();
        let first = works.begin("one".into());
        assert!(works.begin_alone("one".into()).is_none());
        drop(works.begin("two".into()));
        drop(works.begin_alone("two".into()).expect("nobody is at it"));
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _second = works.begin("one".into());
                tell.send("second").expect("somebody listens");
            });
            assert!(told.try_recv().is_err(), "it waits");
            drop(first);
            assert_eq!(told.recv(), Ok("second"));
        });
        assert!(works.all().is_empty());
    }
}
