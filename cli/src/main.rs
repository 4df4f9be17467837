//! The `midflight` binary: wires everything together, one file per command.

fn main() {}
