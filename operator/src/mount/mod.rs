//! Datasets served by FUSE: the shell around `plan::mount::dataset`.

mod datasets;
mod objects;
mod pace;
mod pods;
mod progress;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use datasets::Datasets;
pub use pods::{served_dataset, troubled};
