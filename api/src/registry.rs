//! In which registry an image is, as its name says.
//!
//! The invariant: whoever completes a name, and whoever asks for a complete one, mean the same name by it.

use crate::names::ImageRef;

/// Stands for the registry of the cluster itself, wherever that listens.
pub const LOCAL_REGISTRY: &str = "midflight.local";

/// Host and rest of a name that says in which registry the image is. As everywhere: what stands before the first slash is a
/// host if it looks like one.
pub fn split_registry(image: &str) -> Option<(&str, &str)> {
    let looks_like_one = |first: &str| first.contains(['.', ':']) || first == "localhost";
    image.split_once('/').filter(|(first, _)| looks_like_one(first))
}

impl ImageRef {
    /// Whether it leaves open in which registry it is.
    pub fn is_short(&self) -> bool {
        split_registry(self.as_str()).is_none()
    }

    /// The whole name of an image: one that names no registry is the cluster's own, one without tag and digest is the `latest`.
    pub fn whole(&self) -> ImageRef {
        let (host, rest) = split_registry(self.as_str()).unwrap_or((LOCAL_REGISTRY, self.as_str()));
        let tag = if rest.contains([':', '@']) { "" } else { ":latest" };
        format!("{host}/{rest}{tag}").into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_is_completed_and_a_whole_one_stays() {
        #[rustfmt::skip]
        let cases = [
            ("engine:v2",                 true,  "midflight.local/engine:v2"),
            ("engine",                    true,  "midflight.local/engine:latest"),
            ("team/engine@sha256:0",      true,  "midflight.local/team/engine@sha256:0"),
            ("midflight.local/engine:v2", false, "midflight.local/engine:v2"),
            ("localhost/engine:v2",       false, "localhost/engine:v2"),
            ("registry:5000/a/b:c",       false, "registry:5000/a/b:c"),
            ("registry:5000/a",           false, "registry:5000/a:latest"),
        ];
        for (text, short, whole) in cases {
            let image = ImageRef::from(text);
            assert_eq!((image.is_short(), image.whole().as_str()), (short, whole), "{text}");
        }
    }
}
