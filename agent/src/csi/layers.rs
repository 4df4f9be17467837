//! Which of the mounts that lie at a place, one on another, are what a container was given.
//!
//! A container has a copy of what lay on top when it started, and sees what is mounted on that one alone. Its copy follows the
//! original: both are of one group. A copy that came to a container by itself, because something was mounted on what it was given, lies on a
//! copy of another layer.
//!
//! Invariant: a layer that a container was given, as far as processes of this machine can be seen, is told as given.

use std::{collections::BTreeSet, fs, io, path::Path};

use crate::mount_table::{self, Line};

const PROCESSES: &str = "/proc";

/// A mount of a container that may be a copy of one of ours.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Copied {
    groups: Vec<u64>,
    /// Groups of what it is mounted on.
    on: Vec<u64>,
}

/// Of each layer at a place, from the lowest, whether it was given to somebody. The lowest counts as given: whoever was there first has it,
/// and not every process can be seen everywhere.
pub(super) fn given(layers: &[Line]) -> io::Result<Vec<bool>> {
    let copies = if layers.len() > 1 { copies()? } else { BTreeSet::new() };
    Ok(judge(layers, &copies))
}

fn judge(layers: &[Line], copies: &BTreeSet<Copied>) -> Vec<bool> {
    let is_layer = |group: &u64| layers.iter().any(|layer| layer.groups.contains(group));
    let was_given = |layer: &Line| {
        copies.iter().any(|copy| {
            copy.groups.iter().any(|group| layer.groups.contains(group)) && !copy.on.iter().any(is_layer)
        })
    };
    layers.iter().enumerate().map(|(index, layer)| index == 0 || was_given(layer)).collect()
}

/// The mounts of all processes that have mounts of their own.
fn copies() -> io::Result<BTreeSet<Copied>> {
    let space = |process: &Path| fs::read_link(process.join("ns/mnt"));
    let mut seen = BTreeSet::from([space(&Path::new(PROCESSES).join("self"))?]);
    let mut found = BTreeSet::new();
    for process in fs::read_dir(PROCESSES)? {
        let process = process?.path();
        // What is no process, or has ended meanwhile, has no mounts.
        if space(&process).is_ok_and(|space| seen.insert(space)) {
            found.extend(copied(&mount_table::read_of(&process).unwrap_or_default()));
        }
    }
    Ok(found)
}

fn copied(table: &[Line]) -> impl Iterator<Item = Copied> + '_ {
    let follows = |line: &&Line| !line.groups.is_empty();
    table.iter().filter(follows).map(|line| {
        let below = table.iter().find(|below| below.id == line.parent);
        Copied {
            groups: line.groups.clone(),
            on: below.map(|below| below.groups.clone()).unwrap_or_default(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line((id, parent): (u64, u64), groups: &[u64]) -> Line {
        Line {
            id,
            parent,
            device: "0:50".into(),
            at: "/pods/one/mount".into(),
            options: "rw".into(),
            is_shared: true,
            groups: groups.into(),
            kind: "fuse.midflight".into(),
        }
    }

    #[test]
    fn a_layer_was_given_to_whoever_has_a_copy_that_lies_on_no_other_layer() {
        let layers = [line((10, 1), &[100]), line((11, 10), &[101]), line((12, 11), &[102])];
        let root = || line((1, 1), &[1]);
        #[rustfmt::skip]
        let cases = [
            ("nobody can be seen",     vec![],                                                                    [true, false, false]),
            ("one from the start",     vec![root(), line((20, 1), &[100]), line((21, 20), &[101]), line((22, 21), &[102])], [true, false, false]),
            ("one that began later",   vec![root(), line((20, 1), &[101]), line((21, 20), &[102])],               [true, true, false]),
            ("one that began last",    vec![root(), line((20, 1), &[7, 102])],                                    [true, false, true]),
            ("one that follows",       vec![root(), line((20, 1), &[7, 100]), line((21, 20), &[8, 101])],         [true, false, false]),
            ("one of another place",   vec![root(), line((20, 1), &[200])],                                       [true, false, false]),
            ("one that follows nobody", vec![root(), line((20, 1), &[])],                                         [true, false, false]),
        ];
        for (name, container, expected) in cases {
            assert_eq!(judge(&layers, &copied(&container).collect()), expected, "{name}");
        }
    }
}
