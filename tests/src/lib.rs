//! What tests of more than one crate share.
