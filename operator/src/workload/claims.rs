//! Claims and the volumes that are set aside for them: tells in which phase both are.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus, PersistentVolumeSpec,
};
use kube::ResourceExt;
use midflight_plan::claim_binding::{self as plan, Claim, ClaimPhase, Due, Observed, Volume, VolumePhase};

use crate::controller::{Controller, Index, Key, Next, Objects, Operator, TurnError, Wake};
use crate::mount::claim_of;

pub(crate) struct Claims {
    claims: Objects<PersistentVolumeClaim>,
    volumes: Objects<PersistentVolume>,
    by_claim: Index<PersistentVolume>,
}

/// A claim, or the place of one, and the volumes that name it.
pub(crate) struct Look {
    claim: Option<Arc<PersistentVolumeClaim>>,
    volumes: Vec<Arc<PersistentVolume>>,
}

impl Claims {
    pub(crate) fn new(operator: &mut Operator) -> Claims {
        let volumes: Objects<PersistentVolume> = operator.objects();
        let by_claim = volumes.index(|volume| claim_of(volume).iter().map(Key::to_string).collect());
        Claims { claims: operator.objects(), by_claim, volumes }
    }
}

fn seen_claim(claim: &PersistentVolumeClaim) -> Claim {
    let phase = match claim.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Bound") => ClaimPhase::Bound,
        Some("Lost") => ClaimPhase::Lost,
        _ => ClaimPhase::Pending,
    };
    let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
    Claim { phase, volume: volume.filter(|name| !name.is_empty()) }
}

fn seen_volume(volume: &PersistentVolume) -> Volume {
    let phase = match volume.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Bound") => VolumePhase::Bound,
        Some("Released") => VolumePhase::Released,
        Some("Available") => VolumePhase::Available,
        _ => VolumePhase::Pending,
    };
    Volume { name: volume.name_any(), phase }
}

/// A claim that is bound tells what it has; others have nothing.
fn tell(status: &mut PersistentVolumeClaimStatus, phase: ClaimPhase, volume: Option<&PersistentVolumeSpec>) {
    status.phase = Some(phase.as_str().into());
    status.access_modes = volume.and_then(|volume| volume.access_modes.clone());
    status.capacity = volume.and_then(|volume| volume.capacity.clone());
}

impl Controller for Claims {
    const NAME: &'static str = "claim-binding";
    type Key = Key;
    type Seen = Look;
    type Decision = Due;

    fn watch(&self, wake: &Wake<Key>) {
        wake.on(&self.claims, |claim| vec![Key::of(claim)]);
        wake.on(&self.volumes, |volume| claim_of(volume).into_iter().collect());
    }

    async fn observe(&self, key: &Key) -> Result<Option<Look>, TurnError> {
        let volumes = self.volumes.by(self.by_claim, &key.to_string())?;
        Ok(Some(Look { claim: self.claims.get(key)?, volumes }))
    }

    fn decide(seen: &Look) -> Due {
        plan::decide(&Observed {
            claim: seen.claim.as_deref().map(seen_claim),
            volumes: seen.volumes.iter().map(|volume| seen_volume(volume)).collect(),
        })
    }

    async fn report(&self, seen: &mut Look, decision: &Due) -> Result<(), TurnError> {
        for (volume, phase) in seen.volumes.iter_mut().zip(&decision.volumes) {
            let edit = |volume: &mut PersistentVolume| {
                volume.status.get_or_insert_default().phase = Some(phase.as_str().into());
            };
            self.volumes.report(volume, edit).await?;
        }
        if let (Some(claim), Some(phase)) = (&mut seen.claim, decision.claim) {
            let is_bound = |volume: &&Arc<PersistentVolume>| Some(volume.name_any()) == decision.bound;
            let bound = seen.volumes.iter().find(is_bound).and_then(|volume| volume.spec.as_ref());
            let edit = |claim: &mut PersistentVolumeClaim| {
                tell(claim.status.get_or_insert_default(), phase, bound);
            };
            self.claims.report(claim, edit).await?;
        }
        Ok(())
    }

    async fn act(&self, _: Look, _: Due) -> Result<Next, TurnError> {
        Ok(Next::OnChange)
    }
}
