//! Given placements, orders and waits, right or wrong: no panic, and all ways to the same schedule agree.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| baechi_fuzz::checks::simulate_anything(bytes));
