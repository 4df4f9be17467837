//! `midflight migrate worker`: runs the programs of migrations, apart from the tool and limited.

use std::ffi::OsString;

use clap::Args;

/// Run programs of migrations. Started by the tool itself
#[derive(Debug, Args)]
pub(crate) struct Worker {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}
