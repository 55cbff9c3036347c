//! The whole solution, round by round: what the solver is asked next, and what its answers amount to.

use std::collections::VecDeque;

use super::certificate::{self, Bounds};
use super::core::Large;
use super::model::Model;
use super::net::Net;
use super::program::Program;
use super::tree::{Answer, Tree};
use crate::Cancelled;
use crate::error::{Error, Result};

/// Nodes of the blocks that are solved as one program.
const BATCH_NODES: usize = 3_000;

/// How a program is solved; nothing in here changes its value.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Programs of at most this many ops are solved whole.
    pub whole_ops: usize,
    /// Blocks of more nodes are guided and solved by their core.
    pub block_nodes: usize,
    /// Sweeps of the first-order method on a large block.
    pub sweeps: u32,
    /// Large blocks of at least as many nodes, if they are long for their width, are solved window by window.
    pub deep_nodes: usize,
}

/// How a running call is told to stop: with an error, or with what it has.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    pub cancelled: Cancelled<'a>,
    pub expired: &'a dyn Fn() -> bool,
}

impl Watch<'_> {
    fn check(&self) -> Result<()> {
        if (self.cancelled)() { Err(Error::Cancelled) } else { Ok(()) }
    }

    fn is_over(&self) -> bool {
        (self.expired)() || (self.cancelled)()
    }
}

/// What happened, stage by stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub num_never_critical: usize,
    pub num_free: usize,
    pub num_dominated: usize,
    pub num_contracted: usize,
    pub num_blocks: usize,
    pub num_large_blocks: usize,
    pub largest_block_nodes: usize,
    pub num_programs: usize,
    pub num_program_rows: usize,
    pub num_core_rounds: usize,
    pub num_windows: usize,
}

/// Shares of the pairs and the bounds of the value, in the unit of the program.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// x per pair: the share of the transfer that is waited for.
    pub values: Vec<f64>,
    pub bounds: Bounds,
    pub counters: Counters,
}

#[derive(Debug, Clone, Copy)]
enum Piece {
    /// A block of the program.
    Block(usize),
    /// A block of the core of a large block.
    Core { large: usize, block: usize },
    /// A window of a large block.
    Window { large: usize },
}

/// Bounds from given values x per pair: the upper one is theirs, the lower one that of the bound passes.
///
/// # Errors
/// As for [`Session::new`], and [`Error::Shape`] if there is not one value per pair.
pub fn bounds(program: &Program, values: &[f64]) -> Result<Bounds> {
    program.check()?;
    let (expected, found) = (program.parent.len(), values.len());
    if found != expected {
        return Err(Error::Shape { what: "values of the linear program", expected, found });
    }
    let scale = program.scale();
    let tree = Tree::whole(program.net(scale)?);
    let net = tree.root();
    let share = |pair: u32| values.get(pair as usize).map_or(0.0, |value| 1.0 - value);
    let mut y: Vec<f64> = net.edges.iter().map(|edge| share(edge.pair)).collect();
    certificate::repair_shares(net, &mut y);
    let proof = tree.collect(expected + 2 * program.compute.len());
    let flow = net.edges.iter().map(|edge| proof.flow[edge.pair as usize]).collect();
    let prices = certificate::prices_in_order(net, &proof.prices);
    Ok(Bounds {
        lower: certificate::lower(net, flow, prices).max(0.0) * scale,
        upper: certificate::upper(net, &y) * scale,
    })
}

/// A program in the middle of its solution.
#[derive(Debug)]
pub struct Session {
    net: Net,
    num_pairs: usize,
    scale: f64,
    tree: Tree,
    large: Vec<Large>,
    waiting: VecDeque<Vec<Piece>>,
    current: Vec<Piece>,
    /// Columns and rows of the program that was handed out last.
    shape: (usize, usize),
    counters: Counters,
}

impl Session {
    /// Reduces, splits and guides; afterwards the solver is asked.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::Value`] or [`Error::Cycle`] for a bad program, [`Error::Cancelled`].
    pub fn new(program: &Program, options: Options, watch: Watch) -> Result<Self> {
        program.check()?;
        let scale = program.scale();
        let net = program.net(scale)?;
        watch.check()?;
        let stop = || watch.is_over();
        let tree = if program.compute.len() <= options.whole_ops {
            Tree::whole(net.clone())
        } else {
            Tree::grow(net.clone(), &stop)
        };
        watch.check()?;
        let mut session = Self {
            net,
            num_pairs: program.parent.len(),
            scale,
            tree,
            large: Vec::new(),
            waiting: VecDeque::new(),
            current: Vec::new(),
            shape: (0, 0),
            counters: Counters::default(),
        };
        session.first_round(options, watch)?;
        Ok(session)
    }

    fn first_round(&mut self, options: Options, watch: Watch) -> Result<()> {
        let tree = &self.tree;
        self.counters = Counters {
            num_never_critical: tree.num_never_critical,
            num_free: tree.num_free,
            num_dominated: tree.num_dominated,
            num_contracted: tree.num_contracted,
            num_blocks: tree.open.len(),
            ..Counters::default()
        };
        let stop = || watch.is_over();
        let mut pieces = Vec::new();
        for block in self.tree.open.clone() {
            let net = self.tree.net(block);
            let largest = &mut self.counters.largest_block_nodes;
            *largest = net.num_nodes.max(*largest);
            if net.num_nodes <= options.block_nodes {
                pieces.push(Piece::Block(block));
            } else {
                self.counters.num_large_blocks += 1;
                let large = Large::start(block, net, options, &stop);
                watch.check()?;
                let number = self.large.len();
                pieces.extend(
                    large
                        .tree
                        .open
                        .iter()
                        .map(|block| Piece::Core { large: number, block: *block }),
                );
                self.large.push(large);
            }
        }
        self.enqueue(pieces);
        Ok(())
    }

    fn enqueue(&mut self, pieces: Vec<Piece>) {
        let mut batch = Vec::new();
        let mut nodes = 0;
        for piece in pieces {
            let more = self.net_of(piece).map_or(0, |net| net.num_nodes);
            if nodes + more > BATCH_NODES && !batch.is_empty() {
                self.waiting.push_back(std::mem::take(&mut batch));
                nodes = 0;
            }
            nodes += more;
            batch.push(piece);
        }
        if !batch.is_empty() {
            self.waiting.push_back(batch);
        }
    }

    /// The block that a piece is, unless it is a window.
    fn net_of(&self, piece: Piece) -> Option<&Net> {
        match piece {
            Piece::Block(block) => Some(self.tree.net(block)),
            Piece::Core { large, block } => Some(self.large[large].tree.net(block)),
            Piece::Window { .. } => None,
        }
    }

    /// The next program to solve, None when there is none left.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn next(&mut self, watch: Watch) -> Result<Option<Model>> {
        loop {
            watch.check()?;
            if (watch.expired)() {
                return Ok(None);
            }
            if let Some(batch) = self.waiting.pop_front() {
                self.current = batch;
                let nets: Vec<&Net> =
                    self.current.iter().filter_map(|piece| self.net_of(*piece)).collect();
                let model = Model::of(&nets);
                return Ok(Some(self.handed_out(model)));
            }
            if let Some(large) = self.large.iter().position(Large::has_windows) {
                if let Some(model) = self.next_window(large, watch) {
                    self.current = vec![Piece::Window { large }];
                    self.counters.num_windows += 1;
                    return Ok(Some(self.handed_out(model)));
                }
            } else if !self.end_round(watch)? {
                return Ok(None);
            }
        }
    }

    fn handed_out(&mut self, model: Model) -> Model {
        self.counters.num_programs += 1;
        self.counters.num_program_rows += model.row_lower.len();
        self.shape = (model.cost.len(), model.row_lower.len());
        model
    }

    /// The next window of a large block; after the last, the next core.
    fn next_window(&mut self, number: usize, watch: Watch) -> Option<Model> {
        let large = &mut self.large[number];
        let net = self.tree.net(large.block);
        let model = large.next_window(net);
        if model.is_none() {
            large.end_windows(net, &|| watch.is_over());
            self.enqueue_core(number);
        }
        model
    }

    fn enqueue_core(&mut self, number: usize) {
        let large = &self.large[number];
        if !large.is_done && !large.has_windows() {
            let open = large.tree.unsolved().into_iter();
            self.enqueue(open.map(|block| Piece::Core { large: number, block }).collect());
        }
    }

    /// Takes the solution of the program handed out last: its columns, and the duals of its rows.
    ///
    /// # Errors
    /// [`Error::Shape`] if they do not fit the program.
    pub fn give(&mut self, columns: &[f64], duals: &[f64]) -> Result<()> {
        let pieces = std::mem::take(&mut self.current);
        for (found, expected) in [(columns.len(), self.shape.0), (duals.len(), self.shape.1)] {
            if found != expected {
                return Err(Error::Shape { what: "solution", expected, found });
            }
        }
        let nets: Vec<&Net> = pieces.iter().filter_map(|piece| self.net_of(*piece)).collect();
        let mut answers: std::vec::IntoIter<Answer> =
            Model::answers(&nets, columns, duals).into_iter();
        for piece in pieces {
            match (piece, answers.next()) {
                (Piece::Block(block), Some(answer)) => self.tree.settle(block, answer),
                (Piece::Core { large, block }, Some(answer)) => {
                    self.large[large].tree.settle(block, answer);
                }
                (Piece::Window { large }, _) => self.large[large].take_window(columns, duals),
                _ => unreachable!("every block has an answer"),
            }
        }
        Ok(())
    }

    /// Ends the round of every large block; whether anything is left to solve.
    fn end_round(&mut self, watch: Watch) -> Result<bool> {
        let stop = || watch.is_over();
        for number in 0..self.large.len() {
            let large = &mut self.large[number];
            if large.is_done {
                continue;
            }
            large.end_round(self.tree.net(large.block), &stop);
            watch.check()?;
            self.counters.num_core_rounds += 1;
            self.enqueue_core(number);
        }
        Ok(self.large.iter().any(|large| !large.is_done))
    }

    /// Shares and bounds, whatever was solved so far.
    #[must_use]
    pub fn outcome(&mut self) -> Outcome {
        for large in &mut self.large {
            let net = self.tree.net(large.block);
            if large.has_windows() {
                large.end_windows(net, &|| true);
            } else if !large.is_done {
                large.end_round(net, &|| true);
            }
            let answer = large.answer(net);
            self.tree.settle(large.block, answer);
        }
        let net = &self.net;
        let num_edges = self.num_pairs + 2 * (net.num_nodes - 2);
        let collected = self.tree.collect(num_edges);
        let of_edge = |column: &[f64]| -> Vec<f64> {
            net.edges.iter().map(|edge| column[edge.pair as usize]).collect()
        };
        let mut y = of_edge(&collected.y);
        certificate::repair_shares(net, &mut y);
        let flow = of_edge(&collected.flow);
        let prices = certificate::prices_in_order(net, &collected.prices);
        let bounds = Bounds {
            lower: certificate::lower(net, flow, prices).max(0.0) * self.scale,
            upper: certificate::upper(net, &y) * self.scale,
        };
        let mut values = vec![1.0; self.num_pairs];
        for (edge, share) in net.edges.iter().zip(&y) {
            if let Some(value) = values.get_mut(edge.pair as usize) {
                *value = 1.0 - share;
            }
        }
        Outcome { values, bounds, counters: self.counters }
    }
}
