//! Where log lines go: stderr, as text or JSON, quiet for commands and telling for roles.

use std::io;

use tracing_subscriber::{EnvFilter, fmt};

use crate::args::{Global, LogFormat};

pub(crate) fn start(global: &Global, is_role: bool) {
    // What kube's client says of a failed request, whoever made the request says better.
    let default = if is_role { "info,kube_client=off" } else { "error,kube_client=off" };
    let filter = EnvFilter::new(global.log.as_deref().unwrap_or(default));
    let builder = fmt().with_writer(io::stderr).with_env_filter(filter);
    match global.log_format {
        LogFormat::Text => builder.with_ansi(false).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
