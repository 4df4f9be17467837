//! Completes the name of an image that somebody wrote short.
//!
//! The invariant: a name is completed only to that of an image which is there; another is left as it was written, and whoever
//! gets it says what is wrong with it.

use midflight_agent::image::Layout;
use midflight_api::ImageRef;

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
    let folder = session.folder().ok().filter(|_| !target::is_elsewhere(session));
    let images = folder.and_then(|folder| Layout::at(folder.registry()).images().ok());
    images.unwrap_or_default().iter().map(|published| published.image.to_string()).collect()
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
