//! Makes the messages to instance managers, without protoc and without linking the engine.

const FOLDER: &str = "../block/proto";
const PROTO: &str = "../block/proto/instance.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={PROTO}");
    let files = protox::compile([PROTO], [FOLDER])?;
    tonic_prost_build::configure().build_server(false).build_transport(false).compile_fds(files)?;
    Ok(())
}
