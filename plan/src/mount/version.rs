//! Which version of a FUSE daemon is wanted, and which one runs.
//!
//! The one invariant: a daemon is behind only where both sides say something and say different
//! things; what is not known, or newer than what is asked for, never sends a daemon away.

use std::collections::BTreeMap;

use midflight_api::fluid::{GENERATION_LABEL, IMAGE_VERSION_ANNOTATION};
use serde::{Deserialize, Serialize};

/// A version, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    /// `IMAGE:TAG`.
    pub image: Option<String>,
    /// Counter of changes, of the image or anything else.
    pub generation: Option<String>,
}

impl Version {
    /// What a dataset's PVC asks for.
    pub fn wanted(annotations: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> Version {
        let said =
            |text: Option<&String>| text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        Version {
            image: said(annotations.get(IMAGE_VERSION_ANNOTATION)),
            generation: said(labels.get(GENERATION_LABEL)),
        }
    }

    /// What a daemon's pod has written down: its image in one file, its labels, a line each, in another.
    pub fn reported(image: Option<&str>, labels: Option<&str>) -> Version {
        let said = |text: &str| Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        Version { image: image.and_then(said), generation: labels.and_then(generation_in) }
    }

    /// Whether a daemon of this version is to be replaced by what is asked for.
    ///
    /// Generations only grow, and reach the DaemonSet before the claim: a daemon that is ahead of its claim was made from
    /// what the claim is about to ask for, and any other in its place would be the same.
    pub fn is_behind(&self, asked: &Version) -> bool {
        match (self.counter(), asked.counter()) {
            (Some(runs), Some(asked)) if runs != asked => runs < asked,
            _ => self.differs(asked),
        }
    }

    fn counter(&self) -> Option<u64> {
        self.generation.as_ref()?.parse().ok()
    }

    fn differs(&self, other: &Version) -> bool {
        let differ =
            |one: &Option<String>, two: &Option<String>| one.is_some() && two.is_some() && one != two;
        differ(&self.image, &other.image) || differ(&self.generation, &other.generation)
    }
}

/// For people.
impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (&self.image, &self.generation) {
            (Some(image), Some(generation)) => write!(f, "{image} (generation {generation})"),
            (Some(image), None) => f.write_str(image),
            (None, Some(generation)) => write!(f, "generation {generation}"),
            (None, None) => f.write_str("an unknown version"),
        }
    }
}

/// The counter in a file of labels (`key="value"`).
fn generation_in(labels: &str) -> Option<String> {
    let value = labels.lines().find_map(|line| line.strip_prefix(GENERATION_LABEL)?.strip_prefix('='))?;
    Some(value.trim().trim_matches('"').to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_behind_only_where_both_sides_are_known() {
        let version = |image: &str, generation: &str| {
            let part = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            Version { image: part(image), generation: part(generation) }
        };
        #[rustfmt::skip]
        let cases = [
            ("the same",                 version("a:1", "1"),  version("a:1", "1"),  false),
            ("another image",            version("a:1", "1"),  version("a:2", "1"),  true),
            ("another environment",      version("a:1", "1"),  version("a:1", "2"),  true),
            ("no generation is asked",   version("a:1", "1"),  version("a:1", ""),   false),
            ("no generation is told",    version("a:1", ""),   version("a:1", "2"),  false),
            ("images alone",             version("a:2", ""),   version("a:1", "1"),  true),
            ("nothing told",             version("", ""),      version("a:1", "1"),  false),
            ("nothing asked",            version("a:1", "1"),  version("", ""),      false),
            ("only the generation",      version("", "1"),     version("a:1", "2"),  true),
            ("ahead of its claim",       version("a:2", "2"),  version("a:1", "1"),  false),
            ("ahead, the same image",    version("a:1", "2"),  version("a:1", "1"),  false),
            ("numbers, not words",       version("a:1", "9"),  version("a:2", "10"), true),
            ("ahead, not words",         version("a:2", "10"), version("a:1", "9"),  false),
            ("words",                    version("a:1", "b"),  version("a:1", "a"),  true),
        ];
        for (name, runs, asked, expected) in cases {
            assert_eq!(runs.is_behind(&asked), expected, "{name}");
        }
    }

    #[test]
    fn pods_report_in_both_ways() {
        let labels =
            "app=\"x\"\nfuse.runtime.fluid.io/generation=\"3\"\nfuse.runtime.fluid.io/generation-old=\"1\"\n";
        let expected = Version { image: Some("juicefs:v1".into()), generation: Some("3".into()) };
        assert_eq!(Version::reported(Some("juicefs:v1\n"), Some(labels)), expected);
        assert_eq!(Version::reported(Some("\n"), Some("app=\"x\"")), Version::default());
        assert_eq!(Version::reported(None, None), Version::default());
    }

    #[test]
    fn a_claim_asks_in_both_ways() {
        let map = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let wanted = Version::wanted(&map(IMAGE_VERSION_ANNOTATION, "a:2"), &map(GENERATION_LABEL, "4"));
        assert_eq!(wanted, Version { image: Some("a:2".into()), generation: Some("4".into()) });
        assert_eq!(Version::wanted(&BTreeMap::new(), &BTreeMap::new()), Version::default());
    }
}
