//! Finds the engine that has a volume, for those who have an order for it.
//!
//! The invariant: an order carries the term of the record that names the engine.

use std::sync::Arc;
use std::time::Duration;

use midflight_api::longhorn::{InstanceManager, InstanceManagerState, InstanceState, NAMESPACE};
use midflight_api::{Size, VolumeRecord};
use midflight_plan::storage::volume::{Flaw, Serving};
use tokio::time::timeout;

use super::orders::{Manager, Orders, proto};
use super::volume::volumes_in;
use crate::controller::{Index, Key, Objects, Operator, TurnError};

/// How long an engine may take to say how it is.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Where engines are.
pub(super) struct Engines {
    records: Objects<VolumeRecord>,
    managers: Objects<InstanceManager>,
    managers_with: Index<InstanceManager>,
    orders: Arc<Orders>,
}

/// An engine that runs, and who takes orders for it.
pub(super) struct Seat {
    pub(super) manager: Manager,
    pub(super) engine: proto::EngineRequest,
}

impl Engines {
    pub(super) fn new(operator: &mut Operator, orders: Arc<Orders>) -> Engines {
        let managers: Objects<InstanceManager> = operator.objects();
        let managers_with = managers.index(volumes_in);
        Engines { records: operator.objects(), managers, managers_with, orders }
    }

    /// The engine that the record of a volume names, if it runs.
    pub(super) fn of(&self, volume: &str) -> Result<Option<Seat>, TurnError> {
        let Some(record) = self.records.get(&Key::new(NAMESPACE, volume))? else { return Ok(None) };
        let Some(seat) = &record.spec.engine else { return Ok(None) };
        for manager in self.managers.by(self.managers_with, volume)? {
            let Some(status) = &manager.status else { continue };
            let runs = status.instance_engines.get(seat.name.as_str()).is_some_and(|engine| {
                matches!(engine.status.state, InstanceState::Running | InstanceState::Suspended)
            });
            let is_there = manager.spec.node_id == seat.node_id;
            if is_there && runs && status.current_state == InstanceManagerState::Running {
                let engine = proto::EngineRequest {
                    name: seat.name.to_string(),
                    volume: volume.to_owned(),
                    epoch: record.spec.term.epoch().number(),
                };
                return Ok(Some(Seat { manager: self.orders.to(status.ip.as_str())?, engine }));
            }
        }
        Ok(None)
    }
}

impl Seat {
    /// What the engine says of itself. One that does not answer is seen by its instance manager, sooner or later.
    pub(super) async fn serving(&self) -> Option<Serving> {
        let mut manager = self.manager.clone();
        let answer = timeout(ANSWERS_WITHIN, manager.status(self.engine.clone())).await.ok()?.ok()?;
        let status = answer.into_inner();
        let size = Size::from_bytes(status.size);
        let flaw = |flaw: proto::Flaw| Flaw {
            replica: flaw.replica.into(),
            what: flaw.what,
            repaired: flaw.repaired,
        };
        Some(Serving {
            serving: status.serving,
            attached: status.attached,
            size,
            snapshots: status.snapshots,
            rebuilt_bytes: status.copied_bytes,
            rebuild_limit: status.rebuild_limit,
            patience: status.patience,
            permitted: status
                .may_rebuild
                .map(|permitted| permitted.replicas.into_iter().map(Into::into).collect()),
            trouble: Some(status.trouble).filter(|trouble| !trouble.is_empty()),
            flaws: status.damaged.into_iter().map(flaw).collect(),
        })
    }
}
