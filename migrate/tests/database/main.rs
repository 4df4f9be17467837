//! The driver contract and both commit protocols, on every database and layout there is.
//!
//! etcd and Redis are real servers, started here on free ports and ended with the test.
#![expect(clippy::unwrap_used, reason = "a test whose database does not answer has failed")]

mod adopt;
mod cloud;
mod commit;
mod contract;
mod crash;
mod foreign;
mod forgetful;
mod names;
mod outage;
mod proxy;
mod roots;
mod secure;
mod server;
mod world;
mod wrapped;
