//! Datasets served by FUSE: the shell around `plan::mount::dataset`.

mod datasets;
mod deletion;
mod objects;
mod pace;
mod pods;
mod progress;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use datasets::Datasets;
pub use pods::{claim_of, served_dataset, shown_dataset, troubled, used_claims};
