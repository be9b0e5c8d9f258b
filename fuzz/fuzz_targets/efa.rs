//! See docs/design/fuzzing.md.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ferroverbs_fuzz::run("efa", data));
