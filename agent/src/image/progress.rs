//! How far the pulls of a node are, for whoever waits for them.
//!
//! The one invariant: what is told has happened; an image that nobody pulls any more has no progress.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::ImageName;

/// How far a pull is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// As many images are pulled at once as may be.
    Queued,
    /// Its registry was asked what it consists of.
    Asked,
    /// Another node of this machine pulls it, and its files can be shared then.
    Awaited,
    /// So many bytes have arrived, of those that its manifest names.
    Arrives { bytes: u64, of: u64 },
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        match *self {
            Progress::Queued => f.write_str("waits until other images have been pulled"),
            Progress::Asked => f.write_str("its registry is asked for it"),
            Progress::Awaited => f.write_str("another node of this machine pulls it"),
            Progress::Arrives { bytes, of } => {
                write!(f, "{:.1} of {:.1} MiB have arrived", mebibytes(bytes), mebibytes(of))
            }
        }
    }
}

/// The pulls that go on, by the image's name.
#[derive(Debug, Default)]
pub(super) struct Board {
    pulls: Mutex<HashMap<String, Progress>>,
}

impl Board {
    pub(super) fn of(&self, image: &ImageName) -> Option<Progress> {
        self.lock().get(&image.to_string()).copied()
    }

    /// Tells of a pull until what is returned is dropped.
    pub(super) fn begin(&self, image: &ImageName) -> Entry<'_> {
        let entry = Entry { board: self, image: image.to_string() };
        entry.tell(Progress::Queued);
        entry
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Progress>> {
        self.pulls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One pull on the board.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    board: &'a Board,
    image: String,
}

impl Entry<'_> {
    pub(super) fn tell(&self, progress: Progress) {
        self.board.lock().insert(self.image.clone(), progress);
    }

    pub(super) fn arrived(&self, more: usize) {
        if let Some(Progress::Arrives { bytes, .. }) = self.board.lock().get_mut(&self.image) {
            *bytes += more as u64;
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.board.lock().remove(&self.image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_is_told_of_while_it_goes_on() {
        let (board, image) = (Board::default(), "engine:v1".parse().unwrap());
        assert_eq!(board.of(&image), None);
        let entry = board.begin(&image);
        entry.arrived(1);
        assert_eq!(board.of(&image), Some(Progress::Queued));
        entry.tell(Progress::Arrives { bytes: 0, of: 3 << 20 });
        entry.arrived(1 << 20);
        entry.arrived(1 << 19);
        assert_eq!(board.of(&image).unwrap().to_string(), "1.5 of 3.0 MiB have arrived");
        drop(entry);
        assert_eq!(board.of(&image), None);
    }
}
