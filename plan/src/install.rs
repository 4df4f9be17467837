//! Decides which of our kinds to install in a cluster.
//!
//! The invariant: a definition that somebody else made is never touched, and
//! where Longhorn or Fluid runs, no kind of theirs is added beside those they have.

use midflight_api::{System, system_of};

/// Whose a definition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// It carries our label.
    Midflight,
    SomebodyElse,
}

/// One of our kinds, and whose definition of that name the cluster has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Name of the definition, such as `volumes.longhorn.io`.
    pub name: String,
    /// Nobody's if it is not there.
    pub owner: Option<Owner>,
}

/// What to do with one kind. Each is safe to repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It is not there: make it, unless somebody makes it first.
    Create,
    /// It is ours: bring it to this version.
    Update,
}

/// Why a kind is left alone. Shown to the user verbatim.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StandDown {
    #[error("{name} belongs to somebody else and is left alone; what Midflight does with it is off")]
    SomebodyElses { name: String },
    #[error("{name} is not added: {system} runs here, as its {sign} shows, and its kinds are its own")]
    OfSystem { name: String, system: System, sign: String },
}

/// What to do with the kind of this name, given all that was seen.
pub fn decide(kind: &Seen, all: &[Seen]) -> Result<Action, StandDown> {
    let name = kind.name.clone();
    match kind.owner {
        Some(Owner::Midflight) => return Ok(Action::Update),
        Some(Owner::SomebodyElse) => return Err(StandDown::SomebodyElses { name }),
        None => {}
    }
    let Some(system) = system_of(&kind.name) else {
        return Ok(Action::Create);
    };
    match all
        .iter()
        .find(|other| other.owner == Some(Owner::SomebodyElse) && system_of(&other.name) == Some(system))
    {
        Some(sign) => Err(StandDown::OfSystem { name, system, sign: sign.name.clone() }),
        None => Ok(Action::Create),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, owner: Option<Owner>) -> Seen {
        Seen { name: name.into(), owner }
    }

    #[test]
    fn never_touches_what_is_not_ours() {
        use Action::{Create, Update};
        let (ours, theirs) = (Some(Owner::Midflight), Some(Owner::SomebodyElse));
        let longhorn = || {
            Err(StandDown::OfSystem {
                name: "nodes.longhorn.io".into(),
                system: System::Longhorn,
                sign: "volumes.longhorn.io".into(),
            })
        };
        #[rustfmt::skip]
        let cases = [
            ("an empty cluster",         ("volumes.longhorn.io", None),        vec![],                                          Ok(Create)),
            ("ours",                     ("volumes.longhorn.io", ours),        vec![],                                          Ok(Update)),
            ("Longhorn's",               ("volumes.longhorn.io", theirs),      vec![], Err(StandDown::SomebodyElses { name: "volumes.longhorn.io".into() })),
            ("another of Longhorn's",    ("nodes.longhorn.io", None),          vec![("volumes.longhorn.io", theirs)],           longhorn()),
            ("a seed's beside Longhorn", ("images.longhorn.io", None),         vec![("volumes.longhorn.io", theirs)],           Ok(Create)),
            ("ours beside Longhorn",     ("volumerecords.midflight.dev", None), vec![("volumes.longhorn.io", theirs)],          Ok(Create)),
            ("Fluid's beside Longhorn",  ("datasets.data.fluid.io", None),     vec![("volumes.longhorn.io", theirs)],           Ok(Create)),
            ("a stranger's Image",       ("nodes.longhorn.io", None),          vec![("images.longhorn.io", theirs)],            Ok(Create)),
            ("half installed by us",     ("nodes.longhorn.io", None),          vec![("volumes.longhorn.io", ours)],             Ok(Create)),
        ];
        for (case, (name, owner), others, expected) in cases {
            let kind = seen(name, owner);
            let mut all: Vec<Seen> = others.into_iter().map(|(name, owner)| seen(name, owner)).collect();
            all.push(kind.clone());
            assert_eq!(decide(&kind, &all), expected, "{case}");
        }
    }
}
