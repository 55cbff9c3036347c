//! Shares for all edges of a block from the shares of its core and those of the guide.

use super::net::{Edge, NONE, Net, Stars};

/// Shares that are no greater than they must be for the longest path to stay within `target`.
///
/// Every node gets the middle of its earliest time (from the source) and its latest (from the sink at `target`); an edge then
/// needs `(time[tail] + longest - time[head]) / cost`. Edges for which `counts` is false are taken for absent.
pub fn tighten(net: &Net, target: f64, counts: impl Fn(usize) -> bool, y: &mut [f64]) {
    let length = |at: usize, edge: &Edge| {
        if counts(at) { edge.fixed + edge.cost * (1.0 - y[at]) } else { f64::NEG_INFINITY }
    };
    let (heads, tails) = (net.heads(length), net.tails(length));
    let time = |node: u32| 0.5 * (heads[node as usize] + target - tails[node as usize]);
    for (at, edge) in net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live()) {
        if counts(at) {
            let need = (time(edge.tail) + edge.longest() - time(edge.head)) / edge.cost;
            y[at] = y[at].min(need.max(0.0));
        }
    }
}

/// Scales the shares for which `yields` holds so that senders and receivers keep within 1.
pub fn limit(stars: &Stars, yields: impl Fn(usize) -> bool, y: &mut [f64]) {
    for (star, count) in
        [(&stars.sender, stars.num_senders), (&stars.receiver, stars.num_receivers)]
    {
        let mut firm = vec![0.0_f64; count];
        let mut soft = vec![0.0_f64; count];
        for (at, star) in star.iter().enumerate().filter(|(_, star)| **star != NONE) {
            let total = if yields(at) { &mut soft } else { &mut firm };
            total[*star as usize] += y[at];
        }
        for (at, star) in star.iter().enumerate().filter(|(_, star)| **star != NONE) {
            let left = (1.0 - firm[*star as usize]).max(0.0);
            let wanted = soft[*star as usize];
            if yields(at) && wanted > left {
                y[at] *= left / wanted;
            }
        }
    }
}

/// Gives what senders and receivers have left to the edges on paths beyond `target`, longest path first.
pub fn spread(net: &Net, stars: &Stars, target: f64, y: &mut [f64]) {
    let mut sent = vec![0.0; stars.num_senders];
    let mut received = vec![0.0; stars.num_receivers];
    for (at, share) in y.iter().enumerate().filter(|(_, share)| **share > 0.0) {
        sent[stars.sender[at] as usize] += share;
        received[stars.receiver[at] as usize] += share;
    }
    let length = |at: usize, edge: &Edge| edge.fixed + edge.cost * (1.0 - y[at]);
    let (heads, tails) = (net.heads(length), net.tails(length));
    let path = |at: usize, edge: &Edge| {
        heads[edge.tail as usize] + length(at, edge) + tails[edge.head as usize]
    };
    let live = net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live());
    let mut late: Vec<(f64, usize)> =
        live.map(|(at, edge)| (path(at, edge), at)).filter(|(path, _)| *path > target).collect();
    late.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    for (path, at) in late {
        let (from, to) = (stars.sender[at] as usize, stars.receiver[at] as usize);
        let left = (1.0 - sent[from]).min(1.0 - received[to]).min(1.0 - y[at]);
        let more = left.min((path - target) / net.edges[at].cost);
        if more > 0.0 {
            y[at] += more;
            sent[from] += more;
            received[to] += more;
        }
    }
}
