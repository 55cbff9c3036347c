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

/// Shares that are as small as the times allow; firm ones do not grow.
pub fn fit(net: &Net, time: &[f64], firm: &[bool], y: &mut [f64]) {
    for (at, edge) in net.edges.iter().enumerate().filter(|(_, edge)| edge.is_live()) {
        let need =
            (time[edge.tail as usize] + edge.longest() - time[edge.head as usize]) / edge.cost;
        y[at] = need.clamp(0.0, if firm[at] { y[at] } else { 1.0 });
    }
}

/// A time per node: firm edges keep theirs, all others stay as near to those of the guide as these allow.
///
/// A node of firm edges keeps its distance in the guide's times from the parent that is tightest there, within its earliest and latest
/// time under the firm shares. Any other lies between what its neighbors under the guide's shares leave it: where on its
/// way from one firm node to the next, there between its earliest and its latest time.
#[must_use]
pub fn times(net: &Net, target: f64, firm: &[bool], y: &[f64], guide: &[f64]) -> Vec<f64> {
    let sink = net.num_nodes - 1;
    let firm_length = |at: usize, edge: &Edge| {
        if firm[at] { edge.fixed + edge.cost * (1.0 - y[at]) } else { f64::NEG_INFINITY }
    };
    let length = |at: usize, edge: &Edge| edge.fixed + edge.cost * (1.0 - guide[at]);
    let (heads, tails) = (net.heads(length), net.tails(length));
    let guided = |node: usize| 0.5 * (heads[node] + heads[sink] - tails[node]);
    let (firm_heads, firm_tails) = (net.heads(firm_length), net.tails(firm_length));
    let is_firm = |node: usize| {
        node == 0 || node == sink || (firm_heads[node] + firm_tails[node]).is_finite()
    };
    let mut early = vec![f64::NEG_INFINITY; net.num_nodes];
    (early[0], early[sink]) = (0.0, target);
    for node in (1..sink).filter(|node| is_firm(*node)) {
        let (mut earliest, mut least_slack, mut drift) = (f64::NEG_INFINITY, f64::INFINITY, 0.0);
        for at in net.into(node).iter().map(|at| *at as usize) {
            let tail = net.edges[at].tail as usize;
            if firm[at] && is_firm(tail) {
                earliest = earliest.max(early[tail] + firm_length(at, &net.edges[at]));
                let slack = guided(node) - guided(tail) - length(at, &net.edges[at]);
                if slack < least_slack {
                    (least_slack, drift) = (slack, early[tail] - guided(tail));
                }
            }
        }
        early[node] = (guided(node) + drift).min(target - firm_tails[node]).max(earliest);
    }
    let mut late: Vec<f64> =
        (0..=sink).map(|node| if is_firm(node) { early[node] } else { f64::INFINITY }).collect();
    // How far a node is from the firm node that its earliest time comes from, and its latest.
    let (mut since, mut until) = (vec![0.0; net.num_nodes], vec![0.0; net.num_nodes]);
    for (at, edge) in net.edges.iter().enumerate() {
        let (tail, head) = (edge.tail as usize, edge.head as usize);
        let end = early[tail] + length(at, edge);
        if !is_firm(head) && end > early[head] {
            (early[head], since[head]) = (end, since[tail] + length(at, edge));
        }
    }
    for (at, edge) in net.edges.iter().enumerate().rev() {
        let (tail, head) = (edge.tail as usize, edge.head as usize);
        let start = late[head] - length(at, edge);
        if !is_firm(tail) && start < late[tail] {
            (late[tail], until[tail]) = (start, until[head] + length(at, edge));
        }
    }
    let between = |node: usize| {
        let way = since[node] + until[node];
        let part = if way > 0.0 { since[node] / way } else { 0.0 };
        early[node] + (late[node] - early[node]) * part
    };
    (0..=sink).map(between).collect()
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

#[cfg(test)]
mod tests {
    use super::super::net::tests::net;
    use super::*;

    #[test]
    fn firm_shares_stay_and_the_others_take_what_the_guide_gave_them() {
        // 0 -> 1 -> 2 -> 4 is firm and 7 long; beside it 1 -> 3 -> 2 must be there in time.
        let net = net(
            5,
            &[
                (0, 1, 1.0, 0.0),
                (1, 3, 1.0, 2.0),
                (1, 2, 3.0, 3.0),
                (3, 4, 1.0, 2.0),
                (2, 4, 1.0, 2.0),
            ],
        );
        let at = |tail, head| {
            let wanted = |edge: &Edge| (edge.tail, edge.head) == (tail, head);
            net.edges.iter().position(wanted).expect("it is an edge")
        };
        let mut firm = vec![true; 5];
        (firm[at(1, 3)], firm[at(3, 4)]) = (false, false);
        let mut y = vec![0.0; 5];
        (y[at(1, 2)], y[at(2, 4)]) = (1.0, 1.0);
        let guide = vec![0.0; 5];
        let time = times(&net, 5.0, &firm, &y, &guide);
        fit(&net, &time, &firm, &mut y);
        assert!((y[at(1, 2)] - 1.0).abs() < 1e-12 && (y[at(2, 4)] - 1.0).abs() < 1e-12);
        // 6 long where 4 are left: each of the two is late by 1 of its cost 2.
        assert!((y[at(1, 3)] - 0.5).abs() < 1e-12 && (y[at(3, 4)] - 0.5).abs() < 1e-12);
    }
}
