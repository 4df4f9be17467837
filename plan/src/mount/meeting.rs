//! Decides whether the first workload of a daemon takes the one that came.
//!
//! It insists on what was wanted when it was staged: a daemon that was sent away may have come back before anyone saw its label go. But whoever makes
//! daemons may never make what the claim asks for, and then every next one is the same.
//!
//! The one invariant: where one daemon after the other is of the same version, one of them at most is refused for one wish within an
//! hour, so every workload gets one.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::Version;

/// How long a daemon that was refused stands for those after it. A claim may be written before the DaemonSet that makes what it asks for.
pub const INSISTS_AGAIN_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// A daemon that was not what its first workload insists on. Not told by the number of its mount: that is given again to the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// What the workload insisted on.
    pub wish: Version,
    pub version: Version,
    /// Whether no mount was seen since. A daemon that crashed and came back counts as the next one, too.
    pub has_gone: bool,
    pub at: Timestamp,
}

impl Refused {
    /// Whether it still stands for those after it; not where the clock was set back.
    pub fn counts(&self, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() < INSISTS_AGAIN_AFTER
    }

    /// Whether a daemon of that version is the same as this one was, come anew for the same wish.
    pub(super) fn comes_again(&self, version: &Version, wish: &Version, now: Timestamp) -> bool {
        self.has_gone && self.version == *version && self.wish == *wish && self.counts(now)
    }
}

/// Whether a daemon had its time to say what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waited {
    NotLong,
    Enough,
}

/// Everything `meet` may look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Came<'a> {
    /// What the workload insists on.
    pub expects: &'a Version,
    /// What the daemon says of itself.
    pub reports: &'a Version,
    /// The one that was refused last.
    pub refused: Option<&'a Refused>,
    pub waited: Waited,
    pub now: Timestamp,
}

/// What becomes of a daemon that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    Take,
    /// It has not said yet what it is.
    Await,
    /// It goes once more, and the next one comes.
    Refuse,
    TakeAnyway(Anyway),
}

/// Why a workload takes a daemon that is perhaps not what is wanted. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Anyway {
    #[error(
        "the claim asks for {expects}, and the daemon that came in the place of another is of {reports} as well"
    )]
    SameAgain { expects: Version, reports: Version },
    #[error("the claim asks for {expects}, and the daemon does not say what it is")]
    Untold { expects: Version },
}

pub fn meet(came: &Came<'_>) -> Meeting {
    let &Came { expects, reports, refused, waited, now } = came;
    // Daemons of ours tell their image a moment after they mount; of others there may be nothing to wait for.
    if *reports == Version::default() && expects.image.is_some() {
        return match waited {
            Waited::NotLong => Meeting::Await,
            Waited::Enough => Meeting::TakeAnyway(Anyway::Untold { expects: expects.clone() }),
        };
    }
    if !reports.is_behind(expects) {
        return Meeting::Take;
    }
    match refused {
        Some(before) if before.comes_again(reports, expects, now) => {
            Meeting::TakeAnyway(Anyway::SameAgain { expects: expects.clone(), reports: reports.clone() })
        }
        Some(_) | None => Meeting::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(image: &str, generation: &str) -> Version {
        let part = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Version { image: part(image), generation: part(generation) }
    }

    #[test]
    fn a_daemon_is_refused_once_for_one_wish() {
        use {Meeting::*, Waited::*};
        let (asked, fluids) = (version("a:2", "2"), version("", "2"));
        let same = |expects: &Version, reports: &Version| {
            TakeAnyway(Anyway::SameAgain { expects: expects.clone(), reports: reports.clone() })
        };
        let untold = || TakeAnyway(Anyway::Untold { expects: asked.clone() });
        let at = Timestamp::UNIX_EPOCH;
        let refused = |generation, has_gone| {
            Some(Refused { wish: asked.clone(), version: version("a:1", generation), has_gone, at })
        };
        let of_fluid = Some(Refused { wish: fluids.clone(), version: version("", "1"), has_gone: true, at });
        let then = |at: Timestamp| Some(Refused { at, ..refused("1", true).unwrap() });
        let elsewhen = [at - INSISTS_AGAIN_AFTER, at + INSISTS_AGAIN_AFTER];
        let earlier_wish = Some(Refused { wish: version("a:2", "1"), ..refused("1", true).unwrap() });
        let (none, old) = (version("", ""), version("a:1", "1"));
        #[rustfmt::skip]
        let cases = [
            ("what is wanted",             &asked,  version("a:2", "2"), None,                NotLong, Take),
            ("newer than that",            &asked,  version("a:3", "3"), None,                NotLong, Take),
            ("it has come back",           &asked,  old.clone(),         None,                NotLong, Refuse),
            ("it has not gone yet",        &asked,  old.clone(),         refused("1", false), NotLong, Refuse),
            ("the next one is the same",   &asked,  old.clone(),         refused("1", true),  NotLong, same(&asked, &old)),
            ("the next one is another",    &asked,  old.clone(),         refused("0", true),  NotLong, Refuse),
            ("the same, for another wish", &asked,  old.clone(),         earlier_wish,        NotLong, Refuse),
            ("the same, after an hour",    &asked,  old.clone(),         then(elsewhen[0]),   NotLong, Refuse),
            ("the clock was set back",     &asked,  old.clone(),         then(elsewhen[1]),   NotLong, Refuse),
            ("the next one is right",      &asked,  version("a:2", "2"), refused("1", true),  NotLong, Take),
            ("it says nothing yet",        &asked,  none.clone(),        None,                NotLong, Await),
            ("it never says anything",     &asked,  none.clone(),        None,                Enough,  untold()),
            ("nor does the next one",      &asked,  none.clone(),        refused("1", true),  Enough,  untold()),
            ("Fluid's, behind",            &fluids, version("", "1"),    None,                NotLong, Refuse),
            ("Fluid's, the same again",    &fluids, version("", "1"),    of_fluid,            NotLong, same(&fluids, &version("", "1"))),
            ("Fluid's, that tell nothing", &fluids, none.clone(),        None,                NotLong, Take),
        ];
        for (name, expects, reports, refused, waited, expected) in cases {
            let came = Came { expects, reports: &reports, refused: refused.as_ref(), waited, now: at };
            assert_eq!(meet(&came), expected, "{name}");
        }
    }

    #[test]
    fn people_are_told_which_versions() {
        let anyway =
            Anyway::SameAgain { expects: version("a:2", "2"), reports: version("", "1") }.to_string();
        let words = "the claim asks for a:2 (generation 2), and the daemon that came in the place of another is of generation 1 as well";
        assert_eq!(anyway, words);
    }
}
