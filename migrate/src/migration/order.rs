//! Decides which migrations are still to be run, and in which order.
//!
//! Input is what is available and what the log says was applied. Nothing here
//! reads a file or a clock, so every rule can be tested as a table.
//!
//! The one invariant: the order is total and says nothing by chance. Where
//! neither date nor `after` orders two migrations, the run is refused.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::manifest::Header;

/// What the log says of a migration that ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    pub id: String,
    pub release: String,
    pub proposed_at: Timestamp,
}

/// What the operator allowed by a flag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowed {
    /// `--allow-out-of-order`: run a migration that is older than one already applied.
    pub out_of_order: bool,
    /// `--allow-newer-database`: go on though the log names migrations we do not have.
    pub newer_database: bool,
}

/// Why no order can be given. Shown to the operator verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("migration {id} is found twice; remove one of the two")]
    Duplicate { id: String },

    #[error("{id} must run after {missing}, which is neither available nor applied")]
    MissingDependency { id: String, missing: String },

    #[error("migrations wait for each other in a circle: {}", ids.join(" -> "))]
    Cycle { ids: Vec<String> },

    #[error(
        "{first} and {second} were proposed at the same time ({at}); \
         order them with `after` in one of the two"
    )]
    Ambiguous { first: String, second: String, at: Timestamp },

    #[error(
        "{id} was proposed at {proposed_at}, before {newest} which is already applied; \
         check that it still fits, then allow it with --allow-out-of-order"
    )]
    OutOfOrder { id: String, proposed_at: Timestamp, newest: String },

    #[error(
        "{id} stands for several migrations, of which {applied} is applied and {waiting} is not; \
         apply the rest of them first, or mark them with `baseline`"
    )]
    PartlyReplaced { id: String, applied: String, waiting: String },

    #[error(
        "the database is newer than this tool: {id} of release {release} is applied but not available here; \
         use the tool of release {release}, or go on with --allow-newer-database"
    )]
    NewerDatabase { id: String, release: String },
}

/// The migrations to run, as indices into `available`, first to last.
pub fn pending(
    available: &[Header],
    applied: &[Applied],
    allowed: Allowed,
) -> Result<Vec<usize>, OrderError> {
    let index = by_id(available)?;
    let done: BTreeSet<&str> = applied.iter().map(|entry| entry.id.as_str()).collect();
    refuse_newer(available, applied, &index, allowed)?;
    refuse_partly_replaced(available, &done)?;

    let waiting: Vec<usize> = (0..available.len()).filter(|&i| !is_applied(&available[i], &done)).collect();
    refuse_out_of_order(available, applied, &waiting, allowed)?;
    let before = dependencies(available, &waiting, &index, &done)?;
    sort(available, waiting, &before)
}

fn by_id(available: &[Header]) -> Result<BTreeMap<&str, usize>, OrderError> {
    let mut index = BTreeMap::new();
    for (i, header) in available.iter().enumerate() {
        if index.insert(header.id.as_str(), i).is_some() {
            return Err(OrderError::Duplicate { id: header.id.clone() });
        }
    }
    Ok(index)
}

fn is_applied(header: &Header, done: &BTreeSet<&str>) -> bool {
    let replaced = !header.replaces.is_empty() && header.replaces.iter().all(|id| done.contains(id.as_str()));
    replaced || done.contains(header.id.as_str())
}

/// One that stands for others cannot run on what some of them have left.
fn refuse_partly_replaced(available: &[Header], done: &BTreeSet<&str>) -> Result<(), OrderError> {
    for header in available.iter().filter(|header| !done.contains(header.id.as_str())) {
        let (applied, waiting): (Vec<_>, Vec<_>) =
            header.replaces.iter().partition(|id| done.contains(id.as_str()));
        if let (Some(&applied), Some(&waiting)) = (applied.first(), waiting.first()) {
            return Err(OrderError::PartlyReplaced {
                id: header.id.clone(),
                applied: applied.clone(),
                waiting: waiting.clone(),
            });
        }
    }
    Ok(())
}

fn refuse_newer(
    available: &[Header],
    applied: &[Applied],
    index: &BTreeMap<&str, usize>,
    allowed: Allowed,
) -> Result<(), OrderError> {
    let replaced: BTreeSet<&String> = available.iter().flat_map(|header| &header.replaces).collect();
    let unknown =
        applied.iter().find(|entry| !index.contains_key(entry.id.as_str()) && !replaced.contains(&entry.id));
    match unknown {
        Some(entry) if !allowed.newer_database => {
            Err(OrderError::NewerDatabase { id: entry.id.clone(), release: entry.release.clone() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses what would have run before something that is applied, had it been there; not what says itself that it comes
/// after that.
fn refuse_out_of_order(
    available: &[Header],
    applied: &[Applied],
    waiting: &[usize],
    allowed: Allowed,
) -> Result<(), OrderError> {
    if allowed.out_of_order {
        return Ok(());
    }
    let ranks = Ranks::of(available, applied);
    for header in waiting.iter().map(|&i| &available[i]) {
        let earlier = ranks.before(&header.id);
        let others = applied.iter().filter(|entry| !earlier.contains(entry.id.as_str()));
        let Some(newest) = others.max_by_key(|entry| ranks.rank(&entry.id)) else { continue };
        match ranks.rank(&header.id).cmp(&ranks.rank(&newest.id)) {
            Ordering::Greater => {}
            Ordering::Less => {
                return Err(OrderError::OutOfOrder {
                    id: header.id.clone(),
                    proposed_at: header.proposed_at,
                    newest: newest.id.clone(),
                });
            }
            Ordering::Equal => {
                return Err(OrderError::Ambiguous {
                    first: newest.id.clone(),
                    second: header.id.clone(),
                    at: header.proposed_at,
                });
            }
        }
    }
    Ok(())
}

/// What dates and `after` say of all migrations that are known, applied or not.
struct Ranks<'a> {
    proposed_at: BTreeMap<&'a str, Timestamp>,
    after: BTreeMap<&'a str, Vec<&'a str>>,
}

impl<'a> Ranks<'a> {
    fn of(available: &'a [Header], applied: &'a [Applied]) -> Ranks<'a> {
        let mut proposed_at: BTreeMap<&str, Timestamp> =
            applied.iter().map(|entry| (entry.id.as_str(), entry.proposed_at)).collect();
        let mut after: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for header in available {
            proposed_at.entry(&header.id).or_insert(header.proposed_at);
            // One that stands for others comes where they do, and so does what waits for one of them.
            let before = header.after.iter().chain(&header.replaces).map(String::as_str);
            after.entry(&header.id).or_default().extend(before);
            for replaced in &header.replaces {
                after.entry(replaced).or_default().extend(header.after.iter().map(String::as_str));
            }
        }
        Ranks { proposed_at, after }
    }

    /// Everything that must run before this one, however far back.
    fn before(&self, id: &str) -> BTreeSet<&'a str> {
        let of = |id: &str| self.after.get(id).into_iter().flatten().copied();
        let mut found = BTreeSet::new();
        let mut open: Vec<&str> = of(id).collect();
        while let Some(next) = open.pop() {
            if found.insert(next) {
                open.extend(of(next));
            }
        }
        found
    }

    /// When its turn is: not before that of the latest that it waits for, and among those by its own date.
    fn rank(&self, id: &str) -> (Option<Timestamp>, Option<Timestamp>) {
        let own = self.proposed_at.get(id).copied();
        let latest = self.before(id).iter().filter_map(|id| self.proposed_at.get(id)).max().copied();
        (latest.max(own), own)
    }
}

/// For each waiting migration those waiting ones that must run before it.
fn dependencies(
    available: &[Header],
    waiting: &[usize],
    index: &BTreeMap<&str, usize>,
    done: &BTreeSet<&str>,
) -> Result<BTreeMap<usize, BTreeSet<usize>>, OrderError> {
    let mut before: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for &i in waiting {
        let entry = before.entry(i).or_default();
        for id in &available[i].after {
            // What another stands for is waited for where that one is.
            let stands_for = || available.iter().position(|header| header.replaces.contains(id));
            match index.get(id.as_str()).copied().or_else(stands_for) {
                _ if done.contains(id.as_str()) => {}
                Some(earlier) if waiting.contains(&earlier) => {
                    entry.insert(earlier);
                }
                Some(_) => {}
                None => {
                    let id_of = available[i].id.clone();
                    return Err(OrderError::MissingDependency { id: id_of, missing: id.clone() });
                }
            }
        }
    }
    Ok(before)
}

/// Repeatedly takes the oldest migration that waits for no other.
fn sort(
    available: &[Header],
    mut waiting: Vec<usize>,
    before: &BTreeMap<usize, BTreeSet<usize>>,
) -> Result<Vec<usize>, OrderError> {
    let mut order = Vec::with_capacity(waiting.len());
    let mut placed = BTreeSet::new();
    while !waiting.is_empty() {
        let mut ready: Vec<usize> =
            waiting.iter().copied().filter(|i| before[i].is_subset(&placed)).collect();
        ready.sort_by_key(|&i| available[i].proposed_at);
        let Some(&next) = ready.first() else {
            return Err(OrderError::Cycle { ids: cycle(available, &waiting, before) });
        };
        if let Some(&twin) = ready.get(1)
            && available[twin].proposed_at == available[next].proposed_at
        {
            return Err(OrderError::Ambiguous {
                first: available[next].id.clone(),
                second: available[twin].id.clone(),
                at: available[next].proposed_at,
            });
        }
        waiting.retain(|&i| i != next);
        placed.insert(next);
        order.push(next);
    }
    Ok(order)
}

/// Follows what each waits for until one comes up again.
fn cycle(available: &[Header], waiting: &[usize], before: &BTreeMap<usize, BTreeSet<usize>>) -> Vec<String> {
    let mut path = vec![waiting[0]];
    loop {
        let last = path[path.len() - 1];
        let next = before[&last].iter().copied().find(|i| waiting.contains(i));
        let next = next.expect("every waiting migration waits for another waiting one");
        let seen = path.iter().position(|&i| i == next);
        path.push(next);
        if let Some(start) = seen {
            return path[start..].iter().map(|&i| available[i].id.clone()).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Table;

    /// A migration named `id`, proposed on that day of January 2018.
    fn migration(id: &str, day: i64) -> Header {
        Header {
            id: id.into(),
            release: "queens".into(),
            description: String::new(),
            proposed_at: at(day),
            after: vec![],
            replaces: vec![],
            tables: vec![Table::new("lport")],
        }
    }

    fn after(mut header: Header, id: &str) -> Header {
        header.after.push(id.into());
        header
    }

    fn replacing(mut header: Header, ids: &[&str]) -> Header {
        header.replaces = ids.iter().map(|&id| id.into()).collect();
        header
    }

    fn applied(id: &str, day: i64) -> Applied {
        Applied { id: id.into(), release: "queens".into(), proposed_at: at(day) }
    }

    fn at(day: i64) -> Timestamp {
        Timestamp::from_second(1_514_764_800 + day * 86_400).unwrap()
    }

    const STRICT: Allowed = Allowed { out_of_order: false, newer_database: false };

    fn ids(available: &[Header], log: &[Applied], allowed: Allowed) -> Result<Vec<String>, OrderError> {
        let order = pending(available, log, allowed)?;
        Ok(order.into_iter().map(|i| available[i].id.clone()).collect())
    }

    #[test]
    fn runs_what_is_pending_in_the_order_proposed() {
        let (a, b, c) = (migration("a", 1), migration("b", 2), migration("c", 3));
        #[rustfmt::skip]
        let cases = [
            ("nothing available",  vec![],                                   vec![],                 vec![]),
            ("none applied",       vec![c.clone(), a.clone(), b.clone()],    vec![],                 vec!["a", "b", "c"]),
            ("first applied",      vec![c.clone(), a.clone(), b.clone()],    vec![applied("a", 1)],  vec!["b", "c"]),
            ("all applied",        vec![a.clone()],                          vec![applied("a", 1)],  vec![]),
            ("after beats dates",  vec![after(a.clone(), "b"), b.clone()],   vec![],                 vec!["b", "a"]),
            ("after splits a tie", vec![after(migration("x", 2), "b"), b.clone()], vec![],           vec!["b", "x"]),
            ("after an applied",   vec![a.clone(), after(b.clone(), "a")],   vec![applied("a", 1)],  vec!["b"]),
            ("after a replaced",   vec![replacing(b.clone(), &["a"]), after(c.clone(), "a")], vec![],        vec!["b", "c"]),
            ("after its twin",     vec![a.clone(), after(migration("x", 1), "a")], vec![applied("a", 1)],    vec!["x"]),
            ("after a newer one",  vec![after(a.clone(), "b"), b.clone()],   vec![applied("b", 2)],  vec!["a"]),
            ("after, in turn",     vec![after(a.clone(), "x"), after(migration("x", 2), "b"), b.clone()], vec![applied("b", 2)], vec!["x", "a"]),
            ("twin, in turn",      vec![after(migration("y", 2), "x"), after(migration("x", 2), "b"), b.clone()], vec![applied("b", 2), applied("x", 2)], vec!["y"]),
            ("after the newest",   vec![after(a.clone(), "c"), b.clone(), c.clone()], vec![applied("b", 2), applied("c", 3)], vec!["a"]),
            ("after one replaced", vec![after(a.clone(), "b"), replacing(c.clone(), &["b"])], vec![applied("b", 2)], vec!["a"]),
            ("replaced and done",  vec![replacing(c.clone(), &["a", "b"])],  vec![applied("a", 1), applied("b", 2)], vec![]),
        ];
        for (name, available, log, expected) in cases {
            assert_eq!(
                ids(&available, &log, STRICT),
                Ok(expected.iter().map(|s| (*s).to_owned()).collect()),
                "{name}"
            );
        }
    }

    #[test]
    fn refuses_what_has_no_certain_order() {
        let (a, b) = (migration("a", 1), migration("b", 2));
        let missing = OrderError::MissingDependency { id: "a".into(), missing: "z".into() };
        let twin = OrderError::Ambiguous { first: "b".into(), second: "x".into(), at: at(2) };
        let half = OrderError::PartlyReplaced { id: "c".into(), applied: "a".into(), waiting: "b".into() };
        let late = OrderError::OutOfOrder { id: "a".into(), proposed_at: at(1), newest: "b".into() };
        let still = OrderError::OutOfOrder { id: "a".into(), proposed_at: at(1), newest: "c".into() };
        let newer = OrderError::NewerDatabase { id: "n".into(), release: "queens".into() };
        let circle = OrderError::Cycle { ids: vec!["a".into(), "b".into(), "a".into()] };
        #[rustfmt::skip]
        let cases = [
            ("twice",         vec![a.clone(), a.clone()],                             vec![],                 OrderError::Duplicate { id: "a".into() }),
            ("after nothing", vec![after(a.clone(), "z")],                            vec![],                 missing),
            ("circle",        vec![after(a.clone(), "b"), after(b.clone(), "a")],     vec![],                 circle),
            ("same time",     vec![b.clone(), migration("x", 2)],                     vec![],                 twin.clone()),
            ("same as done",  vec![b.clone(), migration("x", 2)],                     vec![applied("b", 2)],  twin.clone()),
            ("half replaced", vec![replacing(migration("c", 3), &["a", "b"])],        vec![applied("a", 1)],  half),
            ("came late",     vec![a.clone(), b.clone()],                             vec![applied("b", 2)],  late),
            ("still late",    vec![after(a.clone(), "b"), b.clone(), migration("c", 3)], vec![applied("b", 2), applied("c", 3)], still),
            ("newer log",     vec![a.clone()],                                        vec![applied("n", 9)],  newer),
        ];
        for (name, available, log, expected) in cases {
            assert_eq!(ids(&available, &log, STRICT), Err(expected), "{name}");
        }
    }

    #[test]
    fn flags_allow_what_can_be_allowed() {
        let (a, b) = (migration("a", 1), migration("b", 2));
        let late = Allowed { out_of_order: true, ..STRICT };
        assert_eq!(ids(&[a.clone(), b], &[applied("b", 2)], late), Ok(vec!["a".to_owned()]));
        let newer = Allowed { newer_database: true, out_of_order: true };
        assert_eq!(ids(&[a], &[applied("n", 9)], newer), Ok(vec!["a".to_owned()]));
    }
}
