//! The fuzz targets of rust/fuzz with bytes from fixed seeds: the short run of `make test`; `make fuzz` is the long one.

#[path = "../../fuzz/src/lib.rs"]
mod baechi_fuzz;

use baechi_fuzz::checks::{group_anything, place_everywhere, simulate_anything};

/// `SplitMix64` bytes (Steele, Lea and Flood 2014); small values are frequent, as in what a fuzzer keeps.
fn bytes(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    let length = 20 + word() % 600;
    (0..length)
        .map(|_| {
            let byte = word().to_le_bytes();
            if byte[0] < 80 { byte[1] % 8 } else { byte[1] }
        })
        .collect()
}

#[test]
fn every_algorithm_keeps_its_promises_on_any_bytes() {
    (0..400).for_each(|seed| place_everywhere(&bytes(seed)));
}

#[test]
fn any_placement_order_and_wait_is_scheduled_or_refused() {
    (0..4_000).for_each(|seed| simulate_anything(&bytes(seed)));
}

#[test]
fn any_graph_is_grouped_into_a_graph() {
    (0..8_000).for_each(|seed| group_anything(&bytes(seed)));
}
