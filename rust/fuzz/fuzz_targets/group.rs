//! Grouping: no panic, and a fused graph is a graph again that conserves times and weights.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| baechi_fuzz::checks::group_anything(bytes));
