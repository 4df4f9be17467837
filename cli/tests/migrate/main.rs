//! `midflight migrate`, as an operator uses it: the real binary, its real worker processes, real
//! files, and real etcd and Redis servers that are started here and end with their test.
//!
//! What the commands did is read by another way than theirs: see `dump`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "seeds and figures are for whoever runs the test")]

mod adopt;
mod cloud;
mod death;
mod disk;
mod dump;
mod durability;
mod examples;
#[allow(dead_code, reason = "shared with the tests of the drivers; each uses its own part")]
#[path = "../../../migrate/tests/database/foreign.rs"]
mod foreign;
mod mistakes;
mod outage;
#[allow(dead_code, reason = "shared with the tests of the drivers; each uses its own part")]
#[path = "../../../migrate/tests/database/proxy.rs"]
mod proxy;
mod random;
mod refusals;
#[allow(dead_code, reason = "shared with the tests of the drivers; each uses its own part")]
#[path = "../../../migrate/tests/database/server.rs"]
mod server;
#[path = "../support/mod.rs"]
mod support;
mod upgrade;
