//! Grouping ops that belong together, and contracting groups to single ops without ever making a cycle.
//!
//! Baechi, SoCC 2020, section 4 (extended paper, sections 3.1.3 and 3.2): colocation, co-placement and operator fusion.
//!
//! Different from the original: a fused op keeps the weights of its members and the peak of what is live
//! inside it, internal edges are fused until none is left that is safe, and topological numbers are those of the new graph.

mod coplace;
mod fuse;

pub use coplace::coplace;
pub use fuse::{Fusion, fuse};

/// Label of an op that stands for itself.
const OWN: i32 = -1;

fn find(root: &mut [u32], mut op: u32) -> u32 {
    while root[op as usize] != op {
        root[op as usize] = root[root[op as usize] as usize];
        op = root[op as usize];
    }
    op
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("checked to fit 31 bits")
}
