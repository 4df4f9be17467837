//! A part of a state that is shared until it changes, and told apart by what it
//! prints: no field of a core can be left out by mistake.
//!
//! Invariant: the digest is that of the value.

use std::{
    cell::RefCell,
    fmt::{self, Debug, Write},
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use sha2::{Digest as _, Sha256};

#[derive(Clone)]
pub(super) struct Kept<T>(Arc<Inner<T>>);

struct Inner<T> {
    /// The lock is for cores that keep caches in cells; nobody ever waits for it.
    value: Mutex<T>,
    /// Made when it is first asked for.
    digest: OnceLock<u64>,
}

thread_local! {
    static TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// 64 bits of a hash of what a value prints.
fn digest(value: &impl Debug) -> u64 {
    TEXT.with_borrow_mut(|text| {
        text.clear();
        write!(text, "{value:?}").expect("a string takes everything");
        let hash = Sha256::digest(text.as_bytes());
        u64::from_le_bytes(hash[..8].try_into().expect("eight bytes"))
    })
}

impl<T: Clone + Debug> Kept<T> {
    pub(super) fn new(value: T) -> Kept<T> {
        Kept(Arc::new(Inner { value: Mutex::new(value), digest: OnceLock::new() }))
    }

    pub(super) fn look<R>(&self, at: impl FnOnce(&T) -> R) -> R {
        at(&self.0.value.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn change<R>(&mut self, how: impl FnOnce(&mut T) -> R) -> R {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Kept::new(self.look(T::clone));
        }
        let inner = Arc::get_mut(&mut self.0).expect("nobody else has it");
        inner.digest = OnceLock::new();
        how(inner.value.get_mut().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Debug> Kept<T> {
    fn digest(&self) -> u64 {
        let value = || self.0.value.lock().unwrap_or_else(PoisonError::into_inner);
        *self.0.digest.get_or_init(|| digest(&*value()))
    }
}

impl<T: Debug> Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner).fmt(f)
    }
}

impl<T: Debug> PartialEq for Kept<T> {
    fn eq(&self, other: &Kept<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.digest() == other.digest()
    }
}

impl<T: Debug> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest());
    }
}
