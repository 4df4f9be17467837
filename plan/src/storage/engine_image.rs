//! Decides what becomes of an engine image.
//!
//! The invariant: the default image and one that something refers to are never retired.

use jiff::{SignedDuration, Timestamp};
use midflight_api::ImageRef;
use sha2::{Digest, Sha512};

/// How long an image that nothing refers to is kept.
pub const KEPT_FOR: SignedDuration = SignedDuration::from_mins(60);

/// Everything `decide` may look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    pub now: Timestamp,
    /// Whether new volumes get this image.
    pub is_default: bool,
    /// The object, if there is one.
    pub image: Option<Seen>,
}

/// What the object says, and who refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Volumes, engines and replicas that want or run it, each once.
    pub references: usize,
    pub unreferenced_since: Option<Timestamp>,
}

/// What to do. Each is safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Make the object of the default image.
    Create,
    /// Say who refers to it; look again when it may have to go.
    Keep { references: usize, unreferenced_since: Option<Timestamp>, look_again: Option<Timestamp> },
    /// Nothing has referred to it for so long that it goes.
    Retire,
    /// It is not there and need not be.
    Nothing,
}

pub fn decide(seen: &Observed) -> Action {
    let Some(image) = seen.image else {
        return if seen.is_default { Action::Create } else { Action::Nothing };
    };
    let references = image.references;
    if references > 0 {
        return Action::Keep { references, unreferenced_since: None, look_again: None };
    }
    let since = image.unreferenced_since.unwrap_or(seen.now);
    if seen.is_default {
        return Action::Keep { references, unreferenced_since: Some(since), look_again: None };
    }
    let until = since.saturating_add(KEPT_FOR).unwrap_or(Timestamp::MAX);
    if image.unreferenced_since.is_some() && until <= seen.now {
        return Action::Retire;
    }
    Action::Keep { references, unreferenced_since: Some(since), look_again: Some(until) }
}

/// The name of the object of an image, as upstream makes it.
pub fn name(image: &ImageRef) -> String {
    let digest = Sha512::digest(image.as_str().trim().as_bytes());
    let hex: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("ei-{hex}")
}

/// Where a node has the program of an image, below its folder of engine binaries.
pub fn binary(image: &ImageRef) -> String {
    format!("{}/midflight", image.as_str().trim().replace(['/', ':', '@'], "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + minute * 60).unwrap()
    }

    #[test]
    fn keeps_what_is_used_and_retires_the_rest_in_time() {
        let kept = |references, since: Option<i64>, again: Option<i64>| Action::Keep {
            references,
            unreferenced_since: since.map(at),
            look_again: again.map(at),
        };
        #[rustfmt::skip]
        let cases = [
            // what,                   default, (references, since),     at,  expected
            ("default, not there",       true,  None,                      0,   Action::Create),
            ("other, not there",         false, None,                      0,   Action::Nothing),
            ("used",                     false, Some((3, None)),           0,   kept(3, None, None)),
            ("used again",               false, Some((1, Some(0))),        90,  kept(1, None, None)),
            ("just released",            false, Some((0, None)),           5,   kept(0, Some(5), Some(65))),
            ("released a while ago",     false, Some((0, Some(5))),        64,  kept(0, Some(5), Some(65))),
            ("released an hour ago",     false, Some((0, Some(5))),        65,  Action::Retire),
            ("default, never used",      true,  Some((0, Some(5))),        500, kept(0, Some(5), None)),
        ];
        for (case, is_default, image, now, expected) in cases {
            let image = image.map(|(references, since): (usize, Option<i64>)| Seen {
                references,
                unreferenced_since: since.map(at),
            });
            let seen = Observed { now: at(now), is_default, image };
            assert_eq!(decide(&seen), expected, "{case}");
        }
    }

    #[test]
    fn is_named_as_upstream_names_it() {
        // printf 'longhornio/longhorn-engine:v1.7.0' | sha512sum | head -c 8
        assert_eq!(name(&"longhornio/longhorn-engine:v1.7.0".into()), "ei-04c05bf8");
        assert_eq!(name(&" a:b ".into()), name(&"a:b".into()));
    }
}
