//! Finds an instance manager that looks into a folder of backups.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use midflight_api::longhorn::{InstanceManager, InstanceManagerState, NAMESPACE};
use midflight_api::{Size, VolumeRecord};
use midflight_plan::storage::backup::{Folder, Found};
use tokio::time::timeout;

use crate::controller::{Key, Objects, Operator, TurnError};
use crate::storage::orders::{Manager, Orders, proto};

/// How many are asked before a folder counts as out of reach.
const ASKED: usize = 3;
/// How long a folder may take to be looked through.
const LISTS_WITHIN: Duration = Duration::from_secs(30);

/// What a folder holds.
pub(super) struct Held {
    pub(super) backups: Vec<proto::Backup>,
    /// Whether it is missing, or nothing was ever kept in it.
    pub(super) is_unused: bool,
}

/// All instance managers.
pub(super) struct Reach {
    managers: Objects<InstanceManager>,
    records: Objects<VolumeRecord>,
    orders: Arc<Orders>,
}

impl Reach {
    pub(super) fn new(operator: &mut Operator, orders: Arc<Orders>) -> Reach {
        Reach { managers: operator.objects(), records: operator.objects(), orders }
    }

    /// Some that run, each of which sees the same folders.
    fn some(&self) -> Result<Vec<Manager>, TurnError> {
        let all = self.managers.all()?;
        let addresses = all.iter().filter_map(|manager| {
            let status = manager.status.as_ref()?;
            let runs = status.current_state == InstanceManagerState::Running;
            runs.then(|| status.ip.to_string()).filter(|address| !address.is_empty())
        });
        addresses.take(ASKED).map(|address| self.orders.to(&address)).collect()
    }

    /// What a folder holds: of one volume, or of all.
    pub(super) async fn list(
        &self,
        folder: &Folder,
        volume: &str,
    ) -> Result<Result<Held, String>, TurnError> {
        let order = proto::BackupsRequest {
            target: folder.path().to_owned(),
            volume: volume.to_owned(),
            backup: String::new(),
        };
        let mut held = Err("no instance manager runs that could look into the folder".to_owned());
        for mut manager in self.some()? {
            let why = match timeout(LISTS_WITHIN, manager.list_backups(order.clone())).await {
                Ok(Ok(answer)) => {
                    let proto::ListBackupsResponse { backups, unused } = answer.into_inner();
                    let is_certain = unused || !backups.is_empty();
                    held = Ok(Held { backups, is_unused: unused });
                    // Those of earlier builds say nothing of a folder that is missing, so another is asked.
                    if is_certain {
                        break;
                    }
                    continue;
                }
                Ok(Err(status)) => status.message().to_owned(),
                Err(_) => format!("{folder} was not looked through within {} s", LISTS_WITHIN.as_secs()),
            };
            held = held.or(Err(why));
        }
        Ok(held)
    }

    /// What a folder has of a backup. One that is needed has been there, and a folder in which nothing was ever kept is not the one.
    pub(super) async fn find(
        &self,
        folder: &Folder,
        needed: bool,
        volume: &str,
        backup: &str,
    ) -> Result<Result<Option<Found>, String>, TurnError> {
        let all = self.list(folder, volume).await?.and_then(|held| match held.is_unused && needed {
            true => Err(format!("{folder} is not there, or nothing was ever kept in it")),
            false => Ok(held),
        });
        let found = |item: proto::Backup| Found {
            snapshot: item.snapshot,
            created: i64::try_from(item.created)
                .ok()
                .and_then(|seconds| Timestamp::from_second(seconds).ok())
                .unwrap_or_default(),
            size: Size::from_bytes(item.size),
        };
        Ok(all.map(|all| all.backups.into_iter().find(|item| item.backup == backup).map(found)))
    }

    /// Removes a backup from a folder, which has to be there if it was seen there.
    pub(super) async fn remove(
        &self,
        folder: &Folder,
        existing: bool,
        volume: &str,
        backup: &str,
    ) -> Result<Result<(), String>, TurnError> {
        let record = self.records.get(&Key::new(NAMESPACE, volume))?;
        let order = proto::DeleteBackupRequest {
            target: folder.path().to_owned(),
            volume: volume.to_owned(),
            backup: backup.to_owned(),
            epoch: record.map_or(0, |record| record.spec.term.epoch().number()),
            existing,
        };
        let mut why = "no instance manager runs that could remove it".to_owned();
        for mut manager in self.some()? {
            match manager.delete_backup(order.clone()).await {
                Ok(_) => return Ok(Ok(())),
                Err(status) => why = status.message().to_owned(),
            }
        }
        Ok(Err(why))
    }
}
