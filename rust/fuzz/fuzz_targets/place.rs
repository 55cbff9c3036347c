//! Every algorithm under every rule set: no panic, limits and groups kept, replay equal to prediction.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| baechi_fuzz::checks::place_everywhere(bytes));
