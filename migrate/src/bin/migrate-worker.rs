//! The worker alone, for the tests of this crate. The `midflight` binary starts
//! itself instead.

fn main() -> std::process::ExitCode {
    midflight_migrate::worker::main(std::env::args_os().skip(1))
}
