//! Decides which phase a claim has and which the volumes that are set aside for it, where no Kubernetes sees to that.
//!
//! Only what was paired by whoever made them is bound: the claim names its volume and the volume its claim. Nobody looks for volumes that fit.
//!
//! The one invariant: either is called bound only while the other is there and names it.

/// Names are those of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimPhase {
    Pending,
    Bound,
    /// It was bound, and its volume has gone.
    Lost,
}

impl ClaimPhase {
    pub fn as_str(self) -> &'static str {
        match self {
            ClaimPhase::Pending => "Pending",
            ClaimPhase::Bound => "Bound",
            ClaimPhase::Lost => "Lost",
        }
    }

    /// Whether it was bound at some time.
    fn was_bound(self) -> bool {
        match self {
            ClaimPhase::Bound | ClaimPhase::Lost => true,
            ClaimPhase::Pending => false,
        }
    }
}

/// Names are those of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumePhase {
    Pending,
    /// Its claim is not there yet, or has another volume.
    Available,
    Bound,
    /// It was bound, and its claim has gone.
    Released,
}

impl VolumePhase {
    pub fn as_str(self) -> &'static str {
        match self {
            VolumePhase::Pending => "Pending",
            VolumePhase::Available => "Available",
            VolumePhase::Bound => "Bound",
            VolumePhase::Released => "Released",
        }
    }

    fn was_bound(self) -> bool {
        match self {
            VolumePhase::Bound | VolumePhase::Released => true,
            VolumePhase::Pending | VolumePhase::Available => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub phase: ClaimPhase,
    /// The volume that it names.
    pub volume: Option<String>,
}

/// A volume that names the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub phase: VolumePhase,
}

/// Everything `decide` may look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub claim: Option<Claim>,
    pub volumes: Vec<Volume>,
}

/// The phases that are due; writing them down again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Absent where there is no claim.
    pub claim: Option<ClaimPhase>,
    /// The volume that the claim has.
    pub bound: Option<String>,
    /// In the order of what was seen.
    pub volumes: Vec<VolumePhase>,
}

pub fn decide(seen: &Observed) -> Due {
    let named = seen.claim.as_ref().and_then(|claim| claim.volume.as_ref());
    let bound = named.filter(|name| seen.volumes.iter().any(|volume| volume.name == **name));
    let claim = seen.claim.as_ref().map(|claim| match bound {
        Some(_) => ClaimPhase::Bound,
        None if claim.phase.was_bound() => ClaimPhase::Lost,
        None => ClaimPhase::Pending,
    });
    let phase = |volume: &Volume| match bound {
        Some(name) if volume.name == *name => VolumePhase::Bound,
        _ if volume.phase.was_bound() => VolumePhase::Released,
        _ => VolumePhase::Available,
    };
    Due { claim, bound: bound.cloned(), volumes: seen.volumes.iter().map(phase).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(phase: ClaimPhase, volume: &str) -> Option<Claim> {
        Some(Claim { phase, volume: Some(volume.to_owned()).filter(|name| !name.is_empty()) })
    }

    #[test]
    fn only_those_who_name_each_other_are_bound() {
        use {ClaimPhase as C, VolumePhase as V};
        let volume = |name: &str, phase| Volume { name: name.into(), phase };
        #[rustfmt::skip]
        let cases = [
            ("both came",            claim(C::Pending, "v"), vec![volume("v", V::Pending)],   Some(C::Bound),   vec![V::Bound]),
            ("both bound",           claim(C::Bound, "v"),   vec![volume("v", V::Bound)],     Some(C::Bound),   vec![V::Bound]),
            ("one was told",         claim(C::Pending, "v"), vec![volume("v", V::Bound)],     Some(C::Bound),   vec![V::Bound]),
            ("the other was told",   claim(C::Bound, "v"),   vec![volume("v", V::Available)], Some(C::Bound),   vec![V::Bound]),
            ("no volume yet",        claim(C::Pending, "v"), vec![],                          Some(C::Pending), vec![]),
            ("names none",           claim(C::Pending, ""),  vec![volume("v", V::Pending)],   Some(C::Pending), vec![V::Available]),
            ("names another",        claim(C::Pending, "w"), vec![volume("v", V::Pending)],   Some(C::Pending), vec![V::Available]),
            ("no claim yet",         None,                   vec![volume("v", V::Pending)],   None,             vec![V::Available]),
            ("the claim went",       None,                   vec![volume("v", V::Bound)],     None,             vec![V::Released]),
            ("it stays so",          None,                   vec![volume("v", V::Released)],  None,             vec![V::Released]),
            ("another claim came",   claim(C::Pending, "v"), vec![volume("v", V::Released)],  Some(C::Bound),   vec![V::Bound]),
            ("the volume went",      claim(C::Bound, "v"),   vec![],                          Some(C::Lost),    vec![]),
            ("it stays lost",        claim(C::Lost, "v"),    vec![],                          Some(C::Lost),    vec![]),
            ("the volume came back", claim(C::Lost, "v"),    vec![volume("v", V::Pending)],   Some(C::Bound),   vec![V::Bound]),
            ("one of two",           claim(C::Pending, "v"), vec![volume("u", V::Pending), volume("v", V::Pending)], Some(C::Bound), vec![V::Available, V::Bound]),
        ];
        for (name, claim, volumes, expected, phases) in cases {
            let due = decide(&Observed { claim, volumes });
            assert_eq!((due.claim, &due.volumes), (expected, &phases), "{name}");
            assert_eq!(due.bound.is_some(), expected == Some(C::Bound), "{name}");
        }
    }
}
