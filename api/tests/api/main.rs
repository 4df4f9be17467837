//! Tests of the API as a whole: against upstream's definitions, the rules of
//! the house, the seeds' examples and the committed files.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod drift;
mod examples;
mod fixtures;
mod rules;
mod schema;
mod seeds;
mod support;
mod upstream;
