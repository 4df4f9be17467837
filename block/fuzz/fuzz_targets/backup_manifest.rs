#![no_main]
#[path = "../readers.rs"]
mod readers;
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| readers::backup_manifest(bytes));
