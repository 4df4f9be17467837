//! Which nodes have an image, as they say.
//!
//! The invariant: a node that has another content under the name of an image than the others does not have the image.

use std::collections::{BTreeMap, BTreeSet};

use midflight_api::longhorn::Image;
use midflight_api::{ImageRef, NodeName};

use super::engine_image::{ON_NODE, Ranges};

/// What the program of an image that is on a node speaks, as the annotations of the node tell from its labels.
pub fn speaks(image: &ImageRef, annotations: &BTreeMap<String, String>) -> Option<Ranges> {
    let said: BTreeMap<String, Ranges> = serde_json::from_str(annotations.get(ON_NODE)?).ok()?;
    said.get(image.whole().as_str()).copied()
}

/// The nodes that have an image: those that it was brought to, and those that list it with the digest of these or, where it was brought
/// to none, with that of most. A node that names no digest is believed. What nodes list is the names of each content, among them those
/// with its digest.
pub fn holders<'a, Listed: IntoIterator<Item = &'a [String]>>(
    image: &ImageRef,
    images: impl IntoIterator<Item = &'a Image>,
    nodes: impl IntoIterator<Item = (NodeName, Listed)>,
) -> BTreeSet<NodeName> {
    let objects = images.into_iter().filter(|one| one.spec.image() == image);
    let maps = objects.filter_map(|one| one.status.as_ref()).flat_map(|status| &status.node_deployment_map);
    let mut holders: BTreeSet<NodeName> =
        maps.filter(|(_, there)| **there).map(|(node, _)| node.clone()).collect();
    let listed: Vec<(NodeName, Option<&str>)> =
        nodes.into_iter().filter_map(|(node, listed)| Some((node, digest(image, listed)?))).collect();
    let mut counts: BTreeMap<&str, (bool, usize)> = BTreeMap::new();
    for (node, digest) in &listed {
        let Some(digest) = digest else { continue };
        let (is_brought, count) = counts.entry(digest).or_default();
        *is_brought |= holders.contains(node);
        *count += 1;
    }
    let agreed = counts.into_iter().max_by_key(|(_, weight)| *weight).map(|(digest, _)| digest);
    let is_same = |digest: &Option<&str>| digest.is_none() || *digest == agreed;
    holders.extend(listed.into_iter().filter(|(_, digest)| is_same(digest)).map(|(node, _)| node));
    holders
}

/// The digest under which an image is listed, if it is; nothing inside if none is told. The same content may have other digests in other
/// repositories.
fn digest<'a>(image: &ImageRef, listed: impl IntoIterator<Item = &'a [String]>) -> Option<Option<&'a str>> {
    let names = listed.into_iter().find(|names| names.iter().any(|name| name == image.as_str()))?;
    let is_ours = |repository: &str| {
        let rest = image.as_str().strip_prefix(repository);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '@']))
    };
    let mut digests = names.iter().filter_map(|name| name.rsplit_once('@'));
    Some(digests.find(|(repository, _)| is_ours(repository)).map(|(_, digest)| digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: &str = "registry/im:v2";

    fn contents(digest: &str) -> Vec<Vec<String>> {
        let other = ["registry/other@sha256:9", "registry/other:v1"].map(str::to_owned);
        let by_digest = (!digest.is_empty()).then(|| format!("registry/im@{digest}"));
        let elsewhere = format!("mirror/im@{digest}-{}", digest.len());
        vec![other.into(), [elsewhere].into_iter().chain(by_digest).chain([IMAGE.to_owned()]).collect()]
    }

    #[test]
    fn a_node_has_an_image_if_it_has_the_content_that_the_others_have() {
        let (one, two) = ("sha256:1", "sha256:2");
        #[rustfmt::skip]
        let cases = [
            // what,                          brought to,        what nodes list,                      who has it
            ("nobody",                        &[][..],           vec![],                               &[][..]),
            ("brought",                       &["a", "b"],       vec![],                               &["a", "b"]),
            ("listed",                        &[],               vec![("a", one), ("b", one)],         &["a", "b"]),
            ("listed without a digest",       &["a"],            vec![("a", one), ("b", "")],          &["a", "b"]),
            ("another content",               &["a"],            vec![("a", one), ("b", two)],         &["a"]),
            ("most lack what was brought",    &["a"],            vec![("a", one), ("b", two), ("c", two)], &["a"]),
            ("brought to none, most agree",   &[],               vec![("a", two), ("b", one), ("c", two)], &["a", "c"]),
            ("listed again after a restart",  &["a"],            vec![("a", one), ("b", one)],         &["a", "b"]),
        ];
        for (case, brought, listed, expected) in cases {
            let mut image = Image::new("image", Default::default());
            image.spec.image_url = IMAGE.into();
            let status = image.status.get_or_insert_default();
            status.node_deployment_map =
                ["a", "b", "c"].map(|node| (node.into(), brought.contains(&node))).into();
            let listed: Vec<_> = listed.into_iter().map(|(node, digest)| (node, contents(digest))).collect();
            let listed =
                listed.iter().map(|(node, contents)| ((*node).into(), contents.iter().map(Vec::as_slice)));
            let holders = holders(&IMAGE.into(), [&image], listed);
            assert_eq!(holders, expected.iter().map(|node| (*node).into()).collect(), "{case}");
        }
    }
}
