//! m-SCT's linear program, all but the simplex method: reductions, blocks, a first-order guide, core rounds, the proof.
//!
//! Reading order: `program` (what is given), `net` (the form everything works on), `bounds`, `reduce`, `tree` (exact
//! reductions), `model` (what a solver gets), `first_order`, `auction`, `core` (large blocks), `mend`
//! and `windows` (what the core leaves out), `session` (the rounds),
//! `certificate` (why to believe the result). docs/m-sct.md has the mathematics.

pub mod auction;
pub mod bounds;
pub mod certificate;
pub mod core;
pub mod first_order;
pub mod greedy;
pub mod mend;
pub mod model;
pub mod net;
pub mod program;
pub mod reduce;
pub mod session;
pub mod tree;
pub mod windows;
