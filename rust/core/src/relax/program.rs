//! The program as it is given: ops with times, pairs of ops with transfer times.

use super::net::{Edge, Net, index};
use crate::error::{Error, Result};
use crate::lists::Lists;

/// Columns of the program, in any unit of time.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub parent: Vec<u32>,
    pub child: Vec<u32>,
    /// Time of the transfer, per pair.
    pub transfer: Vec<f64>,
    /// Time of the op.
    pub compute: Vec<f64>,
}

impl Program {
    /// Checks lengths, values and indices.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Value`].
    pub fn check(&self) -> Result<()> {
        let (num_ops, num_pairs) = (self.compute.len(), self.parent.len());
        for found in [self.child.len(), self.transfer.len()] {
            if found != num_pairs {
                return Err(Error::Shape { what: "pairs", expected: num_pairs, found });
            }
        }
        if num_pairs + 2 * num_ops >= 1 << 31 {
            return Err(Error::Overflow { what: "pairs and ops" });
        }
        for (what, ops) in [("parent", &self.parent), ("child", &self.child)] {
            if let Some(index) = ops.iter().position(|op| *op as usize >= num_ops) {
                return Err(Error::Value { what, index, value: i64::from(ops[index]) });
            }
        }
        for (what, times) in [("transfer", &self.transfer), ("compute", &self.compute)] {
            if let Some(index) = times.iter().position(|time| !(0.0..1e300).contains(time)) {
                #[allow(clippy::cast_possible_truncation)]
                return Err(Error::Value { what, index, value: times[index] as i64 });
            }
        }
        Ok(())
    }

    /// A power of two near the mean time: dividing by it is exact and puts times near 1.
    #[must_use]
    pub fn scale(&self) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for time in self.compute.iter().chain(&self.transfer).filter(|time| **time > 0.0) {
            sum += time;
            count += 1.0;
        }
        if count == 0.0 { 1.0 } else { (sum / count).log2().round().exp2() }
    }

    /// The network: a source before the ops that have no parent, a sink behind those that have no child.
    ///
    /// Its edges know their pair; edges of the source are `pairs + op`, those of the sink `pairs + ops + op`.
    ///
    /// # Errors
    /// [`Error::Cycle`] with the ops on or behind a cycle.
    pub fn net(&self, scale: f64) -> Result<Net> {
        let (num_ops, num_pairs) = (self.compute.len(), self.parent.len());
        let (node, num_parents) = self.nodes()?;
        let mut num_children = vec![0_u32; num_ops];
        let mut edges = Vec::with_capacity(num_pairs + num_ops / 4);
        let sink = index(num_ops + 1);
        for (pair, (parent, child)) in self.parent.iter().zip(&self.child).enumerate() {
            let op = *parent as usize;
            num_children[op] += 1;
            let (tail, head) = (node[op], node[*child as usize]);
            let mut edge = Edge::constant(tail, head, index(pair), self.compute[op] / scale);
            if self.transfer[pair] > 0.0 {
                edge.cost = self.transfer[pair] / scale;
                (edge.sender, edge.receiver) = (*parent, *child);
            }
            edges.push(edge);
        }
        for op in 0..num_ops {
            if num_parents[op] == 0 {
                edges.push(Edge::constant(0, node[op], index(num_pairs + op), 0.0));
            }
            if num_children[op] == 0 {
                let pair = index(num_pairs + num_ops + op);
                edges.push(Edge::constant(node[op], sink, pair, self.compute[op] / scale));
            }
        }
        Ok(Net::new(num_ops + 2, edges))
    }

    /// The node of each op in topological order from 1, and its number of pairs as a child.
    fn nodes(&self) -> Result<(Vec<u32>, Vec<u32>)> {
        let num_ops = self.compute.len();
        let children =
            Lists::group(num_ops, self.parent.iter().copied().zip(self.child.iter().copied()));
        let mut num_parents = vec![0_u32; num_ops];
        for child in &self.child {
            num_parents[*child as usize] += 1;
        }
        let mut waiting = num_parents.clone();
        let mut order: Vec<u32> =
            (0..index(num_ops)).filter(|op| waiting[*op as usize] == 0).collect();
        let mut node = vec![0; num_ops];
        let mut next = 0;
        while let Some(op) = order.get(next).copied() {
            next += 1;
            node[op as usize] = index(next);
            for child in children.of(op) {
                waiting[*child as usize] -= 1;
                if waiting[*child as usize] == 0 {
                    order.push(*child);
                }
            }
        }
        if order.len() < num_ops {
            let ops = (0..index(num_ops)).filter(|op| waiting[*op as usize] > 0).collect();
            return Err(Error::Cycle { ops });
        }
        Ok((node, num_parents))
    }
}
