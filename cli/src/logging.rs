//! Where log lines go: stderr, as text or JSON, quiet for commands and telling for roles.
//!
//! The one invariant: a line that cannot be written, on a full disk say, is lost and nothing else is.

use std::io::{self, Write};

use tracing_subscriber::{EnvFilter, fmt};

use crate::args::{Global, LogFormat};

pub(crate) fn start(global: &Global, is_role: bool) {
    // What kube's client says of a failed request, whoever made the request says better.
    let default = if is_role { "info,kube_client=off" } else { "error,kube_client=off" };
    let filter = EnvFilter::new(global.log.as_deref().unwrap_or(default));
    let builder = fmt().with_writer(|| Careless(io::stderr())).with_env_filter(filter);
    match global.log_format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}

/// Never fails: whoever logs would complain about it on stderr, and panic where that fails too.
struct Careless<W>(W);

impl<W: Write> Write for Careless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.0.write(bytes).unwrap_or(bytes.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}
