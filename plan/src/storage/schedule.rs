//! Decides on which node a replica is to be.
//!
//! The invariant: no two replicas of a volume come to one node, and none to a node that does not
//! take replicas or lacks the room.

use midflight_api::{NodeName, Size};

/// A node that may get replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub node: NodeName,
    /// Why no replica may come to it, if so.
    pub closed: Option<Closed>,
    /// Bytes that are free for replicas.
    pub free: u64,
}

/// A disk of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disk {
    pub size: u64,
    /// Bytes that nobody uses, as was last seen.
    pub free: u64,
    /// Bytes that are not for replicas.
    pub reserved: u64,
}

/// The room that disks have for another replica: what was not promised to others, and no more than is free.
pub fn room(disks: impl Iterator<Item = Disk>, promised: u64) -> u64 {
    let (mut whole, mut free) = (0u64, 0u64);
    for disk in disks {
        whole = whole.saturating_add(disk.size.saturating_sub(disk.reserved));
        free = free.saturating_add(disk.free.saturating_sub(disk.reserved));
    }
    whole.saturating_sub(promised).min(free)
}

/// Why a node takes no replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    #[error("is not ready")]
    NotReady,
    #[error("takes no new replicas (allowScheduling is false)")]
    Off,
    #[error("is being upgraded")]
    Upgrading,
    #[error("has no running instance manager")]
    NoManager,
    #[error("does not have the tags that nodeSelector and diskSelector of the volume ask for")]
    NotSelected,
}

/// Why there is no node for a replica. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    #[error("the cluster has no nodes for replicas")]
    NoNodes,
    #[error(
        "each of the {nodes} nodes holds a replica of the volume already; add a node, or ask for fewer replicas"
    )]
    AllTaken { nodes: usize },
    #[error("node {node} {why}")]
    Closed { node: NodeName, why: Closed },
    #[error("node {node} has {free} bytes free, and the volume needs {needed}")]
    Full { node: NodeName, free: u64, needed: Size },
}

/// The node with the most room that holds no replica of the volume yet. If there is none, what keeps the
/// best of the others from it.
pub fn schedule(places: &[Place], taken: &[&NodeName], size: Size) -> Result<NodeName, NoPlace> {
    if places.is_empty() {
        return Err(NoPlace::NoNodes);
    }
    let mut untaken: Vec<&Place> = places.iter().filter(|place| !taken.contains(&&place.node)).collect();
    untaken.sort_by_key(|place| (place.closed.is_some(), u64::MAX - place.free, place.node.clone()));
    let Some(best) = untaken.first() else {
        return Err(NoPlace::AllTaken { nodes: places.len() });
    };
    let node = best.node.clone();
    if let Some(why) = best.closed {
        return Err(NoPlace::Closed { node, why });
    }
    if best.free < size.bytes() {
        return Err(NoPlace::Full { node, free: best.free, needed: size });
    }
    Ok(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_what_is_neither_promised_nor_reserved_nor_used_by_others() {
        let disk = |size, free, reserved| Disk { size, free, reserved };
        #[rustfmt::skip]
        let cases = [
            ("an empty disk",            vec![disk(100, 100, 0)],                    0,   100),
            ("promised to replicas",     vec![disk(100, 100, 0)],                    30,  70),
            ("used by somebody else",    vec![disk(100, 20, 0)],                     0,   20),
            ("used, and promised",       vec![disk(100, 50, 0)],                     70,  30),
            ("reserved",                 vec![disk(100, 100, 40)],                   0,   60),
            ("reserved, and used",       vec![disk(100, 50, 40)],                    0,   10),
            ("less free than reserved",  vec![disk(100, 30, 40)],                    0,   0),
            ("more promised than there", vec![disk(100, 100, 0)],                    130, 0),
            ("two disks",                vec![disk(100, 60, 0), disk(100, 90, 50)],  30,  100),
            ("no disk",                  vec![],                                     0,   0),
        ];
        for (case, disks, promised, expected) in cases {
            assert_eq!(room(disks.into_iter(), promised), expected, "{case}");
        }
    }

    #[test]
    fn takes_the_roomiest_node_that_holds_no_replica_yet() {
        let place = |node: &str, free| Place { node: node.into(), closed: None, free };
        let shut = |node: &str, why| Place { closed: Some(why), ..place(node, 900) };
        let (a, b) = (NodeName::from("a"), NodeName::from("b"));
        #[rustfmt::skip]
        let cases = [
            ("the roomiest",   vec![place("a", 100), place("b", 200)],          vec![],       Ok(b.clone())),
            ("a tie",          vec![place("b", 100), place("a", 100)],          vec![],       Ok(a.clone())),
            ("taken",          vec![place("a", 100), place("b", 200)],          vec![&b],     Ok(a.clone())),
            ("closed",         vec![place("a", 100), shut("b", Closed::Off)],   vec![],       Ok(a.clone())),
            ("all taken",      vec![place("a", 100), place("b", 200)],          vec![&a, &b], Err(NoPlace::AllTaken { nodes: 2 })),
            ("only a closed",  vec![place("a", 100), shut("b", Closed::NotReady)], vec![&a],  Err(NoPlace::Closed { node: b.clone(), why: Closed::NotReady })),
            ("too full",       vec![place("a", 63)],                            vec![],       Err(NoPlace::Full { node: a.clone(), free: 63, needed: Size::from_bytes(64) })),
            ("nobody",         vec![],                                          vec![],       Err(NoPlace::NoNodes)),
        ];
        for (case, places, taken, expected) in cases {
            assert_eq!(schedule(&places, &taken, Size::from_bytes(64)), expected, "{case}");
        }
    }
}
