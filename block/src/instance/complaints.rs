//! Asks the engines that run here, again and again, whether something is wrong that only their clients were told of.
//!
//! Invariant: asking changes nothing in an engine, and one that does not answer keeps the others waiting for a moment only.

use std::{
    io,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use super::{life::State, registry::Registry};
use crate::{
    caller::EngineControl,
    engine::control::{Answer, Command, Status},
    net::address::Address,
};

const ASK_EVERY: Duration = Duration::from_secs(5);
const ANSWERS_WITHIN: Duration = Duration::from_millis(500);

/// Begins to ask, for as long as there is a registry.
pub(super) fn listen(registry: &Arc<Registry>) -> io::Result<()> {
    let registry = Arc::downgrade(registry);
    thread::Builder::new().name("complaints".into()).spawn(move || ask_all(&registry)).map(drop)
}

fn ask_all(registry: &Weak<Registry>) {
    loop {
        thread::sleep(ASK_EVERY);
        let Some(registry) = registry.upgrade() else { return };
        for engine in registry.engines() {
            let view = engine.view();
            let address = view.spec.address.filter(|_| view.state == State::Running);
            // One that does not answer is seen to by whoever minds it.
            if let Some(complaint) = address.and_then(|address| ask(&address)) {
                engine.complain(&complaint);
            }
        }
    }
}

/// What an engine complains of; nothing if all is well.
fn ask(engine: &Address) -> Option<String> {
    let mut engine = EngineControl::connect(engine).ok()?;
    engine.wait_at_most(ANSWERS_WITHIN).ok()?;
    match engine.call(&Command::Status).ok()? {
        Answer::Status(status) => Some(complaint(&status)),
        Answer::Done | Answer::Refused(_) | Answer::Busy(_) => None,
    }
}

fn complaint(status: &Status) -> String {
    let damaged = status.damaged.iter().find(|flaw| !flaw.repaired);
    let trouble = status.trouble.as_ref().map(ToString::to_string);
    trouble.or_else(|| damaged.map(|flaw| format!("{}: {}", flaw.replica, flaw.what))).unwrap_or_default()
}
