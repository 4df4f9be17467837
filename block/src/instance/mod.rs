//! The instance manager: one process of a node that hosts engines and replicas in
//! threads of its own (v2), or starts and minds processes of them (v1).
//!
//! | room | what it holds |
//! | --- | --- |
//! | `names`, `refused`, `secret` | small nouns |
//! | `spec` | what is on disk |
//! | `decide` | what becomes of an instance that has ended |
//! | `process`, `probe` | a v1 process; what replicas have promised |
//! | `loops` | where v2 instances live, one loop for each volume |
//! | `life`, `complaints` | one instance from its start to its end; what engines say is wrong |
//! | `registry`, `commands`, `attach` | all instances, what can be asked of them and of the frontend |
//! | `works` | what takes long, once at a time |
//! | `service`, `backups`, `serve`, `metrics`, `announce` | the same over gRPC |
//! | `client`, `backup_orders`, `order`, `told` | the other side, for people and programs |

mod announce;
mod attach;
mod backup_orders;
mod backups;
pub mod client;
mod commands;
mod complaints;
mod decide;
mod life;
mod loops;
mod metrics;
mod names;
pub mod order;
mod probe;
mod process;
mod refused;
mod registry;
mod secret;
pub mod serve;
mod service;
mod spec;
pub mod told;
mod works;

pub use names::{Kind, Name};
pub use process::end_all;
pub use secret::Secret;

/// Messages of `proto/instance.proto`.
#[allow(clippy::all, unreachable_pub, unused_qualifications)]
pub mod proto {
    tonic::include_proto!("midflight.instance.v1");
}

/// Versions of the API of `proto/instance.proto` that this build serves.
pub const API: (u32, u32) = (1, 1);
