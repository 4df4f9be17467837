//! Completes the name of an image that somebody wrote short, and looks what is published under it.
//!
//! The invariant: a name is completed only to that of an image which is there; another is left as it was written, and whoever
//! gets it says what is wrong with it.

use midflight_agent::image::{ImageName, Layout};
use midflight_api::ImageRef;
use midflight_plan::storage::engine_image::Ranges;

use crate::session::Session;
use crate::target;

/// The whole name of the image that is meant. `known` are images of which the cluster has objects.
pub(crate) fn complete<'a>(
    session: &Session,
    written: &str,
    known: impl Iterator<Item = &'a ImageRef>,
) -> ImageRef {
    let known: Vec<&ImageRef> = known.collect();
    meant(written.into(), &known, || published(session))
}

fn meant(written: ImageRef, known: &[&ImageRef], published: impl FnOnce() -> Vec<String>) -> ImageRef {
    if !written.is_short() || known.contains(&&written) {
        return written;
    }
    let whole = written.whole();
    let is_there = known.contains(&&whole) || published().iter().any(|image| *image == whole.as_str());
    if is_there { whole } else { written }
}

/// What the registry of the embedded cluster has; nothing if another cluster is meant.
fn published(session: &Session) -> Vec<String> {
    let images = registry(session).and_then(|registry| registry.images().ok());
    images.unwrap_or_default().iter().map(|published| published.image.to_string()).collect()
}

/// Whether the registry of the embedded cluster has an image; not known of those in other registries, and where another cluster is meant.
pub(crate) fn is_published(session: &Session, image: &ImageRef) -> Option<bool> {
    let name: ImageName = image.whole().as_str().parse().ok()?;
    let registry = registry(session).filter(|_| name.is_local())?;
    if let Some(digest) = name.digest() {
        return registry.blob(digest).ok().map(|there| there.is_some());
    }
    registry.resolve(&name).ok().map(|there| there.is_some())
}

/// What the program of an image speaks, as far as the registry of the embedded cluster knows.
pub(crate) fn speaks(session: &Session, image: &ImageRef) -> Option<Ranges> {
    let name: ImageName = image.whole().as_str().parse().ok()?;
    registry(session).filter(|_| name.is_local())?.speaks(&name).ok()?
}

fn registry(session: &Session) -> Option<Layout> {
    let folder = session.folder().ok().filter(|_| !target::is_elsewhere(session))?;
    Some(Layout::at(folder.registry()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_name_is_completed_to_an_image_that_is_there() {
        #[rustfmt::skip]
        let cases = [
            // what,                        as it was written,           as it is taken
            ("published",                   "engine:v2",                 "midflight.local/engine:v2"),
            ("the latest",                  "tool",                      "midflight.local/tool:latest"),
            ("an object has it",            "engine:v3",                 "midflight.local/engine:v3"),
            ("an object is called so",      "longhornio/engine:v1",      "longhornio/engine:v1"),
            ("nowhere",                     "engine:v9",                 "engine:v9"),
            ("whole",                       "midflight.local/engine:v9", "midflight.local/engine:v9"),
        ];
        let known = ["midflight.local/engine:v3", "longhornio/engine:v1"].map(ImageRef::from);
        let published =
            || ["midflight.local/engine:v2", "midflight.local/tool:latest"].map(str::to_owned).into();
        for (case, written, expected) in cases {
            assert_eq!(meant(written.into(), &known.each_ref(), published), expected, "{case}");
        }
    }
}
