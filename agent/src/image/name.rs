//! How images are called.
//!
//! The one invariant: a name spells out its host, so that two names are the same image if and only if they are equal.

use std::{fmt, str::FromStr};

use oci_spec::distribution::{ParseError, Reference};

use super::Digest;

/// Stands for the registry of the cluster itself, wherever that listens.
pub const LOCAL: &str = "midflight.local";

/// `HOST/REPOSITORY:TAG`, or `HOST/REPOSITORY@DIGEST`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ImageName(Reference);

/// Why a text is not the name of an image.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not the name of an image, such as engine:v1 or {LOCAL}/engine:v1")]
pub struct NameError {
    text: String,
    source: ParseError,
}

impl ImageName {
    /// The image in the registry of the cluster.
    pub fn local(repository: &str, tag: &str) -> ImageName {
        ImageName(Reference::with_tag(LOCAL.to_owned(), repository.to_owned(), tag.to_owned()))
    }

    pub fn is_local(&self) -> bool {
        self.0.registry() == LOCAL
    }

    pub fn host(&self) -> &str {
        self.0.registry()
    }

    /// The digest that it names, if it names one.
    pub fn digest(&self) -> Option<Digest> {
        self.0.digest()?.parse().ok()
    }

    pub fn repository(&self) -> &str {
        self.0.repository()
    }

    pub fn tag(&self) -> Option<&str> {
        self.0.tag()
    }
}

impl FromStr for ImageName {
    type Err = NameError;

    /// A name without a host is one of the cluster's own, one without a tag is the `latest`.
    fn from_str(text: &str) -> Result<ImageName, NameError> {
        let whole = if has_host(text) { text.to_owned() } else { format!("{LOCAL}/{text}") };
        let reference = whole.parse::<Reference>();
        reference.map(ImageName).map_err(|source| NameError { text: text.to_owned(), source })
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As everywhere: what stands before the first slash is a host if it looks like one.
fn has_host(text: &str) -> bool {
    text.split_once('/').is_some_and(|(first, _)| first.contains(['.', ':']) || first == "localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_means_the_cluster() {
        let digest = format!("sha256:{}", "a".repeat(64));
        #[rustfmt::skip]
        let cases = [
            ("engine:v1",                 "midflight.local/engine:v1".to_owned(),           true),
            ("engine",                    "midflight.local/engine:latest".to_owned(),       true),
            ("team/engine:v1",            "midflight.local/team/engine:v1".to_owned(),      true),
            ("midflight.local/engine:v1", "midflight.local/engine:v1".to_owned(),           true),
            ("localhost/engine:v1",       "localhost/engine:v1".to_owned(),                 false),
            ("127.0.0.1:5000/a/b:c",      "127.0.0.1:5000/a/b:c".to_owned(),                false),
            (&format!("engine@{digest}"), format!("midflight.local/engine@{digest}"),       true),
        ];
        for (text, expected, local) in cases {
            let name: ImageName = text.parse().unwrap();
            assert_eq!((name.to_string(), name.is_local()), (expected, local), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused_by_name() {
        for text in ["", "Engine:v1", "engine:v 1", "engine:v1; rm", "engine@sha256:0", "a//b"] {
            let error = text.parse::<ImageName>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }
}
