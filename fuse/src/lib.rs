//! A folder as a file system of its own process (FUSE): what workloads mount of a
//! dataset.
//!
//! ```text
//! program ── kernel ── /dev/fuse ──▶ session ── call ──▶ folder ──▶ the dataset's folder
//! ```
//!
//! | room | what it holds |
//! | --- | --- |
//! | `wire` | calls and answers as bytes |
//! | `folder` | does to the folder what calls ask |
//! | `session` | threads that read calls and write answers; they stop between two calls |
//! | `crew` | how many of these threads wait for calls |
//! | [`daemon`] | mounts, serves, and leaves no mount behind |
//! | `nudge` | wakes a thread that waits for a call |

mod crew;
pub mod daemon;
mod folder;
mod nudge;
mod session;
mod wire;
