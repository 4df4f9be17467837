//! A reader of the events of one resource.
//!
//! A watch holds a position, never events: a slow one costs nothing, and is
//! told so when what it should read next has left the history.
//!
//! The one invariant: events come in version order, none is left out.

use std::sync::Arc;

use tokio::sync::watch;

use super::history::{Cursor, Event, TooOld};
use super::key::Version;
use super::world::World;
use crate::kind::ResourceId;

#[derive(Debug)]
pub struct Watch {
    world: Arc<World>,
    resource: ResourceId,
    cursor: Cursor,
    seen: Version,
    bell: watch::Receiver<()>,
}

impl Watch {
    pub(super) fn new(world: Arc<World>, resource: &ResourceId, from: Version) -> Result<Watch, TooOld> {
        let bell = world.listen(resource);
        let cursor = world.seek(resource, from)?;
        Ok(Watch { world, resource: resource.clone(), cursor, seen: from, bell })
    }

    /// The next event, waiting for it if it has not happened. May be dropped
    /// while it waits; nothing is lost.
    pub async fn next(&mut self) -> Result<Arc<Event>, TooOld> {
        loop {
            self.bell.mark_unchanged();
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            self.bell.changed().await.expect("the world, which this watch holds, keeps the bell");
        }
    }

    /// The next event if it has happened.
    pub fn try_next(&mut self) -> Result<Option<Arc<Event>>, TooOld> {
        loop {
            match self.world.read(&self.resource, self.cursor) {
                Err(oldest) => return Err(TooOld { asked: self.seen, oldest }),
                Ok(Err(_)) => return Ok(None),
                Ok(Ok(event)) => {
                    self.cursor.advance();
                    // A watch may start at a version that is yet to come.
                    if event.version > self.seen {
                        self.seen = event.version;
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    /// Every event up to here has been returned. While there is nothing to
    /// return it grows with the store.
    pub fn position(&self) -> Version {
        match self.world.read(&self.resource, self.cursor) {
            Ok(Err(version)) => self.seen.max(version),
            Ok(Ok(_)) | Err(_) => self.seen,
        }
    }
}
