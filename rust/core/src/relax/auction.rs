//! Prices that cover a flow nearly as cheaply as possible, by an auction (Bertsekas 1979).
//!
//! The least sum of prices is the value of a heaviest matching of senders and receivers under the weights `cost * flow`. Whatever the
//! auction ends with covers; it need not run to the end.

use super::net::{NONE, Net};

/// A price per sender of `net.stars()`; the receivers' prices follow from them.
#[must_use]
pub fn prices(net: &Net, flow: &[f64], expired: &dyn Fn() -> bool) -> Vec<f64> {
    let stars = net.stars();
    // Edges of a sender are contiguous among those with a choice.
    let mut offers: Vec<(u32, f64)> = Vec::new();
    let mut first = vec![0_usize; stars.num_senders + 1];
    for (at, edge) in net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live()) {
        let worth = edge.cost * flow[at];
        if worth > 0.0 {
            offers.push((stars.receiver[at], worth));
        }
        first[stars.sender[at] as usize + 1] = offers.len();
    }
    let total: f64 = offers.iter().map(|offer| offer.1).sum();
    #[allow(clippy::cast_precision_loss)]
    let raise = 1e-4 * total / (stars.num_senders.max(1) as f64);
    let mut price = vec![0.0_f64; stars.num_receivers];
    let mut owner = vec![NONE; stars.num_receivers];
    let mut bidders: Vec<u32> = (0..super::net::index(stars.num_senders)).rev().collect();
    let mut bids_left = 40 * (stars.num_senders + 100);
    while let Some(bidder) = bidders.pop() {
        let range = first[bidder as usize]..first[bidder as usize + 1];
        let (mut best, mut second, mut wanted) = (0.0, 0.0, NONE);
        for (receiver, worth) in &offers[range] {
            let gain = worth - price[*receiver as usize];
            if gain > best {
                (second, best, wanted) = (best, gain, *receiver);
            } else if gain > second {
                second = gain;
            }
        }
        if wanted == NONE || bids_left == 0 || (bids_left.is_multiple_of(4096) && expired()) {
            continue;
        }
        bids_left -= 1;
        price[wanted as usize] += best - second + raise;
        let displaced = std::mem::replace(&mut owner[wanted as usize], bidder);
        if displaced != NONE {
            bidders.push(displaced);
        }
    }
    let mut sender = vec![0.0_f64; stars.num_senders];
    for (at, edge) in net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live()) {
        let left = edge.cost * flow[at] - price[stars.receiver[at] as usize];
        let from = stars.sender[at] as usize;
        sender[from] = sender[from].max(left);
    }
    sender
}
