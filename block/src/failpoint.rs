//! Faults that test builds have on purpose: with the feature `failpoints` the variable
//! `MIDFLIGHT_FAILPOINT` chooses one.
//!
//! | value | what the engine does |
//! | --- | --- |
//! | `engine-start` | ends before it can be reached |
//! | `engine-go` | hangs when it is to take the volume over |
//! | `engine-serve` | ends soon after it has taken the volume over |
//!
//! Invariant: without the feature nothing here does anything.

/// A place in the life of an engine where it can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    Start,
    Go,
    Serve,
}

#[cfg(not(feature = "failpoints"))]
pub(crate) fn reached(_: Point) {}

#[cfg(feature = "failpoints")]
pub(crate) use armed::reached;

#[cfg(feature = "failpoints")]
mod armed {
    use std::{
        process,
        sync::{
            LazyLock,
            atomic::{AtomicU32, Ordering},
        },
        thread,
    };

    use super::Point;

    static CHOSEN: LazyLock<Option<Point>> =
        LazyLock::new(|| match std::env::var("MIDFLIGHT_FAILPOINT").ok()?.as_str() {
            "engine-start" => Some(Point::Start),
            "engine-go" => Some(Point::Go),
            "engine-serve" => Some(Point::Serve),
            _ => None,
        });

    /// Messages that an engine handles before it ends, so that clients are in the middle.
    const SERVED: u32 = 50;

    pub(crate) fn reached(point: Point) {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        if *CHOSEN != Some(point) {
            return;
        }
        match point {
            Point::Serve if COUNT.fetch_add(1, Ordering::Relaxed) < SERVED => {}
            Point::Start | Point::Serve => process::exit(70),
            Point::Go => loop {
                thread::park();
            },
        }
    }
}
