//! Who asks, and what they may do.
//!
//! The one invariant: a request without a rule that allows it is refused, and
//! no secret is kept: the server stores hashes of tokens only.

mod attributes;
mod identity;
mod reviews;
mod rules;
#[cfg(test)]
mod tests;
mod tokens;

pub(crate) use attributes::{Attributes, Verb};
pub use identity::Identity;
pub(crate) use identity::Role;
pub(crate) use reviews::review;
pub(crate) use rules::{Authorizer, Decision, ObjectCheck};
pub use rules::{NodeRule, Reach};
pub use tokens::TokenError;
pub(crate) use tokens::{Tokens, replace_file};
