//! FUSE as bytes: what the kernel asks, and what it is answered.
//!
//! | room | what it holds |
//! | --- | --- |
//! | `call` | a call, read from bytes |
//! | `name` | one component of a path |
//! | `fields` | reading the parts of a call |
//! | `reply` | an answer, written to bytes |
//! | `init` | what kernel and server agree on at the start |

pub(crate) mod call;
mod fields;
pub(crate) mod init;
pub(crate) mod name;
pub(crate) mod reply;
#[cfg(test)]
mod tests;

/// Longest write, and longest read, of one call.
pub(crate) const MOST_DATA: usize = 1 << 20;
/// Room that one call may need.
pub(crate) const MOST_CALL: usize = MOST_DATA + 4096;
