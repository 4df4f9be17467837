//! Looks whether a run can be rolled back, without rolling it back.

use super::seal::Seal;
use super::write::patiently;
use super::{Changed, CommitError, Layout, RunRecord, live};
use crate::record::Snapshot;
use crate::store::{self, Reading, Space, Store};

/// The rows that were written since the run, and that a roll-back would lose.
pub async fn written_since(store: &dyn Store, record: &RunRecord) -> Result<Changed, CommitError> {
    let collect = async |space| patiently(|| store::collect(store, space, Reading::Once)).await;
    let (_, space) = live(store).await?;
    let (now, _) = collect(space).await?;
    let (seal, _) = collect(Space::Seal(record.run)).await?;
    let seal = Seal::from_rows(&seal);
    let changed = seal.compare(&now, &Snapshot::default());
    match record.layout {
        Layout::Generation if !changed.is_empty() => {
            let (old, _) = collect(Space::Generation(record.from)).await?;
            Ok(seal.compare(&now, &old))
        }
        Layout::Generation | Layout::Dragonflow => Ok(changed),
    }
}
