//! The Container Storage Interface, for datasets served by FUSE.
//!
//! ```text
//! kubelet ── stage ──▶ label the node ─▶ the DaemonSet brings the daemon, which mounts
//!         ── publish ─▶ wait for that mount, bind it for the workload
//!         ── unstage ─▶ nobody left and the daemon outdated: take the label away
//! ```
//!
//! | room | what it holds |
//! | --- | --- |
//! | `volume` | what a call says of a volume |
//! | `record` | what has to be known of a volume after a crash |
//! | `mounts` | the mounts of this machine |
//! | `bound` | shows a folder of one at another place |
//! | `layers` | which of those at one place containers were given |
//! | `question` | asks file systems that may hang |
//! | `cluster` | the node's label, the volume's claim |
//! | `successor` | whether the daemon that would come next has an image here |
//! | `rooms` | folders of a dataset that are volumes of their own |
//! | `staging`, `binding` | what kubelet's calls do: daemons come and go, mounts are bound |
//! | `node`, `controller`, `identity` | the calls |
//! | `serve` | the socket |
//! | [`client`] | kubelet's side of the socket |
//! | [`hollow`] | a node that is none, for figures |
//!
//! What to do is decided in `plan::mount`.
//!
//! Invariant: a workload is never given a mount of a daemon that was sent away.

mod binding;
mod bound;
pub mod client;
mod cluster;
mod controller;
pub mod hollow;
mod identity;
mod layers;
mod mounts;
mod node;
mod question;
mod record;
mod rooms;
mod serve;
mod staging;
mod successor;
#[cfg(test)]
mod tests;
mod volume;

mod proto {
    #![allow(clippy::all, unreachable_pub, unused_qualifications, reason = "generated")]
    tonic::include_proto!("csi.v1");
}

use std::path::PathBuf;

pub use mounts::Access;
pub(crate) use mounts::Mounts;
pub(crate) use serve::serve_with;
pub use serve::{CsiError, serve};
pub(crate) use successor::Images;

/// What the plugin of a node must know.
#[derive(Debug, Clone)]
pub struct CsiConfig {
    /// Name of the Node object.
    pub node: String,
    /// Where kubelet calls.
    pub socket: PathBuf,
    /// Folder that the paths of this node are in; `/` where a node is a whole machine.
    pub root: PathBuf,
    /// Where records of volumes are kept.
    pub state: PathBuf,
    /// Longest that one call waits for a daemon to come or to go.
    pub patience: std::time::Duration,
    /// How often daemons that nobody uses are looked at; each look reads the claim of each of them.
    pub look_at_idle_every: std::time::Duration,
}
