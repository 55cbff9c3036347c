//! Blocks as one linear program in rows, and what its solution says about them.

use super::net::{Net, index};
use super::tree::Answer;

/// A lower bound of times that is never tight, so that it has no dual.
const NEVER_REACHED: f64 = -1.0;

/// A linear program: minimize `cost` over columns within bounds, rows within bounds; the matrix row by row.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub cost: Vec<f64>,
    pub column_lower: Vec<f64>,
    pub column_upper: Vec<f64>,
    pub row_lower: Vec<f64>,
    pub row_upper: Vec<f64>,
    pub start: Vec<i32>,
    pub column: Vec<i32>,
    pub coefficient: Vec<f64>,
}

impl Model {
    /// The program of blocks that have nothing to do with each other: minimize the sum of their longest paths.
    ///
    /// Per block, columns: a share per edge with a choice, in edge order, then a time per node but the source. Rows: per edge
    /// `time[head] - time[tail] + cost share >= fixed + cost`, but for edges without a choice from the source, which are bounds of the time; then per
    /// sender and per receiver of at least two edges: the shares add up to at most 1.
    #[must_use]
    pub fn of(nets: &[&Net]) -> Self {
        let mut model = Self { start: vec![0], ..Self::default() };
        for net in nets {
            model.add(net);
        }
        model
    }

    fn add(&mut self, net: &Net) {
        let shares = self.cost.len();
        let num_shares = net.num_live();
        self.cost.resize(shares + num_shares + net.num_nodes - 1, 0.0);
        self.column_lower.resize(shares + num_shares, 0.0);
        self.column_lower.resize(self.cost.len(), NEVER_REACHED);
        self.column_upper.resize(shares + num_shares, 1.0);
        self.column_upper.resize(self.cost.len(), f64::INFINITY);
        *self.cost.last_mut().expect("a net has a sink") = 1.0;
        let time = |node: u32| shares + num_shares + node as usize - 1;
        let mut share = shares;
        for edge in &net.edges {
            if edge.tail == 0 && !edge.is_live() {
                let lower = &mut self.column_lower[time(edge.head)];
                *lower = lower.max(edge.fixed);
                continue;
            }
            self.entry(time(edge.head), 1.0);
            if edge.tail > 0 {
                self.entry(time(edge.tail), -1.0);
            }
            if edge.is_live() {
                self.entry(share, edge.cost);
                share += 1;
            }
            self.end_row(edge.longest(), f64::INFINITY);
        }
        for star in stars(net) {
            for share in star {
                self.entry(shares + share as usize, 1.0);
            }
            self.end_row(f64::NEG_INFINITY, 1.0);
        }
    }

    /// Adds an entry to the row that is being written.
    pub(super) fn entry(&mut self, column: usize, coefficient: f64) {
        self.column.push(i32::try_from(column).expect("columns fit 31 bits"));
        self.coefficient.push(coefficient);
    }

    /// Ends it.
    pub(super) fn end_row(&mut self, lower: f64, upper: f64) {
        self.row_lower.push(lower);
        self.row_upper.push(upper);
        self.start.push(i32::try_from(self.column.len()).expect("entries fit 31 bits"));
    }

    /// Splits a solution into one answer per block. Its value is what the solver says it is.
    #[must_use]
    pub fn answers(nets: &[&Net], columns: &[f64], duals: &[f64]) -> Vec<Answer> {
        let (mut column, mut row) = (0, 0);
        let answer = |net: &&Net| {
            let (answer, columns, rows) = read(net, &columns[column..], &duals[row..]);
            column += columns;
            row += rows;
            answer
        };
        nets.iter().map(answer).collect()
    }
}

fn read(net: &Net, columns: &[f64], duals: &[f64]) -> (Answer, usize, usize) {
    let mut answer = Answer::default();
    let (mut share, mut row) = (0, 0);
    for edge in &net.edges {
        if edge.is_live() {
            answer.y.push((edge.pair, columns[share]));
            share += 1;
        }
        if edge.tail == 0 && !edge.is_live() {
            answer.proof.flow.push((edge.pair, f64::NAN));
        } else {
            answer.proof.flow.push((edge.pair, duals[row]));
            row += 1;
        }
    }
    let senders: Vec<u32> =
        net.edges.iter().filter(|edge| edge.is_live()).map(|edge| edge.sender).collect();
    let (first, second) = star_lists(net);
    for star in first {
        if -duals[row] > 0.0 {
            answer.proof.prices.push((senders[star[0] as usize], -duals[row]));
        }
        row += 1;
    }
    row += second.len();
    let num_columns = share + net.num_nodes - 1;
    answer.proof.value = columns[num_columns - 1];
    (answer, num_columns, row)
}

fn stars(net: &Net) -> impl Iterator<Item = Vec<u32>> {
    let (senders, receivers) = star_lists(net);
    senders.into_iter().chain(receivers)
}

/// Shares (numbered in edge order) of every sender, then of every receiver, that has at least two.
fn star_lists(net: &Net) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let mut number = vec![0_u32; net.edges.len()];
    let choices = net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live());
    for (share, (at, _)) in (0_u32..).zip(choices) {
        number[at] = share;
    }
    let live = |at: &u32| net.edges[*at as usize].is_live();
    let named = |star: &[u32]| star.iter().map(|at| number[*at as usize]).collect::<Vec<u32>>();
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for node in 0..net.num_nodes {
        let out: Vec<u32> = net.out_of(node).map(index).filter(live).collect();
        let same =
            |a: &u32, b: &u32| net.edges[*a as usize].sender == net.edges[*b as usize].sender;
        senders.extend(out.chunk_by(same).filter(|star| star.len() > 1).map(named));
        let into: Vec<u32> = net.into(node).iter().copied().filter(live).collect();
        let same =
            |a: &u32, b: &u32| net.edges[*a as usize].receiver == net.edges[*b as usize].receiver;
        receivers.extend(into.chunk_by(same).filter(|star| star.len() > 1).map(named));
    }
    (senders, receivers)
}
