#![no_main]
#[path = "../metadata.rs"]
mod metadata;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| metadata::replica_metadata(bytes));
