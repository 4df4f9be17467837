//! What tests of more than one crate share.

pub mod history;
