//! Decides the next step from a Dataset and its runtime to DaemonSet, volume and claim.
//!
//! The claim tells every node which daemon is wanted; the DaemonSet makes it. A change goes to the
//! DaemonSet first and from there to the claim, so whoever is sent away because of the claim is
//! replaced by what the claim asks for.
//!
//! The one invariant: the claim never asks for a generation that the DaemonSet does not have.

use sha2::{Digest, Sha256};

use super::{Policy, trouble::Troubled};

/// Tells templates apart; short enough to be read.
pub fn digest(template: &str) -> String {
    const KEPT: usize = 8;
    Sha256::digest(template.as_bytes()).iter().take(KEPT).map(|byte| format!("{byte:02x}")).collect()
}

/// What the dataset's daemons should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Digest of the pods' template: image, environment, options, resources and all else.
    pub template: String,
    pub asked: Asked,
}

/// What the claim says beside the generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// `IMAGE:TAG`.
    pub image: String,
    /// `OnDelete` or `OnIdle`.
    pub strategy: String,
}

/// Counts the changes of a dataset's daemons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Generation(u64);

impl Generation {
    pub const FIRST: Generation = Generation(1);

    pub fn next(self) -> Generation {
        Generation(self.0 + 1)
    }

    /// What a label says; nothing sensible counts as nothing.
    pub fn read(label: Option<&String>) -> Option<Generation> {
        label.and_then(|text| text.parse().ok()).map(Generation)
    }
}

impl std::fmt::Display for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A DaemonSet that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemons {
    pub template: String,
    pub generation: Generation,
}

/// A claim that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    pub generation: Option<Generation>,
    /// Absent if it says nothing, or not all.
    pub asked: Option<Asked>,
}

/// How far somebody is who was deleted and waits for us: the dataset, its runtime or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Going {
    /// Workloads use the dataset.
    InUse,
    /// Nobody does.
    Free,
}

/// Everything `decide` may look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Absent where nobody was deleted, or does not wait for us.
    pub going: Option<Going>,
    /// Whether dataset and runtime, if they are deleted, wait for us.
    pub guarded: bool,
    /// Absent when the dataset or its runtime has gone, or is going.
    pub wanted: Option<Wanted>,
    pub daemons: Option<Daemons>,
    /// Whether the volume is there.
    pub volume: bool,
    pub claim: Option<Claim>,
    /// What becomes of daemons that are not what is wanted.
    pub policy: Policy,
    /// Daemons that do not run.
    pub troubled: Vec<Troubled>,
}

/// Something the shell can do. Each one is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Dataset and runtime shall wait for us when they are deleted.
    Guard,
    MakeDaemons {
        generation: Generation,
    },
    ChangeDaemons {
        generation: Generation,
    },
    MakeVolume,
    MakeClaim {
        generation: Generation,
    },
    ChangeClaim {
        generation: Generation,
    },
    /// Daemons that serve nobody and are not what is wanted go, so that others come in their place.
    MakeAnew {
        pods: Vec<String>,
    },
    /// Of a dataset that has gone; all else goes with its owner.
    RemoveVolume,
    /// Whoever was deleted may go.
    LetGo,
    Nothing,
}

pub fn decide(seen: &Observed) -> Action {
    match seen.going {
        // Whatever is changed now might end what they use.
        Some(Going::InUse) => return Action::Nothing,
        // Without a volume nobody new comes; only then what serves may go.
        Some(Going::Free) if !seen.volume => return Action::LetGo,
        Some(Going::Free) | None => {}
    }
    let Some(wanted) = &seen.wanted else {
        return if seen.volume { Action::RemoveVolume } else { Action::Nothing };
    };
    if !seen.guarded {
        return Action::Guard;
    }
    let claimed = seen.claim.as_ref().and_then(|claim| claim.generation);
    let Some(daemons) = &seen.daemons else {
        return Action::MakeDaemons { generation: claimed.map_or(Generation::FIRST, Generation::next) };
    };
    if daemons.template != wanted.template {
        let last = daemons.generation.max(claimed.unwrap_or_default());
        return Action::ChangeDaemons { generation: last.next() };
    }
    if !seen.volume {
        return Action::MakeVolume;
    }
    let generation = daemons.generation;
    match &seen.claim {
        None => Action::MakeClaim { generation },
        Some(claim)
            if claim.generation == Some(generation) && claim.asked.as_ref() == Some(&wanted.asked) =>
        {
            make_anew(seen, generation)
        }
        Some(_) => Action::ChangeClaim { generation },
    }
}

fn make_anew(seen: &Observed, wanted: Generation) -> Action {
    let goes = |one: &&Troubled| one.is_to_go(wanted, seen.policy);
    let pods: Vec<String> = seen.troubled.iter().filter(goes).map(|one| one.pod.clone()).collect();
    if pods.is_empty() { Action::Nothing } else { Action::MakeAnew { pods } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(template: &str) -> Wanted {
        let asked = Asked { image: format!("image:{template}"), strategy: "OnIdle".into() };
        Wanted { template: template.into(), asked }
    }

    fn nothing_yet(template: &str) -> Observed {
        Observed {
            going: None,
            guarded: false,
            wanted: Some(wanted(template)),
            daemons: None,
            volume: false,
            claim: None,
            policy: Policy::ReplaceIdle,
            troubled: Vec::new(),
        }
    }

    fn carry_out(world: &mut Observed, action: &Action) {
        let wanted = world.wanted.clone();
        let claim = |generation: Generation| Claim {
            generation: Some(generation),
            asked: wanted.as_ref().map(|wanted| wanted.asked.clone()),
        };
        match action {
            Action::Guard => world.guarded = true,
            Action::LetGo => world.going = None,
            Action::MakeDaemons { generation } | Action::ChangeDaemons { generation } => {
                let template = wanted.unwrap().template;
                world.daemons = Some(Daemons { template, generation: *generation });
            }
            Action::MakeVolume => world.volume = true,
            Action::MakeClaim { generation } | Action::ChangeClaim { generation } => {
                world.claim = Some(claim(*generation));
            }
            Action::MakeAnew { pods } => world.troubled.retain(|one| !pods.contains(&one.pod)),
            Action::RemoveVolume => world.volume = false,
            Action::Nothing => {}
        }
    }

    /// Takes steps until nothing is left to do; looks at the invariant after each.
    fn settle(world: &mut Observed) -> Vec<Action> {
        let mut taken = Vec::new();
        loop {
            let action = decide(world);
            if action == Action::Nothing {
                return taken;
            }
            carry_out(world, &action);
            let claimed = world.claim.as_ref().and_then(|claim| claim.generation);
            let made = world.daemons.as_ref().map(|daemons| daemons.generation);
            assert!(claimed <= made || world.wanted.is_none(), "{action:?}: {world:?}");
            taken.push(action);
            assert!(taken.len() < 10, "never settles: {taken:?}");
        }
    }

    #[test]
    fn a_dataset_becomes_daemons_a_volume_and_a_claim() {
        let mut world = nothing_yet("one");
        let first = Generation::FIRST;
        let expected = [
            Action::Guard,
            Action::MakeDaemons { generation: first },
            Action::MakeVolume,
            Action::MakeClaim { generation: first },
        ];
        assert_eq!(settle(&mut world), expected);
    }

    #[test]
    fn a_change_goes_to_the_daemons_first() {
        let mut world = nothing_yet("one");
        settle(&mut world);
        world.wanted = Some(wanted("two"));
        let second = Generation::FIRST.next();
        let expected =
            [Action::ChangeDaemons { generation: second }, Action::ChangeClaim { generation: second }];
        assert_eq!(settle(&mut world), expected);
        world.daemons = None;
        let third = second.next();
        let expected = [Action::MakeDaemons { generation: third }, Action::ChangeClaim { generation: third }];
        assert_eq!(settle(&mut world), expected, "someone deleted the DaemonSet");
        world.claim.as_mut().unwrap().asked = None;
        assert_eq!(
            settle(&mut world),
            [Action::ChangeClaim { generation: third }],
            "someone changed the claim"
        );
        world.wanted = None;
        assert_eq!(settle(&mut world), [Action::RemoveVolume]);
    }

    #[test]
    fn what_workloads_use_stays_though_it_was_deleted() {
        let mut world = nothing_yet("one");
        settle(&mut world);
        (world.wanted, world.going) = (None, Some(Going::InUse));
        let before = world.clone();
        assert_eq!((settle(&mut world), &world), (vec![], &before));
        world.going = Some(Going::Free);
        assert_eq!(settle(&mut world), [Action::RemoveVolume, Action::LetGo], "nobody new comes first");
    }

    /// Whoever waits for it would wait for ever.
    #[test]
    fn a_daemon_that_cannot_run_is_made_anew_once_nodes_are_told_what_is_wanted() {
        let mut world = nothing_yet("one");
        settle(&mut world);
        let troubled = |node: &str, generation| Troubled {
            pod: format!("data-fuse-{node}"),
            node: node.into(),
            generation,
            has_run: false,
            why: "its image cannot be pulled".into(),
        };
        world.troubled = vec![troubled("a", Generation::FIRST)];
        assert_eq!(settle(&mut world), [], "another one would be the same");
        world.wanted = Some(wanted("two"));
        let second = Generation::FIRST.next();
        world.troubled.push(troubled("b", second));
        let expected = [
            Action::ChangeDaemons { generation: second },
            Action::ChangeClaim { generation: second },
            Action::MakeAnew { pods: vec!["data-fuse-a".into()] },
        ];
        assert_eq!(settle(&mut world), expected);
    }
}
