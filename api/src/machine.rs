//! What a Kubernetes node says of itself.

use k8s_openapi::api::core::v1::Node;

/// The images that a node says it has, each with all its names.
pub fn images_listed(node: &Node) -> impl Iterator<Item = &[String]> {
    let images = node.status.iter().flat_map(|status| status.images.iter().flatten());
    images.filter_map(|one| one.names.as_deref())
}
